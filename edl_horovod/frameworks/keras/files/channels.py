"""Convolutions for channels-first models on processors that only support channels last."""

from typing import Any

import keras

__all__ = ["CHANNELS_FIRST"]


class _ChannelsLastConvolution:
    """Transposes inputs to channels last for the convolution, and its outputs back."""

    def convolution_op(self, inputs: Any, kernel: Any) -> Any:
        """Convolve channels-first inputs; the kernel has the same layout in both formats."""
        num_axes = len(inputs.shape)
        channels_last = keras.ops.transpose(inputs, (0, *range(2, num_axes), 1))
        outputs = keras.ops.conv(
            channels_last,
            kernel,
            strides=list(self.strides),  # type: ignore[attr-defined]  # An attribute of Keras' convolutions.
            padding=self.padding,  # type: ignore[attr-defined]  # As above.
            dilation_rate=self.dilation_rate,  # type: ignore[attr-defined]  # As above.
            data_format="channels_last",
        )
        return keras.ops.transpose(outputs, (0, num_axes - 1, *range(1, num_axes - 1)))


@keras.saving.register_keras_serializable("edl_horovod", "ChannelsFirstConv1D")
class _Conv1D(_ChannelsLastConvolution, keras.layers.Conv1D):  # type: ignore[misc]  # Keras ships no types.
    pass


@keras.saving.register_keras_serializable("edl_horovod", "ChannelsFirstConv2D")
class _Conv2D(_ChannelsLastConvolution, keras.layers.Conv2D):  # type: ignore[misc]  # As above.
    pass


@keras.saving.register_keras_serializable("edl_horovod", "ChannelsFirstConv3D")
class _Conv3D(_ChannelsLastConvolution, keras.layers.Conv3D):  # type: ignore[misc]  # As above.
    pass


CHANNELS_FIRST = {
    "Conv1D": "edl_horovod>ChannelsFirstConv1D",
    "Conv2D": "edl_horovod>ChannelsFirstConv2D",
    "Conv3D": "edl_horovod>ChannelsFirstConv3D",
}
"""The registered names of these layers by the Keras layers that they replace.

TensorFlow's convolutions for CPUs do not support channels first; Keras 2 transposed the tensors.
"""
