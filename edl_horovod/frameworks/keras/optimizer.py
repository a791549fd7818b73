"""Make a training's optimizer: the spec's, else the one that the model was compiled with."""

import logging
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import UserCodeError
from edl_horovod.models.calling import user_code, wrong_optimizer
from edl_horovod.models.zoo import LoadedSpec

__all__ = ["InitialOptimizerState", "inner_optimizer", "make_optimizer", "slots_of"]

log = logging.getLogger(__name__)


def make_optimizer(
    loaded: LoadedSpec, model: keras.Model, learning_rate: float | None, *, scales_loss: bool
) -> keras.optimizers.Optimizer:
    """Make the optimizer of a training.

    It is not built yet, unless the model was loaded from a file together with its optimizer.

    Args:
        loaded: The user's spec.
        model: The built model.
        learning_rate: `train.learning_rate`; None keeps the optimizer's default.
        scales_loss: Whether the optimizer must scale the loss.

    Raises:
        UserCodeError: There is no optimizer, it is not a Keras optimizer, or making it failed.
    """
    if loaded.overrides_method("create_optimizer"):
        optimizer = loaded.optimizer(learning_rate)
    else:
        optimizer = _compiled_optimizer(loaded, model, learning_rate)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise wrong_optimizer(optimizer, f"create_optimizer of {loaded.label}")
    _warn_unused(loaded, model)
    wrapper = keras.optimizers.LossScaleOptimizer
    return wrapper(optimizer) if scales_loss and not isinstance(optimizer, wrapper) else optimizer


def inner_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Unwrap optimizers that scale the loss; return any other optimizer as it is."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


class InitialOptimizerState:
    """The state of a newly built optimizer, to restore it later."""

    def __init__(
        self, optimizer: keras.optimizers.Optimizer, trained: Sequence[keras.Variable]
    ) -> None:
        """Copy the state; a variable whose elements are all equal takes one number.

        Args:
            optimizer: The optimizer, just built.
            trained: The variables that the optimizer was built for.
        """
        inner = inner_optimizer(optimizer)
        self._copies = [
            pair for slots in slots_of(inner, trained) if _are_copies(slots) for pair in slots
        ]
        excluded = {id(slot) for _, slot in self._copies} | {id(vars(inner).get("_learning_rate"))}
        self._values = [
            (variable, _compact(variable.numpy()))
            for variable in optimizer.variables
            if id(variable) not in excluded
        ]

    def restore(self) -> None:
        """Reset the optimizer's variables except its learning rate."""
        for variable, value in self._values:
            variable.assign(np.broadcast_to(value, variable.shape))
        for variable, slot in self._copies:
            slot.assign(variable)


def slots_of(
    optimizer: keras.optimizers.Optimizer, trained: Sequence[keras.Variable]
) -> list[list[tuple[keras.Variable, keras.Variable]]]:
    """List the slots of a built optimizer: for each kind of slot, pairs (variable, slot)."""
    optimizer_variables = {id(variable) for variable in optimizer.variables}
    slot_lists = [
        value
        for value in vars(optimizer).values()
        if isinstance(value, list) and len(value) == len(trained)
    ]
    return [
        [
            (variable, slot)
            for variable, slot in zip(trained, slots, strict=True)
            if isinstance(slot, keras.Variable) and id(slot) in optimizer_variables
        ]
        for slots in slot_lists
    ]


def _are_copies(slots: Sequence[tuple[keras.Variable, keras.Variable]]) -> bool:
    """Whether slots start as copies of their variables, other than of constants such as biases."""
    values = [(variable.numpy(), slot.numpy()) for variable, slot in slots]
    are_equal = all(np.array_equal(variable, slot) for variable, slot in values)
    return are_equal and any(_compact(slot).ndim > 0 for _, slot in values)


def _compact(value: NDArray[Any]) -> NDArray[Any]:
    first = value.reshape(-1)[:1]
    is_constant = value.size > 0 and bool(np.all(value == first))
    return first.reshape(()) if is_constant else value.copy()


def _compiled_optimizer(
    loaded: LoadedSpec, model: keras.Model, learning_rate: float | None
) -> keras.optimizers.Optimizer:
    optimizer = model.optimizer if model.compiled else None
    if optimizer is None:
        raise UserCodeError(
            f"{loaded.label} has no optimizer.",
            hint="Define default_optimizer in the class, create_optimizer in the spec, or a"
            " function optimizer in its file; or compile the model with one, or set optimizer=...",
        )
    if learning_rate is not None:
        doing = f"Setting train.learning_rate on the compiled optimizer of {loaded.label}"
        with user_code(doing, root=loaded.zoo):
            optimizer.learning_rate = learning_rate
    return optimizer


def _warn_unused(loaded: LoadedSpec, model: keras.Model) -> None:
    """Log which arguments of the model's `compile` are ignored because the spec has them."""
    if not model.compiled:
        return
    methods = {"loss": "create_loss", "optimizer": "create_optimizer", "metrics": "create_metrics"}
    compiled = {
        "loss": model.loss,
        "optimizer": model.optimizer,
        "metrics": vars(model).get("_compile_metrics"),
    }
    unused = [
        key
        for key, value in compiled.items()
        if value is not None and loaded.overrides_method(methods[key])
    ]
    if unused:
        log.warning(
            "%s: the %s of the compiled model are ignored, because the spec has %s",
            loaded.label,
            " and ".join(unused),
            ", ".join(methods[key] for key in unused),
        )
