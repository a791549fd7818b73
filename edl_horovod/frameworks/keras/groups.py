"""Which variables of a model and its optimizer a step changes by each other's values (D18)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import keras

from edl_horovod.frameworks.keras.optimizer import inner_optimizer, slots_of
from edl_horovod.frameworks.values import StateGroup, Variable, num_bytes

__all__ = ["groups_of"]

_BY_ELEMENTS = {
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
"""Those that change each number by the same one of its slots and of the gradient."""
_BY_VARIABLES = {
    keras.optimizers.Adafactor,
    keras.optimizers.Lamb,
    keras.optimizers.Muon,
}
"""Those that change a variable by its own slots and gradient, but by norms over all of it."""
_SMALL_BYTES = 1 << 16


def groups_of(
    variables: Mapping[str, Variable],
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    trained: Sequence[keras.Variable],
) -> list[StateGroup]:
    """The groups of a training step's variables.

    A variable that is frozen now is a group as it is when it is trained: what no step changes is
    as good as what steps keep current.

    Args:
        variables: All, by name.
        model: Of them.
        optimizer: Built.
        trained: The variables that it was built for.

    Returns:
        The groups. None for optimizers that are not Keras' own: nobody can say what they look at.
        And none where it adds up gradients over steps, as it may bound the sum over all variables.
    """
    optimizer = inner_optimizer(optimizer)
    kind = type(optimizer)
    if kind not in _BY_ELEMENTS | _BY_VARIABLES or optimizer.gradient_accumulation_steps:
        return []
    names = {id(variable): name for name, variable in variables.items()}
    slots: dict[int, list[keras.Variable]] = defaultdict(list)
    for pairs in slots_of(optimizer, trained):
        for variable, slot in pairs:
            slots[id(variable)].append(slot)
    known = {id(variable) for variable in trained}
    found = []
    for variable in trained:
        members = [variable, *slots[id(variable)]]
        is_alike = len({tuple(each.shape) for each in members}) == 1 and len(variable.shape) > 0
        # A constraint may bound a norm over rows.
        by_rows = is_alike and kind in _BY_ELEMENTS and variable.constraint is None
        found.append(StateGroup(tuple(names[id(each.value)] for each in members), by_rows))
    # Each number of theirs follows from the same one of a sum over the ring, or never changes.
    found += [
        StateGroup((names[id(each.value)],), is_by_rows=len(each.shape) > 0)
        for each in model.variables
        if id(each) not in known
    ]
    grouped = {name for group in found for name in group.names}
    others = [each for name, each in variables.items() if name not in grouped]
    is_known = all(num_bytes(each.shape, each.dtype) <= _SMALL_BYTES for each in others)
    return found if is_known else []
