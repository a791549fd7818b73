"""A training's optimizer: the spec's, else the one that the model was compiled with.

Its learning rate can be scaled where the optimizer uses it, and nowhere else. Scaling the gradients
would only be equivalent for plain SGD: Adam and others divide by the gradients' magnitude. So the
optimizer itself must see the scaled rate, also for its weight decay. It sees it only where an
update is traced: its variable, and so the user's callbacks, the ring's state and checkpoints, keep
the unscaled value.
"""

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.values import StateGroup, Variable, state_groups
from edl_horovod.models.calling import OPTIMIZER_HINT, user_code
from edl_horovod.models.zoo import LoadedSpec

log = logging.getLogger(__name__)

_ELEMENTWISE = {
    keras.optimizers.Adadelta,
    keras.optimizers.Adagrad,
    keras.optimizers.Adam,
    keras.optimizers.AdamW,
    keras.optimizers.Adamax,
    keras.optimizers.Ftrl,
    keras.optimizers.Lion,
    keras.optimizers.Nadam,
    keras.optimizers.RMSprop,
    keras.optimizers.SGD,
}
"""Optimizers whose update of an element uses only the same element of slots and gradient."""
_VARIABLEWISE = {keras.optimizers.Adafactor, keras.optimizers.Lamb, keras.optimizers.Muon}
"""Optimizers whose update uses only the variable's slots and gradient, but norms over all of it."""
_COUNTING_STEPS = (
    *(keras.optimizers.Adafactor, keras.optimizers.Adam, keras.optimizers.Adamax),
    *(keras.optimizers.Lamb, keras.optimizers.Muon, keras.optimizers.Nadam),
)
"""Optimizers whose update uses the number of steps, as to correct the bias of moments."""


def make_optimizer(
    loaded: LoadedSpec, model: keras.Model, learning_rate: float | None
) -> keras.optimizers.Optimizer:
    """Make the optimizer of a training.

    It is not built yet, unless the model was loaded from a file together with its optimizer.

    Args:
        loaded: The user's spec.
        model: The built model.
        learning_rate: `train.learning_rate`; None keeps the optimizer's default.

    Raises:
        UserCodeError: There is no optimizer, it is not a Keras optimizer, or making it failed.
    """
    if loaded.overrides_method("create_optimizer"):
        optimizer = loaded.optimizer(learning_rate)
    else:
        optimizer = _compiled_optimizer(loaded, model, learning_rate)
    optimizer = require_optimizer(optimizer, f"create_optimizer of {loaded.label}")
    _warn_unused(loaded, model)
    return optimizer


def require_optimizer(optimizer: Any, label: str) -> keras.optimizers.Optimizer:
    """Return what a function, called `label` in messages, returned, if it is an optimizer.

    Raises:
        UserCodeError: It is not a Keras 3 optimizer.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise wrong_optimizer(optimizer, label)
    return optimizer


def scaling_loss(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Let an optimizer scale the loss dynamically, if it does not do so already."""
    wrapper = keras.optimizers.LossScaleOptimizer
    return optimizer if isinstance(optimizer, wrapper) else wrapper(optimizer)


def wrong_optimizer(returned: object, label: str) -> UserCodeError:
    """The error for a function, called `label` in messages, that returned no Keras 3 optimizer."""
    return UserCodeError(
        f"{label} must return a Keras 3 optimizer.",
        received=type(returned).__name__,
        hint=f"{OPTIMIZER_HINT}.",
    )


def inner_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Unwrap optimizers that scale the loss; return any other optimizer as it is."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def slots_of(
    optimizer: keras.optimizers.Optimizer, trained: Sequence[keras.Variable]
) -> list[list[tuple[keras.Variable, keras.Variable]]]:
    """List the slots of a built optimizer: for each kind of slot, pairs (variable, slot)."""
    attributes = vars(optimizer)
    # The list of all variables of plain SGD holds these two alone, and would look like the slots of
    # a model with two variables.
    not_slots = {id(attributes.get("_iterations")), id(attributes.get("_learning_rate"))}
    slot_ids = {id(variable) for variable in optimizer.variables} - not_slots
    return [
        [
            (variable, slot)
            for variable, slot in zip(trained, slots, strict=True)
            if isinstance(slot, keras.Variable) and id(slot) in slot_ids
        ]
        for slots in attributes.values()
        if isinstance(slots, list) and len(slots) == len(trained)
    ]


