"""Groups of variables of a model and its optimizer whose updates are independent (D18)."""

from collections.abc import Mapping

import torch
from torch import nn

from edl_horovod.frameworks.torch.optimizer import BY_ELEMENTS, BY_PARAMETERS
from edl_horovod.frameworks.torch.optimizer_state import OptimizerState
from edl_horovod.frameworks.values import StateGroup, Variable, num_bytes

__all__ = ["groups_of"]

_SMALL_BYTES = 1 << 16


def groups_of(
    variables: Mapping[str, Variable],
    trained: Mapping[str, nn.Parameter],
    state: OptimizerState,
    optimizer: torch.optim.Optimizer,
) -> list[StateGroup]:
    """Return the groups of a training step's variables.

    Args:
        variables: All variables of the step, by name.
        trained: The parameters that the optimizer holds, by name.
        state: The optimizer's state.
        optimizer: The optimizer of the training.

    Returns:
        The groups; none for optimizers that are not PyTorch's own, as it is unknown which variables
        their updates depend on.
    """
    kind = type(optimizer)
    if kind not in BY_ELEMENTS | BY_PARAMETERS:
        return []
    groups = []
    for name, parameter in trained.items():
        slots = state.slots_of(name)
        # Scalars, such as the number of steps, are in no group.
        slot_names = [key for key, tensor in slots.items() if tensor.ndim]
        has_same_shapes = (
            all(slots[key].shape == parameter.shape for key in slot_names) and parameter.ndim > 0
        )
        names = (name, *(f"optimizer/{name}/{key}" for key in slot_names))
        groups.append(StateGroup(names, is_by_rows=has_same_shapes and kind in BY_ELEMENTS))
    optimized = {name for group in groups for name in group.names}
    # The model's other variables are buffers: each element depends only on the same element of
    # a sum over the ring, or never changes.
    groups += [
        StateGroup((name,), is_by_rows=len(tuple(variable.shape)) > 0)
        for name, variable in variables.items()
        if name not in optimized
        and not name.startswith("optimizer/")
        and num_bytes(variable.shape, variable.dtype) > 0
        and name not in ("random", "loss_scale")
    ]
    grouped = {name for group in groups for name in group.names}
    ungrouped = [variable for name, variable in variables.items() if name not in grouped]
    are_small = all(
        num_bytes(variable.shape, variable.dtype) <= _SMALL_BYTES for variable in ungrouped
    )
    return groups if are_small else []
