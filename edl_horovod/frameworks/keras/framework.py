"""The framework interface for Keras 3 on TensorFlow."""

from typing import Any

import keras
import tensorflow as tf

from edl_horovod.config.schema import Precision, TrainConfig
from edl_horovod.frameworks.base import Framework, Model, Step
from edl_horovod.frameworks.keras import keras_2
from edl_horovod.frameworks.keras.batches import KerasBatches, all_examples
from edl_horovod.frameworks.keras.collectives import HOROVOD, KerasCollectives
from edl_horovod.frameworks.keras.model import KerasModel
from edl_horovod.frameworks.keras.plain_models import PLAIN_MODELS
from edl_horovod.frameworks.keras.step import KerasStep
from edl_horovod.frameworks.step_options import StepOptions
from edl_horovod.models.zoo import LoadedSpec


class KerasFramework:
    """Trains, evaluates and runs Keras models."""

    name = "keras"
    horovod = HOROVOD
    collectives = KerasCollectives()
    plain_models = PLAIN_MODELS
    batches = KerasBatches
    examples = staticmethod(all_examples)

    def begin(self, *, slot: int, seed: int) -> int:
        """Select the slot's GPU, allocate its memory on demand, and seed all random generators."""
        devices = tf.config.list_physical_devices("GPU")
        if devices:
            device = devices[slot % len(devices)]
            tf.config.set_visible_devices(device, "GPU")
            tf.config.experimental.set_memory_growth(device, True)
        keras.utils.set_random_seed(seed)
        return len(devices)

    def use_precision(self, precision: Precision) -> None:
        """Set the dtype policy of layers that are created from now on."""
        keras.config.set_dtype_policy(precision)

    def model(self, loaded: LoadedSpec, element_spec: Any) -> Model:
        """Build the user's model."""
        return KerasModel(loaded, element_spec[0])

    def step(
        self,
        loaded: LoadedSpec,
        element_spec: Any,
        config: TrainConfig,
        *,
        scales_learning_rate: bool = False,
    ) -> Step:
        """Build the user's model and optimizer, and trace the step."""
        return KerasStep(
            loaded,
            element_spec,
            learning_rate=config.learning_rate,
            options=StepOptions.of(config),
            scales_learning_rate=scales_learning_rate,
        )


# Installed before any model file runs, because it may import these names.
keras_2.install()

FRAMEWORK: Framework = KerasFramework()
