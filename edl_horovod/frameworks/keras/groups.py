"""Group the variables of a model and its optimizer that depend on each other in a step (D18)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import keras

from edl_horovod.frameworks.keras.optimizer import inner_optimizer, slots_of
from edl_horovod.frameworks.values import StateGroup, Variable, num_bytes

__all__ = ["groups_of"]

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
_VARIABLEWISE = {
    keras.optimizers.Adafactor,
    keras.optimizers.Lamb,
    keras.optimizers.Muon,
}
"""Optimizers whose update uses only the variable's slots and gradient, but norms over all of it."""
_SMALL_BYTES = 1 << 16


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
    groups = []
    for variable in trained:
        members = [variable, *slots[id(variable)]]
        has_one_shape = (
            len({tuple(member.shape) for member in members}) == 1 and len(variable.shape) > 0
        )
        # A constraint may limit a norm over rows.
        by_rows = has_one_shape and optimizer_class in _ELEMENTWISE and variable.constraint is None
        groups.append(StateGroup(tuple(names[id(member.value)] for member in members), by_rows))
    # Each element depends on the same element of a sum over the ring, or never changes.
    groups += [
        StateGroup((names[id(variable.value)],), is_by_rows=len(variable.shape) > 0)
        for variable in model.variables
        if id(variable) not in trained_ids
    ]
    grouped = {name for group in groups for name in group.names}
    ungrouped = [variable for name, variable in variables.items() if name not in grouped]
    all_small = all(
        num_bytes(variable.shape, variable.dtype) <= _SMALL_BYTES for variable in ungrouped
    )
    return groups if all_small else []
