"""Keras 3 on TensorFlow, as the ring sees it."""

from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.config.schema import TrainConfig
from edl_horovod.errors import ConfigError
from edl_horovod.frameworks.base import Batches, Framework, Step
from edl_horovod.frameworks.buckets import Reduction
from edl_horovod.frameworks.keras import keras_2
from edl_horovod.frameworks.keras.batches import KerasBatches, all_examples
from edl_horovod.frameworks.keras.collectives import HOROVOD, KerasCollectives
from edl_horovod.frameworks.keras.gradients import GradientOptions
from edl_horovod.frameworks.keras.model import KerasModel
from edl_horovod.frameworks.keras.plain_models import PLAIN_MODELS
from edl_horovod.frameworks.keras.step import KerasStep
from edl_horovod.frameworks.models import Model
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.records.plan import DataPlan
from edl_horovod.records.source import RecordSource
from edl_horovod.spec import Mode

__all__ = ["FRAMEWORK"]


class KerasFramework:
    """See `base.Framework`."""

    name = "keras"
    horovod = HOROVOD
    collectives = KerasCollectives()
    plain_models = PLAIN_MODELS

    def begin(self, *, slot: int, seed: int) -> int:
        """Take a GPU for each local rank, its memory as it is needed, and seed all generators."""
        devices = tf.config.list_physical_devices("GPU")
        if devices:
            device = devices[slot % len(devices)]
            tf.config.set_visible_devices(device, "GPU")
            tf.config.experimental.set_memory_growth(device, True)
        keras.utils.set_random_seed(seed)
        return len(devices)

    def use_precision(self, precision: str) -> None:
        """Set the policy of layers that are made from now on."""
        keras.config.set_dtype_policy(precision)

    def batches(
        self,
        source: RecordSource,
        plan: DataPlan,
        loaded: LoadedSpec,
        mode: Mode,
        *,
        prefetch: int,
        processes: int = 0,
    ) -> Batches:
        """Make examples of records by the user's `create_dataset`."""
        if processes:
            raise ConfigError(
                "data_plan.processes is for PyTorch: a pipeline of tf.data works in parallel by"
                " itself.",
                received={"data_plan.processes": processes},
                cure="Leave it out.",
            )
        return KerasBatches(source, plan, loaded, mode, prefetch=prefetch)

    def examples(
        self, source: RecordSource, plan: DataPlan, loaded: LoadedSpec
    ) -> AbstractContextManager[tf.data.Dataset]:
        """All training examples in batches, as a `tf.data.Dataset` that can be read repeatedly."""
        return all_examples(source, plan, loaded)

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
        gradients = GradientOptions(
            clip_norm=config.clip_norm,
            clip_value=config.clip_value,
            num_parts=config.accumulate_steps,
            sums_batch_norm=config.batch_norm == "synchronized",
            scales_loss=config.precision == "mixed_float16",
            reduction=Reduction(
                bucket_bytes=config.bucket_bytes,
                compression=config.compression,
                batch_size=config.batch_size,
            ),
        )
        return KerasStep(
            loaded,
            element_spec,
            learning_rate=config.learning_rate,
            gradients=gradients,
            scales_learning_rate=scales_learning_rate,
            class_weight=config.class_weight,
        )


# Before any file of a model is run: it may import these names.
keras_2.install()

FRAMEWORK: Framework = KerasFramework()
