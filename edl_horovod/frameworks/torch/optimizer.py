"""The optimizer of a training and its schedules: the spec's, else the module's own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.torch.structures import leaves
from edl_horovod.models.calling import call_declared, declared, user_code
from edl_horovod.models.zoo import RATE_NAMES, LoadedSpec

__all__ = [
    "BY_ELEMENTS",
    "BY_PARAMETERS",
    "Optimization",
    "Schedule",
    "make_optimization",
]

BY_ELEMENTS = {
    torch.optim.ASGD,
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.SGD,
}
"""Those that change each number by the same one of what they keep and of the gradient."""
BY_PARAMETERS = {torch.optim.Adafactor, torch.optim.Muon}
"""Those that change a parameter by what they keep of it, but by norms over all of it."""

_OWN = "configure_optimizers"
_INTERVALS = ("epoch", "step")
_OF_SCHEDULES = {
    "frequency",
    "interval",
    "monitor",
    "name",
    "reduce_on_plateau",
    "scheduler",
    "strict",
}


@dataclass(frozen=True)
class Schedule:
    """What sets the learning rate, and when it is asked to."""

    scheduler: LRScheduler
    is_per_step: bool
    """Whether it goes on with each step; else with each epoch."""
    monitor: str = ""
    """For ReduceLROnPlateau, the number that it watches: `val_loss`, `loss` or a metric's name."""
    frequency: int = 1
    """The steps of an epoch, or the epochs, that it lets pass for each time."""

    @property
    def is_plateau(self) -> bool:
        """Whether it is handed the number that it watches."""
        return isinstance(self.scheduler, ReduceLROnPlateau)

    def is_due(self, number: int) -> bool:
        """Whether it goes on after the step of an epoch, or the epoch, of this number from 0 on."""
        return (number + 1) % self.frequency == 0


@dataclass(frozen=True)
class Optimization:
    """An optimizer, and its schedules."""

    optimizer: torch.optim.Optimizer
    schedules: tuple[Schedule, ...] = ()


def make_optimization(
    loaded: LoadedSpec, module: nn.Module, learning_rate: float | None
) -> Optimization:
    """Make the optimizer of a training.

    Args:
        loaded: The user's spec.
        module: Built.
        learning_rate: `train.learning_rate`; None leaves the optimizer's own.

    Raises:
        UserCodeError: There is none or there are several, the module's parameters cannot be found
            or it holds others, it takes no learning rate where one is set or requires a closure,
            or making it failed.
    """
    _require_parameters(module, loaded.label)
    own = getattr(module, _OWN, None)
    if loaded.gives("create_optimizer"):
        name, function = f"create_optimizer of {loaded.label}", loaded.spec.create_optimizer
        _require_rate(name, function, learning_rate)
        made = loaded.optimizer(learning_rate, model=module)
    elif callable(own):
        name = f"{_OWN} of {loaded.label}"
        _require_rate(name, own, learning_rate)
        rates = {} if learning_rate is None else dict.fromkeys(RATE_NAMES, learning_rate)
        with user_code(name, root=loaded.zoo):
            made = call_declared(own, rates)
    else:
        raise UserCodeError(
            f"{loaded.label} lacks optimizer.",
            cure=f"Give the spec create_optimizer, the module a method {_OWN}(self, lr), or its"
            " file a function optimizer, or set optimizer=...",
        )
    found = _parsed(made, name)
    _require_own_parameters(found.optimizer, module, name)
    _require_closureless(found.optimizer, name)
    return found


def _require_rate(name: str, function: Callable[..., Any], learning_rate: float | None) -> None:
    takes = declared(function)
    if learning_rate is None or takes.takes_any or set(RATE_NAMES) & set(takes.names):
        return
    raise UserCodeError(
        f"{name} does not take the learning rate that is set.",
        received={"train.learning_rate": learning_rate},
        cure="Declare lr in it and hand it to the optimizer, or leave the setting out.",
    )


def _parsed(returned: Any, name: str) -> Optimization:
    """The forms of `configure_optimizers` in Lightning, with one optimizer."""
    schedules: Any = ()
    monitor = ""
    if _are_several(returned):
        raise _several(name)
    optimizer = _only(returned)
    if isinstance(optimizer, Mapping):
        unknown = sorted(set(optimizer) - {"optimizer", "lr_scheduler", "monitor"})
        if unknown or "optimizer" not in optimizer:
            raise _unusable(name, f"a dict of {', '.join(map(str, optimizer)) or 'nothing'}")
        monitor = optimizer.get("monitor") or ""
        optimizer, schedules = optimizer["optimizer"], optimizer.get("lr_scheduler") or ()
    elif (
        isinstance(optimizer, tuple | list) and len(optimizer) == 2 and _are_schedules(optimizer[1])
    ):
        optimizer, schedules = optimizer
    if _are_several(optimizer):
        raise _several(name)
    optimizer = _only(optimizer)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise _unusable(name, type(optimizer).__name__)
    schedules = schedules if isinstance(schedules, tuple | list) else [schedules]
    return Optimization(
        optimizer, tuple(_schedule(part, optimizer, name, monitor) for part in schedules)
    )


def _only(value: Any) -> Any:
    """What a list of one holds; anything else as it is."""
    return value[0] if isinstance(value, tuple | list) and len(value) == 1 else value


def _are_several(value: Any) -> bool:
    """Whether it is several optimizers, each alone or with its schedulers, or by names."""
    if isinstance(value, Mapping):
        return len(value) > 1 and all(_is_one(each) for each in value.values())
    return isinstance(value, tuple | list) and len(value) > 1 and all(map(_is_one, value))


