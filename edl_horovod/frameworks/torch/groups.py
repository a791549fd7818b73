"""Which variables of a model and its optimizer a step changes by each other's values (D18)."""

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
    """The groups of a training step's variables.

    Args:
        variables: All, by name.
        trained: The parameters that the optimizer holds, by name.
        state: What it keeps of them.
        optimizer: Of the training.

    Returns:
        The groups; none for optimizers that are not PyTorch's own, as nobody can say what they look
        at.
    """
    kind = type(optimizer)
    if kind not in BY_ELEMENTS | BY_PARAMETERS:
        return []
    found = []
    for name, parameter in trained.items():
        kept = state.slots_of(name)
        # Numbers of steps and their like go first, with all that belongs to no group.
        slots = [key for key, tensor in kept.items() if tensor.ndim]
        is_alike = all(kept[key].shape == parameter.shape for key in slots) and parameter.ndim > 0
        names = (name, *(f"optimizer/{name}/{key}" for key in slots))
        found.append(StateGroup(names, is_by_rows=is_alike and kind in BY_ELEMENTS))
    known = {name for group in found for name in group.names}
    # Each number of the model's others follows from the same one of a sum over the ring, or never
    # changes.
    found += [
        StateGroup((name,), is_by_rows=len(tuple(variable.shape)) > 0)
        for name, variable in variables.items()
        if name not in known
        and not name.startswith("optimizer/")
        and num_bytes(variable.shape, variable.dtype) > 0
        and name not in ("random", "loss_scale")
    ]
    grouped = {name for group in found for name in group.names}
    others = [each for name, each in variables.items() if name not in grouped]
    is_known = all(num_bytes(each.shape, each.dtype) <= _SMALL_BYTES for each in others)
    return found if is_known else []
