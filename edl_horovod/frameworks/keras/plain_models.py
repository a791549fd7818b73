"""Keras models without a spec: a `keras.Model` subclass or a function that returns a model."""

import keras

from edl_horovod.frameworks.keras import parts
from edl_horovod.models.parts import PlainModels

__all__ = ["PLAIN_MODELS"]

PLAIN_MODELS = PlainModels(
    "keras",
    keras.Model,
    make={
        "model": parts.model_part,
        "input_fn": parts.dataset_part,
        "loss": parts.loss_part,
        "optimizer": parts.optimizer_part,
        "metrics": parts.metrics_part,
        "callbacks": parts.callbacks_part,
    },
    hints={
        "input_fn": "the class default_input, or its file a function feed",
        "loss": "the class default_loss, or its file a function loss",
        "optimizer": "the class default_optimizer, or its file a function optimizer",
    },
)