def state_of(
    optimizer: keras.optimizers.Optimizer, trained: Sequence[keras.Variable], *, label: str
) -> list[keras.Variable]:
    """List the variables of an optimizer that have their first values in a new one.

    A schedule of the learning rate goes on, so the number of steps, which it uses, is not among
    them.

    Args:
        optimizer: The optimizer, just built, not one that scales the loss.
        trained: The variables that the optimizer was built for.
        label: Name of the model in messages.

    Raises:
        UserCodeError: The optimizer itself uses that number, too, or it has weights in its state.
    """
    parts = (optimizer, *getattr(optimizer, "optimizers", ()))
    trained_by = {id(part): part._trainable_variables for part in parts[1:]}
    if any(
        part.use_ema or any(map(_are_copies, slots_of(part, trained_by.get(id(part), trained))))
        for part in parts
    ):
        raise UserCodeError(
            f"The optimizer of {label} cannot begin each round with its first state, because that"
            " contains weights of the model or becomes their mean.",
            received=" and ".join(f"{type(it).__name__} with use_ema={it.use_ema}" for it in parts),
            hint="Use an optimizer without use_ema, and not ScheduleFreeAdamW.",
        )
    not_reset = set()
    for part in parts:
        attributes = vars(part)
        rate = attributes.get("_learning_rate")
        if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            not_reset.add(id(rate))
            continue
        if isinstance(part, _COUNTING_STEPS):
            raise UserCodeError(
                f"The optimizer of {label} cannot begin each round with its first state: its number"
                " of steps is also that of its learning-rate schedule, which goes on.",
                received=f"{type(part).__name__} with {type(rate).__name__}",
                hint="Use a constant learning rate, or an optimizer that does not use its number of"
                " steps, such as RMSprop or SGD with momentum. Without parties,"
                " train.local.inner_state=average and keep work, too.",
            )
        not_reset.add(id(attributes["_iterations"]))
    return [variable for variable in optimizer.variables if id(variable) not in not_reset]


def resetter_of(
    optimizer: keras.optimizers.Optimizer, trained: Sequence[keras.Variable]
) -> Callable[[], None]:
    """Return a function that resets a newly built optimizer, except its learning rate.

    Its state is copied; a variable whose elements are all equal takes one number.

    Args:
        optimizer: The optimizer, just built.
        trained: The variables that the optimizer was built for.
    """
    inner = inner_optimizer(optimizer)
    copies = [pair for slots in slots_of(inner, trained) if _are_copies(slots) for pair in slots]
    excluded = {id(slot) for _, slot in copies} | {id(vars(inner).get("_learning_rate"))}
    values = [
        (variable, _compact(variable.numpy()))
        for variable in optimizer.variables
        if id(variable) not in excluded
    ]

    def reset() -> None:
        for variable, value in values:
            variable.assign(np.broadcast_to(value, variable.shape))
        for variable, slot in copies:
            slot.assign(variable)

    return reset


