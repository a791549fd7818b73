"""What an optimizer keeps, in tensors that are there from the start and stay the same.

PyTorch's optimizers make what they keep of a parameter at its first step, and some of them begin it
with that step's gradient. The ring's state, however, has the same variables as long as a job lives.
So a trial tells what will be kept; its tensors wait, and take over what a first step makes.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.torch.live import LiveVariable
from edl_horovod.frameworks.torch.numbers import numbers_in, with_numbers, with_type_of
from edl_horovod.frameworks.torch.optimizer import BY_ELEMENTS, BY_PARAMETERS, Optimization
from edl_horovod.frameworks.torch.variables import TorchVariable
from edl_horovod.frameworks.values import Variable
from edl_horovod.models.calling import user_code
from edl_horovod.models.zoo import LoadedSpec

__all__ = ["OptimizerState"]

_Number = bool | int | float


class OptimizerState:
    """The variables of an optimizer and its schedules."""

    def __init__(
        self,
        optimization: Optimization,
        parameters: Mapping[str, nn.Parameter],
        sparse: Collection[str],
        loaded: LoadedSpec,
    ) -> None:
        """Try the optimizer on one parameter after the other, which nothing shows of afterwards.

        Args:
            optimization: New.
            parameters: Those that it trains, by name.
            sparse: Names of those whose gradients are sparse.
            loaded: The user's spec, for messages.

        Raises:
            UserCodeError: The optimizer cannot make a step by the gradients alone, or keeps what
                cannot travel with the ring's state.
        """
        self._optimizer = optimization.optimizer
        self._schedules = optimization.schedules
        self._parameters, self._sparse = dict(parameters), sparse
        self._label = f"{type(self._optimizer).__name__} of {loaded.label}"
        self._tensors: dict[str, dict[str, torch.Tensor]] = {}
        self._numbers: dict[str, dict[str, _Number]] = {}
        """What stands in for numbers that are not there yet."""
        self._have_all_begun = False
        self._first_groups = [list(group["params"]) for group in self._optimizer.param_groups]
        held = {id(each) for group in self._first_groups for each in group}
        self._late = {name: p for name, p in self._parameters.items() if id(p) not in held}
        """Those that a callback may add in a group of their own."""
        settings = list(numbers_in(self._parts()))
        for parameter in self._parameters.values():
            parameter.grad = None
        if self._late:
            self._add_group(self._late)
        for name, parameter in self._parameters.items():
            with user_code(f"Trying {self._label}", root=loaded.zoo), torch.no_grad():
                self._try(name, parameter)
        del self._optimizer.param_groups[len(self._first_groups) :]
        self._take_parts(iter(settings))
        more = len(list(numbers_in(self._optimizer.defaults))) + len(self._schedules)
        self._num_settings = len(settings) + len(self._late) * more
        foreign = set(map(id, self._optimizer.state)) - set(map(id, self._parameters.values()))
        if foreign:
            raise self._unusable("something that belongs to no parameter")

    @property
    def variables(self) -> dict[str, Variable]:
        """All of them, by name."""
        found: dict[str, Variable] = {}
        for name, kept in self._tensors.items():
            for key, tensor in kept.items():
                full = f"optimizer/{name}/{key}"
                found[full] = TorchVariable(full, tensor)
        if self._late:
            # Before the settings of these groups.
            found["optimizer/groups"] = LiveVariable(self._group_of, self._put_groups, np.int64)
        found["optimizer/settings"] = LiveVariable(self._settings, self._put_settings)
        found["optimizer/begun"] = LiveVariable(self._begun, self._put_begun)
        return found

    def slots_of(self, name: str) -> dict[str, torch.Tensor]:
        """The tensors that are kept of a parameter, by the optimizer's names of them."""
        return self._tensors[name]

    @property
    def waiting(self) -> list[nn.Parameter]:
        """Parameters that no group holds yet."""
        if not self._late:
            return []
        places = zip(self._late.values(), self._group_of(), strict=True)
        return [parameter for parameter, place in places if place < 0]

    def require_groups(self) -> None:
        """Refuse groups that cannot be had on every rank; to be called after callbacks.

        Raises:
            UserCodeError: A callback changed the optimizer's groups in another way than by adding
                some of the module's parameters in a group with the optimizer's own settings.
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
            received=f"groups of {[len(group['params']) for group in groups]} parameters, which"
            f" were {list(map(len, self._first_groups))} at the beginning",
            cure="Have the callback call self.optimizer.add_param_group itself, with parameters of"
            " the module that are in no group, and settings that the optimizer has. Or make the"
            " optimizer of all parameters, set requires_grad of some to False, and have the"
            " callback set it to True: until then the optimizer passes them over.",
        )

    def begin(self) -> None:
        """Make the steps of parameters that have made none yet, one after the other.

        A step of all of them would make all that is kept of them once more, beside our tensors that
        wait for it. Only PyTorch's own optimizers are known to change each parameter by itself;
        those of others, and those that somebody hooked, step for all at once.

        Raises:
            UserCodeError: It keeps something that it did not keep in the trial.
        """
        if self._have_all_begun:
            return
        optimizer = self._optimizer
        hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
        if type(optimizer) not in BY_ELEMENTS | BY_PARAMETERS or any(hooks):
            return
        new = [
            name
            for name, parameter in self._parameters.items()
            if parameter.grad is not None
            and self._tensors[name]
            and not optimizer.state.get(parameter)
        ]
        if not new:
            self._have_all_begun = all(
                optimizer.state.get(parameter) or not self._tensors[name]
                for name, parameter in self._parameters.items()
            )
            return
        gradients = {name: each.grad for name, each in self._parameters.items()}
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
        """Put into our tensors what a step has made or replaced; to be called after each.

        Raises:
            UserCodeError: It keeps something that it did not keep in the trial.
        """
        for name in self._parameters:
            self._settle(name)

    def _settle(self, name: str) -> None:
        state = self._optimizer.state.get(self._parameters[name]) or {}
        tensors, numbers = self._tensors[name], self._numbers[name]
        for key, value in state.items():
            mine = tensors.get(key)
            if value is mine or value is None or key in numbers:
                continue
            if isinstance(value, torch.Tensor):
                value = value.to_dense()
            if mine is None or not isinstance(value, torch.Tensor):
                raise self._unusable(f"{key!r}, which it did not keep at its first step")
            if not torch.can_cast(value.dtype, mine.dtype):
                raise self._unusable(f"{key!r} as {value.dtype}, first as {mine.dtype},")
            mine.copy_(value)
            state[key] = mine

    def _try(self, name: str, parameter: nn.Parameter) -> None:
        """Find out what a step keeps of a parameter, and begin with nothing of it."""
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
        for key, kept in optimizer.state.get(parameter, {}).items():
            if isinstance(kept, torch.Tensor):
                tensors[key] = kept.detach().to_dense()
                tensors[key].zero_()
            elif isinstance(kept, _Number):
                numbers[key] = type(kept)(0)
            elif kept is not None:
                raise self._unusable(f"{key!r}, a {type(kept).__name__},")
        self._tensors[name], self._numbers[name] = tensors, numbers
        # Some have what they keep from the start.
        state = optimizer.state.pop(parameter, {})
        if before:
            for key, kept in before.items():
                if key in tensors:
                    state[key] = tensors[key].copy_(kept)
                else:
                    state[key] = kept
            optimizer.state[parameter] = state

    def _unusable(self, what: str) -> UserCodeError:
        return UserCodeError(
            f"{self._label} keeps {what} beside tensors and numbers of each parameter, and that"
            " cannot travel with the ring's state.",
            cure="Use an optimizer that keeps tensors and numbers of each parameter, as those of"
            " torch.optim do, LBFGS apart.",
        )

    # Settings: the numbers of groups and schedules.

    def _parts(self) -> list[Any]:
        num_first = len(self._first_groups)
        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self._optimizer.param_groups[:num_first]
        ]
        # A group that was added has its settings in the order in which they were given.
        groups += [
            {key: group[key] for key in self._optimizer.defaults}
            for group in self._optimizer.param_groups[num_first:]
        ]
        states = [each.scheduler.state_dict() for each in self._schedules]
        for state in states:
            if self._late and "_last_lr" in state:
                # Where a group was added since the scheduler's last step, it lacks that one.
                rates = [group["lr"] for group in groups]
                state["_last_lr"] = [*state["_last_lr"], *rates[len(state["_last_lr"]) :]]
        return [groups, states]

    def _take_parts(self, numbers: Iterator[float]) -> None:
        groups, states = with_numbers(self._parts(), numbers)
        for group, changed in zip(self._optimizer.param_groups, groups, strict=True):
            group.update(changed)
        for each, state in zip(self._schedules, states, strict=True):
            each.scheduler.load_state_dict(state)

    def _settings(self) -> list[float]:
        numbers = list(numbers_in(self._parts()))
        if not self._late:
            return numbers
        if len(numbers) > self._num_settings:
            raise self._unusable("more numbers of its schedulers for each added group than one,")
        return [len(numbers), *numbers, *[0.0] * (self._num_settings - len(numbers))]

    def _put_settings(self, values: NDArray[Any]) -> None:
        numbers = iter(values.tolist())
        if self._late and next(numbers) != len(list(numbers_in(self._parts()))):
            raise self._unusable("other numbers of its schedulers since a group was added,")
        self._take_parts(numbers)

    # Groups that callbacks have added.

    def _add_group(self, parameters: Mapping[str, nn.Parameter]) -> None:
        is_named = "param_names" in self._optimizer.param_groups[0]
        added = list(parameters.items()) if is_named else list(parameters.values())
        self._optimizer.add_param_group({"params": added})

    def _group_of(self) -> list[int]:
        """The place of the group of each parameter that may be added; -1 for none."""
        place_of = {
            id(parameter): place
            for place, group in enumerate(self._optimizer.param_groups)
            for parameter in group["params"]
        }
        return [place_of.get(id(parameter), -1) for parameter in self._late.values()]

    def _put_groups(self, places: NDArray[Any]) -> None:
        if places.tolist() == self._group_of():
            return
        del self._optimizer.param_groups[len(self._first_groups) :]
        for place in range(len(self._first_groups), max(places.tolist()) + 1):
            named = zip(self._late.items(), places.tolist(), strict=True)
            self._add_group(dict(item for item, its_place in named if its_place == place))

    # Which parameters have made a step, and the numbers that are kept of them.

    def _begun(self) -> list[float]:
        found: list[float] = []
        for name, parameter in self._parameters.items():
            state = self._optimizer.state.get(parameter, {})
            found.append(float(bool(state)))
            found += [float(state.get(key, zero)) for key, zero in self._numbers[name].items()]
        return found

    def _put_begun(self, values: NDArray[Any]) -> None:
        numbers = iter(np.asarray(values).tolist())
        self._have_all_begun = False
        for name, parameter in self._parameters.items():
            has_begun = bool(next(numbers))
            kept = {
                key: with_type_of(zero, next(numbers)) for key, zero in self._numbers[name].items()
            }
            if has_begun:
                self._optimizer.state[parameter] = {**self._tensors[name], **kept}
            else:
                self._optimizer.state.pop(parameter, None)
