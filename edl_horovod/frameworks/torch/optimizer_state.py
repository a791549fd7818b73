"""The state of an optimizer, in tensors that exist from the start and are never replaced.

PyTorch's optimizers create the state of a parameter at its first step, and some of them initialise
it with that step's gradient. The ring's state, however, has the same variables for the whole job.
So a trial step determines the state's tensors, and the values of the real first step are copied to
them.

The numbers in an optimizer's groups and in a scheduler's state become one row. These structures
also contain texts and functions, but all ranks create them from the same code, so only the numbers
can differ.
"""

import contextlib
import math
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.torch.optimizer import BY_ELEMENTS, BY_PARAMETERS, Schedule
from edl_horovod.frameworks.torch.structures import leaves, map_leaves
from edl_horovod.frameworks.torch.variables import LiveVariable, TorchVariable
from edl_horovod.frameworks.values import StateGroup, Variable, state_groups
from edl_horovod.models.calling import user_code
from edl_horovod.models.zoo import LoadedSpec

_Number = bool | int | float


class OptimizerState:
    """The variables of an optimizer and its schedules in the ring's state."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedules: Sequence[Schedule],
        parameters: Mapping[str, nn.Parameter],
        sparse: Collection[str],
        loaded: LoadedSpec,
    ) -> None:
        """Run a trial step for each parameter, whose changes are undone.

        Args:
            optimizer: A new optimizer.
            schedules: Its schedules.
            parameters: The parameters that it trains or may train later, by name.
            sparse: Names of the parameters with sparse gradients.
            loaded: The user's spec, for messages.

        Raises:
            UserCodeError: The optimizer needs more than gradients for a step, or has state that
                cannot be part of the ring's state.
        """
        self._optimizer, self._schedules = optimizer, schedules
        self._parameters, self._sparse = dict(parameters), sparse
        self._label = f"{type(self._optimizer).__name__} of {loaded.label}"
        self._tensors: dict[str, dict[str, torch.Tensor]] = {}
        self._numbers: dict[str, dict[str, _Number]] = {}
        """Zeros of the types of the state's plain numbers, by parameter and key."""
        self._have_all_begun = False
        self._first_groups = [list(group["params"]) for group in self._optimizer.param_groups]
        held = {id(parameter) for group in self._first_groups for parameter in group}
        self._late = {name: p for name, p in self._parameters.items() if id(p) not in held}
        """Parameters in no group, which a callback may add later in new groups."""
        settings = list(_numbers_in(self._groups_and_schedules()))
        for parameter in self._parameters.values():
            parameter.grad = None
        if self._late:
            self._add_group(self._late)
        attributes = self._attributes()
        with self._without_hooks(), torch.no_grad():
            for number, (name, parameter) in enumerate(self._parameters.items()):
                with user_code(f"Trying {self._label}", root=loaded.zoo):
                    self._try(name, parameter)
                if number == 0:
                    # What the first step creates may be a constant.
                    attributes = self._attributes() | attributes
        for name, numbers in self._attributes().items():
            if numbers != attributes.get(name):
                raise self._unusable(f"the attribute {name!r}, which its steps change,")
        del self._optimizer.param_groups[len(self._first_groups) :]
        self._set_groups_and_schedules(iter(settings))
        numbers_per_group = len(list(_numbers_in(self._optimizer.defaults))) + len(self._schedules)
        self._num_settings = len(settings) + len(self._late) * numbers_per_group
        foreign = set(map(id, self._optimizer.state)) - set(map(id, self._parameters.values()))
        if foreign:
            raise self._unusable("state that belongs to no parameter")

    @property
    def variables(self) -> dict[str, Variable]:
        """All variables by name."""
        variables: dict[str, Variable] = {}
        for name, slots in self._tensors.items():
            for key, tensor in slots.items():
                full_name = f"optimizer/{name}/{key}"
                variables[full_name] = TorchVariable(full_name, tensor)
        if self._late:
            # They must be restored before the settings of these groups.
            indices = LiveVariable(self._group_indices, self._set_groups, np.int64)
            variables["optimizer/groups"] = indices
        variables["optimizer/settings"] = LiveVariable(self._settings, self._set_settings)
        variables["optimizer/begun"] = LiveVariable(self._begun, self._set_begun)
        return variables

    @property
    def slots(self) -> list[str]:
        """The names of the tensors among them that belong to a parameter, without scalars."""
        return [
            f"optimizer/{name}/{key}"
            for name, slots in self._tensors.items()
            for key, tensor in slots.items()
            if tensor.ndim
        ]

    @property
    def resettable(self) -> list[str]:
        """The names of all that steps have written: tensors, and whether there were steps.

        Schedules have counters of their own, among the settings.
        """
        tensors = [
            f"optimizer/{name}/{key}" for name, keys in self._tensors.items() for key in keys
        ]
        return [*tensors, "optimizer/begun"]

    def groups(
        self, variables: Mapping[str, Variable], model_variables: Iterable[str]
    ) -> list[StateGroup]:
        """Return the groups of a training step's variables.

        Args:
            variables: All variables of the step, by name.
            model_variables: The names of those that belong to the model.

        Returns:
            The groups; none for optimizers that are not PyTorch's own, as it is unknown which
            variables their updates depend on.
        """
        kind = type(self._optimizer)
        if kind not in BY_ELEMENTS | BY_PARAMETERS:
            return []
        optimized = []
        for name, tensors in self._tensors.items():
            # Scalars, such as the number of steps, are in no group.
            slots = [key for key, tensor in tensors.items() if tensor.ndim]
            names = [name, *(f"optimizer/{name}/{key}" for key in slots)]
            optimized.append((names, kind in BY_ELEMENTS))
        buffers = [
            name
            for name in model_variables
            if name not in self._parameters and 0 not in variables[name].shape
        ]
        return state_groups(variables, optimized, buffers)

    @property
    def waiting(self) -> list[nn.Parameter]:
        """Parameters that are not in a group yet."""
        if not self._late:
            return []
        indexed = zip(self._late.values(), self._group_indices(), strict=True)
        return [parameter for parameter, index in indexed if index < 0]

    def require_groups(self) -> None:
        """Refuse changes of groups that cannot be copied to other ranks; called after callbacks.

        Raises:
            UserCodeError: A callback changed the optimizer's groups in another way than by adding
                parameters of the module in a group whose settings the optimizer has.
        """
        groups = self._optimizer.param_groups
        num_first = len(self._first_groups)
        late = set(map(id, self._late.values()))
        known = {"params", "param_names", *self._optimizer.defaults}
        is_first_kept = len(groups) >= num_first and all(
            list(map(id, group["params"])) == list(map(id, first))
            for group, first in zip(groups, self._first_groups, strict=False)
        )
        if is_first_kept and all(
            known.issuperset(group) and late.issuperset(map(id, group["params"]))
            for group in groups[num_first:]
        ):
            return
        raise UserCodeError(
            f"A callback changed the parameter groups of {self._label} in a way that cannot reach"
            " the other ranks.",
            received=f"groups of {[len(group['params']) for group in groups]} parameters; at the"
            f" beginning they were {list(map(len, self._first_groups))}",
            hint="Call self.optimizer.add_param_group in the callback itself, with parameters of"
            " the module that are in no group, and only with settings that the optimizer has. Or"
            " create the optimizer with all parameters, set requires_grad of some to False, and"
            " set it to True in the callback: until then the optimizer skips them.",
        )

    def begin(self) -> None:
        """Run the first step of parameters that have had none, one parameter after the other.

        A single step for all of them would allocate all of their state a second time, beside the
        tensors here. Only PyTorch's own optimizers are known to update each parameter separately;
        other optimizers, and those with hooks, make the first step for all at once.

        Raises:
            UserCodeError: The optimizer has state that it did not have in the trial step.
        """
        if self._have_all_begun:
            return
        optimizer = self._optimizer
        hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
        if type(optimizer) not in BY_ELEMENTS | BY_PARAMETERS or any(hooks):
            return
        stateless = {
            name: parameter
            for name, parameter in self._parameters.items()
            if self._tensors[name] and not optimizer.state.get(parameter)
        }
        new = [name for name, parameter in stateless.items() if parameter.grad is not None]
        if not new:
            self._have_all_begun = not stateless
            return
        gradients = {name: parameter.grad for name, parameter in self._parameters.items()}
        for parameter in self._parameters.values():
            parameter.grad = None
        for name in new:
            parameter = self._parameters[name]
            parameter.grad = gradients.pop(name)
            optimizer.step()
            parameter.grad = None
            self._settle(name)
        for name, gradient in gradients.items():
            self._parameters[name].grad = gradient

    def settle(self) -> None:
        """Copy state that a step has created or replaced to the tensors of the ring's state.

        To be called after each step: the ring's state must keep its tensors.

        Raises:
            UserCodeError: The optimizer has state that it did not have in the trial step.
        """
        for name in self._parameters:
            self._settle(name)

    def _settle(self, name: str) -> None:
        state = self._optimizer.state.get(self._parameters[name]) or {}
        tensors, numbers = self._tensors[name], self._numbers[name]
        for key, value in state.items():
            tensor = tensors.get(key)
            if value is tensor or value is None or key in numbers:
                continue
            if isinstance(value, torch.Tensor):
                value = value.to_dense()
            if tensor is None or not isinstance(value, torch.Tensor):
                raise self._unusable(f"{key!r}, which it did not have after its first step,")
            if not torch.can_cast(value.dtype, tensor.dtype):
                raise self._unusable(f"{key!r} as {value.dtype}, first as {tensor.dtype},")
            tensor.copy_(value)
            state[key] = tensor

    def _attributes(self) -> dict[str, list[float]]:
        """Return the numbers in the optimizer's attributes that are no state of PyTorch's own."""
        return {
            key: list(_numbers_in(value))
            for key, value in vars(self._optimizer).items()
            if key not in ("state", "param_groups") and not isinstance(value, bool)
        }

    @contextlib.contextmanager
    def _without_hooks(self) -> Iterator[None]:
        """Keep the trial steps from the user's hooks, which may count or average real steps."""
        optimizer = self._optimizer
        before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
        optimizer._optimizer_step_pre_hooks = OrderedDict()
        optimizer._optimizer_step_post_hooks = OrderedDict()
        try:
            yield
        finally:
            optimizer._optimizer_step_pre_hooks = before
            optimizer._optimizer_step_post_hooks = after

    def _try(self, name: str, parameter: nn.Parameter) -> None:
        """Run a trial step for a parameter, record its state's form, and restore the old state."""
        optimizer = self._optimizer
        before = {
            key: value.clone() if isinstance(value, torch.Tensor) else value
            for key, value in optimizer.state.get(parameter, {}).items()
        }
        value = parameter.detach().clone()
        zeros = torch.zeros_like(parameter)
        parameter.grad = zeros.to_sparse(1) if name in self._sparse else zeros
        optimizer.step()
        parameter.grad = None
        parameter.copy_(value)
        tensors: dict[str, torch.Tensor] = {}
        numbers: dict[str, _Number] = {}
        for key, new in optimizer.state.get(parameter, {}).items():
            if isinstance(new, torch.Tensor):
                tensors[key] = new.detach().to_dense()
                tensors[key].zero_()
            elif isinstance(new, _Number):
                numbers[key] = type(new)(0)
            elif new is not None:
                raise self._unusable(f"{key!r}, a {type(new).__name__},")
        self._tensors[name], self._numbers[name] = tensors, numbers
        # Some optimizers create their state before the first step.
        state = optimizer.state.pop(parameter, {})
        for key, old in before.items():
            state[key] = tensors[key].copy_(old) if key in tensors else old
        if before:
            optimizer.state[parameter] = state

    def _unusable(self, content: str) -> UserCodeError:
        return UserCodeError(
            f"The state of {self._label} contains {content} in addition to tensors and numbers of"
            " each parameter. That cannot be part of the ring's state.",
            hint="Use an optimizer with only tensors and numbers for each parameter, such as any of"
            " torch.optim except LBFGS.",
        )

    # Settings: the numbers of groups and schedules.

    def _groups_and_schedules(self) -> list[Any]:
        """Return the settings of all groups, and the states of all schedules, as plain values."""
        num_first = len(self._first_groups)
        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self._optimizer.param_groups[:num_first]
        ]
        # An added group may have its settings in any order; take them in the order of the defaults.
        groups += [
            {key: group[key] for key in self._optimizer.defaults}
            for group in self._optimizer.param_groups[num_first:]
        ]
        states = [schedule.scheduler.state_dict() for schedule in self._schedules]
        for state in states:
            if self._late and "_last_lr" in state:
                # A scheduler has no rate yet for groups that were added since its last step.
                rates = [group["lr"] for group in groups]
                state["_last_lr"] = [*state["_last_lr"], *rates[len(state["_last_lr"]) :]]
        return [groups, states]

    def _set_groups_and_schedules(self, numbers: Iterator[float]) -> None:
        """Replace each number in the groups' settings and the schedules' states, in their order."""
        groups, states = _with_numbers(self._groups_and_schedules(), numbers)
        for group, changed in zip(self._optimizer.param_groups, groups, strict=True):
            group.update(changed)
        for schedule, state in zip(self._schedules, states, strict=True):
            schedule.scheduler.load_state_dict(state)

    def _settings(self) -> list[float]:
        numbers = list(_numbers_in(self._groups_and_schedules()))
        if not self._late:
            return numbers
        if len(numbers) > self._num_settings:
            raise self._unusable("schedulers with more than one number for each added group,")
        return [len(numbers), *numbers, *[0.0] * (self._num_settings - len(numbers))]

    def _set_settings(self, values: NDArray[Any]) -> None:
        numbers = iter(values.tolist())
        if self._late and next(numbers) != len(list(_numbers_in(self._groups_and_schedules()))):
            raise self._unusable("schedulers whose numbers changed when a group was added,")
        self._set_groups_and_schedules(numbers)

    # Groups that callbacks have added.

    def _add_group(self, parameters: Mapping[str, nn.Parameter]) -> None:
        is_named = "param_names" in self._optimizer.param_groups[0]
        added = list(parameters.items()) if is_named else list(parameters.values())
        self._optimizer.add_param_group({"params": added})

    def _group_indices(self) -> list[int]:
        """The index of the group of each parameter in `_late`; -1 for none."""
        groups = enumerate(self._optimizer.param_groups)
        index_of = {id(param): index for index, group in groups for param in group["params"]}
        return [index_of.get(id(parameter), -1) for parameter in self._late.values()]

    def _set_groups(self, indices: NDArray[Any]) -> None:
        if indices.tolist() == self._group_indices():
            return
        del self._optimizer.param_groups[len(self._first_groups) :]
        for index in range(len(self._first_groups), max(indices.tolist()) + 1):
            named = zip(self._late.items(), indices.tolist(), strict=True)
            self._add_group(dict(item for item, item_index in named if item_index == index))

    # Whether each parameter has had a step, and the plain numbers of its state.

    def _begun(self) -> list[float]:
        numbers: list[float] = []
        for name, parameter in self._parameters.items():
            state = self._optimizer.state.get(parameter, {})
            numbers.append(float(bool(state)))
            numbers += [float(state.get(key, zero)) for key, zero in self._numbers[name].items()]
        return numbers

    def _set_begun(self, values: NDArray[Any]) -> None:
        numbers = iter(np.asarray(values).tolist())
        self._have_all_begun = False
        for name, parameter in self._parameters.items():
            has_begun = bool(next(numbers))
            zeros = self._numbers[name].items()
            slot_numbers = {key: _with_type_of(zero, next(numbers)) for key, zero in zeros}
            if has_begun:
                self._optimizer.state[parameter] = {**self._tensors[name], **slot_numbers}
            else:
                self._optimizer.state.pop(parameter, None)


