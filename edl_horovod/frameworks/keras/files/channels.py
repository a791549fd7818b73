"""Convolutions of models whose channels come first, on processors whose kernels want them last."""

from typing import Any

import keras

__all__ = ["CHANNELS_FIRST"]


class _TurnedAround:
    """Convolves with the channels last, whatever the layer's input and output have."""

    def convolution_op(self, inputs: Any, kernel: Any) -> Any:
        """The convolution; the kernel is the same in either order."""
        num_axes = len(inputs.shape)
        channels_last = keras.ops.transpose(inputs, (0, *range(2, num_axes), 1))
        outputs = keras.ops.conv(
            channels_last,
            kernel,
            strides=list(self.strides),  # type: ignore[attr-defined]  # Of Keras' convolutions.
            padding=self.padding,  # type: ignore[attr-defined]  # As above.
            dilation_rate=self.dilation_rate,  # type: ignore[attr-defined]  # As above.
            data_format="channels_last",
        )
        return keras.ops.transpose(outputs, (0, num_axes - 1, *range(1, num_axes - 1)))


@keras.saving.register_keras_serializable("edl_horovod", "ChannelsFirstConv1D")
class _Conv1D(_TurnedAround, keras.layers.Conv1D):  # type: ignore[misc]  # Keras ships no types.
    pass


@keras.saving.register_keras_serializable("edl_horovod", "ChannelsFirstConv2D")
class _Conv2D(_TurnedAround, keras.layers.Conv2D):  # type: ignore[misc]  # As above.
    pass


@keras.saving.register_keras_serializable("edl_horovod", "ChannelsFirstConv3D")
class _Conv3D(_TurnedAround, keras.layers.Conv3D):  # type: ignore[misc]  # As above.
    pass


CHANNELS_FIRST = {
    "Conv1D": "edl_horovod>ChannelsFirstConv1D",
    "Conv2D": "edl_horovod>ChannelsFirstConv2D",
    "Conv3D": "edl_horovod>ChannelsFirstConv3D",
}
"""The names under which these layers are registered, for those of Keras that they stand for.

TensorFlow's convolutions for CPUs know no channels that come first; Keras 2 turned them around.
"""
