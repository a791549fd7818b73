"""The optimizer of a training: the spec's own, else the one that the model was compiled with."""

import logging
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import UserCodeError
from edl_horovod.models.calling import user_code, wrong_optimizer
from edl_horovod.models.zoo import LoadedSpec

__all__ = ["Beginning", "inner_optimizer", "make_optimizer", "slots_of"]

log = logging.getLogger(__name__)


def make_optimizer(
    loaded: LoadedSpec, model: keras.Model, learning_rate: float | None, *, scales_loss: bool
) -> keras.optimizers.Optimizer:
    """Make the optimizer of a training, not yet built, or as the model was loaded with it.

    Args:
        loaded: The user's spec.
        model: Built.
        learning_rate: `train.learning_rate`; None leaves the optimizer's own.
        scales_loss: Whether it must scale the loss.

    Raises:
        UserCodeError: There is none, it is no Keras optimizer, or making it failed.
    """
    if loaded.gives("create_optimizer"):
        optimizer = loaded.optimizer(learning_rate)
    else:
        optimizer = _compiled(loaded, model, learning_rate)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise wrong_optimizer(optimizer, f"create_optimizer of {loaded.label}")
    _tell_of_unused(loaded, model)
    kind = keras.optimizers.LossScaleOptimizer
    return kind(optimizer) if scales_loss and not isinstance(optimizer, kind) else optimizer


def inner_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer inside of those that scale the loss; others as they are."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


class Beginning:
    """What an optimizer begins with, so that it can begin anew."""

    def __init__(
        self, optimizer: keras.optimizers.Optimizer, trained: Sequence[keras.Variable]
    ) -> None:
        """Take it; of most variables one number, because all of theirs are the same.

        Args:
            optimizer: Just built.
            trained: The variables that it was built for.
        """
        inner = inner_optimizer(optimizer)
        self._mirrors = [
            pair for slots in slots_of(inner, trained) if _are_mirrors(slots) for pair in slots
        ]
        excluded = {id(slot) for _, slot in self._mirrors} | {id(vars(inner).get("_learning_rate"))}
        self._values = [
            (variable, _short(variable.numpy()))
            for variable in optimizer.variables
            if id(variable) not in excluded
        ]

    def restore(self) -> None:
        """Have the optimizer forget all but its learning rate."""
        for variable, value in self._values:
            variable.assign(np.broadcast_to(value, variable.shape))
        for variable, slot in self._mirrors:
            slot.assign(variable)


def slots_of(
    optimizer: keras.optimizers.Optimizer, trained: Sequence[keras.Variable]
) -> list[list[tuple[keras.Variable, keras.Variable]]]:
    """What a built optimizer keeps for each variable: lists of (variable, slot)."""
    variables = {id(variable) for variable in optimizer.variables}
    lists = [
        value
        for value in vars(optimizer).values()
        if isinstance(value, list) and len(value) == len(trained)
    ]
    return [
        [
            (variable, slot)
            for variable, slot in zip(trained, slots, strict=True)
            if isinstance(slot, keras.Variable) and id(slot) in variables
        ]
        for slots in lists
    ]


def _are_mirrors(slots: Sequence[tuple[keras.Variable, keras.Variable]]) -> bool:
    """Whether slots begin as copies of their variables: not just zeros, as a bias is."""
    values = [(variable.numpy(), slot.numpy()) for variable, slot in slots]
    are_equal = all(np.array_equal(variable, slot) for variable, slot in values)
    return are_equal and any(_short(slot).ndim > 0 for _, slot in values)


def _short(value: NDArray[Any]) -> NDArray[Any]:
    first = value.reshape(-1)[:1]
    is_same = value.size > 0 and bool(np.all(value == first))
    return first.reshape(()) if is_same else value.copy()


def _compiled(
    loaded: LoadedSpec, model: keras.Model, learning_rate: float | None
) -> keras.optimizers.Optimizer:
    optimizer = model.optimizer if model.compiled else None
    if optimizer is None:
        raise UserCodeError(
            f"{loaded.label} lacks optimizer.",
            cure="Give the class default_optimizer or the spec create_optimizer, or its file a"
            " function optimizer, or compile the model with one, or set optimizer=...",
        )
    if learning_rate is not None:
        doing = f"Setting train.learning_rate on what the model of {loaded.label} was compiled with"
        with user_code(doing, root=loaded.zoo):
            optimizer.learning_rate = learning_rate
    return optimizer


def _tell_of_unused(loaded: LoadedSpec, model: keras.Model) -> None:
    """Say what of a compiled model does not count, because the spec says it itself."""
    if not model.compiled:
        return
    methods = {"loss": "create_loss", "optimizer": "create_optimizer", "metrics": "create_metrics"}
    compiled = {
        "loss": model.loss,
        "optimizer": model.optimizer,
        "metrics": vars(model).get("_compile_metrics"),
    }
    unused = [
        key for key, value in compiled.items() if value is not None and loaded.gives(methods[key])
    ]
    if unused:
        log.warning(
            "%s: the %s that the model was compiled with do not count, because the spec has %s",
            loaded.label,
            " and ".join(unused),
            ", ".join(methods[key] for key in unused),
        )
