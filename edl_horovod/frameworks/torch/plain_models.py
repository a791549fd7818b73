"""PyTorch models without a spec: an `nn.Module` subclass, or a function that returns a module.

Loss, metrics and optimizer may be methods of the class: `loss` or `training_step`, `metrics`,
`configure_optimizers`.
"""

from torch import nn

from edl_horovod.frameworks.torch import parts
from edl_horovod.models.parts import PlainModels

__all__ = ["PLAIN_MODELS"]

PLAIN_MODELS = PlainModels(
    "torch",
    nn.Module,
    make={
        "model": parts.model_part,
        "input_fn": parts.dataset_part,
        "loss": parts.loss_part,
        "optimizer": parts.optimizer_part,
        "metrics": parts.metrics_part,
        "callbacks": parts.callbacks_part,
    },
    hints={
        "input_fn": "its file a function feed(records, mode) (not needed with your own Dataset,"
        " data=dataset:module.name)",
        "loss": "the class a method loss(self, outputs, labels) or training_step",
        "optimizer": "the class a method configure_optimizers(self, lr)",
    },
    own_methods={
        "loss": "loss",
        "training_step": "loss",
        "configure_optimizers": "optimizer",
    },
)