class TorchOuterOptimizer:
    """Implements `base.OuterOptimizer` by an optimizer of PyTorch."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        trained: Mapping[str, nn.Parameter],
        state: OptimizerState,
    ) -> None:
        """Use an optimizer of the trained parameters, by name."""
        self._optimizer, self._trained, self._state = optimizer, dict(trained), state

    @property
    def variables(self) -> dict[str, Variable]:
        """The optimizer's variables, by name."""
        return self._state.variables

    def apply(self, changes: Mapping[str, NDArray[Any]]) -> None:
        """Change the model's parameters."""
        for name, change in changes.items():
            parameter = self._trained[name]
            parameter.grad = torch.as_tensor(-change).to(parameter)
        self._state.begin()
        self._optimizer.step()
        self._state.settle()
        for parameter in self._trained.values():
            parameter.grad = None


def _numbers_in(value: Any) -> Iterator[float]:
    """Yield the numbers of a structure, in order; texts, functions and None are skipped."""
    for leaf in leaves(value):
        if isinstance(leaf, _Number):
            yield float(leaf)
        elif isinstance(leaf, torch.Tensor):
            yield from leaf.double().flatten().tolist()


def _with_type_of(value: _Number, number: float) -> _Number:
    """Convert a number to the type of `value`, unless that changes it.

    The learning rate of `SGD(lr=1)` is an int first, and its schedule may set it to 0.5.
    """
    converted = type(value)(number) if math.isfinite(number) else number
    return converted if converted == number else number


def _with_numbers(value: Any, numbers: Iterator[float]) -> Any:
    """Return a copy of a structure with other numbers; its tensors are changed in place.

    Args:
        value: A structure that `_numbers_in` accepts.
        numbers: The new numbers, in the order of `_numbers_in`.
    """

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, _Number):
            return _with_type_of(leaf, next(numbers))
        if isinstance(leaf, torch.Tensor):
            row = torch.tensor([next(numbers) for _ in range(leaf.numel())], dtype=torch.float64)
            leaf.copy_(row.reshape(leaf.shape))
        return leaf

    return map_leaves(changed, value)