def _is_one(value: Any) -> bool:
    return isinstance(value, torch.optim.Optimizer) or (
        isinstance(value, Mapping) and isinstance(value.get("optimizer"), torch.optim.Optimizer)
    )


def _are_schedules(value: Any) -> bool:
    parts = value if isinstance(value, tuple | list) else [value]
    return all(isinstance(each, LRScheduler | Mapping) for each in parts)


def _schedule(schedule: Any, optimizer: torch.optim.Optimizer, name: str, monitor: str) -> Schedule:
    is_dict = isinstance(schedule, Mapping)
    settings: Mapping[str, Any] = schedule if is_dict else {"scheduler": schedule}
    scheduler = settings.get("scheduler")
    if not isinstance(scheduler, LRScheduler):
        raise _unusable(name, f"{type(scheduler).__name__} where a scheduler must be")
    is_plateau = isinstance(scheduler, ReduceLROnPlateau)
    interval, frequency = settings.get("interval", _INTERVALS[0]), settings.get("frequency", 1)
    is_usable = interval in _INTERVALS and type(frequency) is int and frequency > 0
    # Lightning has these two for what is no ReduceLROnPlateau, and for what is not there.
    is_usable &= settings.get("reduce_on_plateau", is_plateau) == is_plateau
    is_usable &= settings.get("strict", True) is True
    if not is_usable or not set(settings) <= _OF_SCHEDULES:
        raise UserCodeError(
            f"{name} may say of a scheduler its interval, 'epoch' or 'step', its frequency, a whole"
            " number from 1 on, its name, and for ReduceLROnPlateau its monitor.",
            received=f"{dict(settings)}",
        )
    if is_plateau and interval != _INTERVALS[0]:
        raise UserCodeError(
            f"{name} has ReduceLROnPlateau by the step, but what it watches is known at the end of"
            " an epoch.",
            received=f"interval={interval!r}",
            cure="Leave interval out.",
        )
    if scheduler.optimizer is not optimizer:
        raise UserCodeError(
            f"{name} returns a scheduler of another optimizer than the one that it returns."
        )
    monitor = str(settings.get("monitor") or monitor) if is_plateau else ""
    return Schedule(scheduler, interval == "step", monitor, frequency)


def _unusable(name: str, received: str) -> UserCodeError:
    return UserCodeError(
        f"{name} must return one torch.optim.Optimizer, or that and its schedulers: (optimizer,"
        " scheduler), or {'optimizer': ..., 'lr_scheduler': ...}.",
        received=received,
        cure="Make it of the module's parameters: torch.optim.SGD(model.parameters(), lr).",
    )


def _several(name: str) -> UserCodeError:
    return UserCodeError(
        f"{name} returns several optimizers, and a step on a ring has one: all parameters change"
        " together, by the gradients of one loss.",
        received="several optimizers",
        cure="Make parts that learn otherwise parameter groups of one:"
        " torch.optim.Adam([{'params': model.body.parameters(), 'lr': 1e-4},"
        " {'params': model.head.parameters()}], lr). Phases that follow each other are trainings"
        " that do (init_from=...); phases that take turns, as of a generator and its discriminator,"
        " are not supported.",
    )


def _require_parameters(module: nn.Module, label: str) -> None:
    known = set(map(id, module.parameters()))
    for owner in module.modules():
        for key, value in vars(owner).items():
            hidden = [each for each in _parameters_in(value) if id(each) not in known]
            if any(each.requires_grad for each in hidden):
                raise UserCodeError(
                    f"The attribute {key!r} of {type(owner).__name__} holds layers or parameters in"
                    f" a {type(value).__name__}, where PyTorch does not find them: they would not"
                    " be trained, nor saved.",
                    received=f"{len(hidden)} parameters",
                    cure="Use nn.ModuleList, nn.ModuleDict or nn.ParameterList; or set"
                    " requires_grad_(False), if they never change.",
                )
    if not known:
        raise UserCodeError(
            f"The module of {label} has no parameters, so there is nothing to train.",
            received=type(module).__name__,
            cure="Assign its layers to self in __init__.",
        )


def _parameters_in(value: Any) -> Iterator[nn.Parameter]:
    """The parameters in lists, tuples and dicts, and of the modules in them."""
    for leaf in leaves(value) if isinstance(value, list | tuple | Mapping) else ():
        if isinstance(leaf, nn.Module):
            yield from leaf.parameters()
        elif isinstance(leaf, nn.Parameter):
            yield leaf


def _require_closureless(optimizer: torch.optim.Optimizer, name: str) -> None:
    if "closure" in declared(optimizer.step).required:
        kind = type(optimizer).__name__
        raise UserCodeError(
            f"{kind} runs the model several times in a step (it requires a closure), and a step on"
            " a ring runs it once.",
            received=f"{kind} of {name}",
            cure="Use an optimizer that steps by the gradients alone, such as torch.optim.Adam.",
        )


def _require_own_parameters(optimizer: torch.optim.Optimizer, module: nn.Module, name: str) -> None:
    known = {id(parameter) for parameter in module.parameters()}
    foreign = [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if id(parameter) not in known
    ]
    if foreign:
        shapes: Sequence[Any] = [list(parameter.shape) for parameter in foreign[:3]]
        raise UserCodeError(
            f"{name} has an optimizer of {len(foreign)} tensors that are no parameters of the"
            " module which is trained.",
            received=f"shapes {shapes}",
            cure="Make it of the model that create_optimizer is handed: declare model, and write"
            " model.parameters().",
        )
