"""The framework interface for Keras 3 on TensorFlow."""

import functools
from types import MappingProxyType
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.config.schema import JobConfig, Precision
from edl_horovod.frameworks.base import Framework, Model, Step
from edl_horovod.frameworks.keras import keras_2
from edl_horovod.frameworks.keras.batches import KerasBatches, all_examples
from edl_horovod.frameworks.keras.collectives import HOROVOD, KerasCollectives
from edl_horovod.frameworks.keras.functional import take_examples
from edl_horovod.frameworks.keras.model import KerasModel
from edl_horovod.frameworks.keras.plain_models import PLAIN_MODELS
from edl_horovod.frameworks.keras.step import KerasStep, SharedModel, make_callbacks
from edl_horovod.frameworks.phases import PhasedStep, has_phases, parts_of
from edl_horovod.frameworks.step_options import StepOptions
from edl_horovod.models.zoo import LoadedSpec


class KerasFramework:
    """Trains, evaluates and runs Keras models."""

    name = "keras"
    horovod = HOROVOD
    collectives = KerasCollectives()
    plain_models = PLAIN_MODELS
    batches = KerasBatches
    _seed = 0
    examples = staticmethod(all_examples)

    def begin(self, *, slot: int, seed: int) -> int:
        """Select the slot's GPU, allocate its memory on demand, and seed all random generators."""
        devices = tf.config.list_physical_devices("GPU")
        if devices:
            self.horovod.require_gpu_of_its_own(slot, len(devices))
            device = devices[slot % len(devices)]
            tf.config.set_visible_devices(device, "GPU")
            tf.config.experimental.set_memory_growth(device, True)
        keras.utils.set_random_seed(seed)
        self._seed = seed
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
        config: JobConfig,
        *,
        scales_learning_rate: bool = False,
    ) -> Step:
        """Build the user's model and optimizer, and trace the step."""
        options = StepOptions.of(config)
        make_step = functools.partial(
            KerasStep,
            loaded,
            element_spec,
            learning_rate=config.train.learning_rate,
            scales_learning_rate=scales_learning_rate,
            seed=self._seed,
        )
        if not has_phases(loaded):
            return make_step(options=options)
        shared = SharedModel.build(loaded, element_spec, options)
        model = shared.model.keras
        parts = parts_of(loaded, model, config, model.trainable_variables)
        steps = [
            (part.phase, make_step(options=part.options, shared=shared, part=part))
            for part in parts
        ]
        # Keras would replace a plain dict by a copy.
        optimizers = MappingProxyType({phase.name: step.optimizer for phase, step in steps})
        callbacks = functools.partial(make_callbacks, [step for _, step in steps], optimizers)
        return PhasedStep(
            loaded, steps, seed=self._seed, take=take_examples, make_callbacks=callbacks
        )


# Installed before any model file runs, because it may import these names.
keras_2.install()

FRAMEWORK: Framework = KerasFramework()