class ScaledLearningRate:
    """The learning rate of an optimizer, multiplied by a variable factor."""

    def __init__(self, optimizer: keras.optimizers.Optimizer, *, label: str) -> None:
        """Check the optimizer.

        Args:
            optimizer: The user's optimizer.
            label: Name of the model in messages.

        Raises:
            UserCodeError: The learning rate is stored in an unknown way and cannot be scaled.
        """
        self._factor = tf.Variable(1.0, trainable=False)
        self._optimizer = inner_optimizer(optimizer)
        # The public property returns the value of a schedule, not the schedule.
        rate = vars(self._optimizer).get("_learning_rate")
        if not isinstance(rate, keras.Variable) and not callable(rate):
            raise UserCodeError(
                f"The learning rate of the optimizer of {label} cannot be scaled by the size of"
                " the ring.",
                received=f"{type(self._optimizer).__name__} with learning rate {rate!r}",
                hint="Pass learning_rate to the constructor of keras.optimizers.Optimizer, or set"
                " elastic.batching=global.",
            )

    def scale(self, factor: float) -> None:
        """Set the factor for the following updates."""
        self._factor.assign(factor)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Scale the optimizer's rate for the ops that are traced within this context."""
        unscaled_rate = self._optimizer._get_current_learning_rate

        def scaled_rate() -> tf.Tensor:
            rate = tf.convert_to_tensor(unscaled_rate())
            return rate * tf.cast(self._factor, rate.dtype)

        # Keras has no public hook between the rate, or its schedule, and the updates.
        vars(self._optimizer)["_get_current_learning_rate"] = scaled_rate
        try:
            yield
        finally:
            del vars(self._optimizer)["_get_current_learning_rate"]


class KerasOuterOptimizer:
    """Implements `base.OuterOptimizer` by an optimizer of Keras."""

    def __init__(
        self, optimizer: keras.optimizers.Optimizer, trained: Mapping[str, keras.Variable]
    ) -> None:
        """Build the optimizer for the trained variables, by name."""
        self._optimizer, self._trained = optimizer, dict(trained)
        optimizer.build(list(trained.values()))

    @property
    def variables(self) -> dict[str, Variable]:
        """The optimizer's variables, by name."""
        return {variable.path: variable.value for variable in self._optimizer.variables}

    def apply(self, changes: Mapping[str, NDArray[Any]]) -> None:
        """Change the model's variables."""
        variables = [self._trained[name] for name in changes]
        gradients = [
            tf.cast(-change, variable.value.dtype)
            for change, variable in zip(changes.values(), variables, strict=True)
        ]
        self._optimizer.apply(gradients, variables)


def groups_of(
    variables: Mapping[str, Variable],
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    trained: Sequence[keras.Variable],
) -> list[StateGroup]:
    """Group a training step's variables.

    A variable that is frozen now is grouped as if it were trained: steps do not change it, so its
    group stays consistent.

    Args:
        variables: All variables of the model and the optimizer, by name.
        model: The model that is trained.
        optimizer: The built optimizer.
        trained: The variables that the optimizer was built for.

    Returns:
        The groups. Empty for optimizers that Keras does not define, because the dependencies of
        their updates are unknown. Empty also for an optimizer that accumulates gradients over
        steps, because it may clip the sum by a norm over all variables.
    """
    optimizer = inner_optimizer(optimizer)
    optimizer_class = type(optimizer)
    if optimizer_class not in _ELEMENTWISE | _VARIABLEWISE or optimizer.gradient_accumulation_steps:
        return []
    names = {id(variable): name for name, variable in variables.items()}
    slots: dict[int, list[keras.Variable]] = defaultdict(list)
    for pairs in slots_of(optimizer, trained):
        for variable, slot in pairs:
            slots[id(variable)].append(slot)
    trained_ids = {id(variable) for variable in trained}
    optimized = [
        (
            [names[id(member.value)] for member in (variable, *slots[id(variable)])],
            # A constraint may limit a norm over rows.
            optimizer_class in _ELEMENTWISE and variable.constraint is None,
        )
        for variable in trained
    ]
    others = [names[id(v.value)] for v in model.variables if id(v) not in trained_ids]
    return state_groups(variables, optimized, others)


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
    compiled = {
        "loss": model.loss,
        "optimizer": model.optimizer,
        "metrics": vars(model).get("_compile_metrics"),
    }
    methods = {key: f"create_{key}" for key, value in compiled.items() if value is not None}
    unused = {key: name for key, name in methods.items() if loaded.overrides_method(name)}
    if unused:
        log.warning(
            "%s: the %s of the compiled model are ignored, because the spec has %s",
            loaded.label,
            " and ".join(unused),
            ", ".join(unused.values()),
        )
