"""The optimizer of a training and its schedules, from the spec or from the module."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn, optim
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.torch.structures import leaves
from edl_horovod.models.calling import call_declared, declared, user_code
from edl_horovod.models.zoo import RATE_NAMES, LoadedSpec

BY_ELEMENTS = {
    *(optim.ASGD, optim.Adadelta, optim.Adagrad, optim.Adam, optim.AdamW, optim.Adamax),
    *(optim.NAdam, optim.RAdam, optim.RMSprop, optim.Rprop, optim.SGD),
}
"""Optimizers whose update of an element depends only on that element of gradient and state."""
BY_PARAMETERS = {optim.Adafactor, optim.Muon}
"""Optimizers whose update of a parameter depends on all its elements, as by norms, but not on other
parameters."""

_MODULE_METHOD = "configure_optimizers"
_INTERVALS = ("epoch", "step")
_SCHEDULE_KEYS = frozenset(
    ("frequency", "interval", "monitor", "name", "reduce_on_plateau", "scheduler", "strict")
)


@dataclass(frozen=True)
class Schedule:
    """A learning-rate scheduler, and when it advances."""

    scheduler: LRScheduler
    is_per_step: bool
    """Whether it advances after steps; otherwise after epochs."""
    monitor: str = ""
    """The value that ReduceLROnPlateau monitors: `val_loss`, `loss` or a metric's name."""
    frequency: int = 1
    """It advances after every so many steps of an epoch, or epochs."""

    @property
    def is_plateau(self) -> bool:
        """Whether the scheduler needs the monitored value."""
        return isinstance(self.scheduler, ReduceLROnPlateau)

    def is_due(self, number: int) -> bool:
        """Whether it advances after this step of an epoch, or this epoch, counted from 0."""
        return (number + 1) % self.frequency == 0


def make_optimizer(
    loaded: LoadedSpec, module: nn.Module, learning_rate: float | None
) -> tuple[optim.Optimizer, list[Schedule]]:
    """Create the optimizer of a training and its schedules.

    Args:
        loaded: The user's spec.
        module: The built module.
        learning_rate: `train.learning_rate`; None for the optimizer's own.

    Raises:
        UserCodeError: There is no optimizer, or more than one; creating it failed; it requires a
            closure, or does not take the learning rate that is set; it contains another optimizer,
            or a scheduler another scheduler; it holds tensors that are not parameters of the
            module; or the module has parameters that PyTorch cannot find.
    """
    _require_parameters(module, loaded.label)
    module_method = getattr(module, _MODULE_METHOD, None)
    if loaded.overrides_method("create_optimizer"):
        name, function = f"create_optimizer of {loaded.label}", loaded.spec.create_optimizer
        _require_rate(name, function, learning_rate)
        returned = loaded.optimizer(learning_rate, model=module)
    elif callable(module_method):
        name = f"{_MODULE_METHOD} of {loaded.label}"
        _require_rate(name, module_method, learning_rate)
        rates = {} if learning_rate is None else dict.fromkeys(RATE_NAMES, learning_rate)
        with user_code(name, root=loaded.zoo):
            returned = call_declared(module_method, rates)
    else:
        raise UserCodeError(
            f"{loaded.label} lacks optimizer.",
            hint=f"Give the spec create_optimizer, the module a method {_MODULE_METHOD}(self, lr),"
            " or its file a function optimizer, or set optimizer=...",
        )
    return parse_optimizer(returned, module, name)


def parse_optimizer(
    returned: Any, module: nn.Module, name: str
) -> tuple[optim.Optimizer, list[Schedule]]:
    """Return the optimizer and its schedules from what a function, called `name`, returned.

    Raises:
        UserCodeError: As for `make_optimizer`.
    """
    optimizer, schedules = _parse(returned, name)
    _require_unwrapped(optimizer, schedules, name)
    _require_module_parameters(optimizer, module, name)
    _require_closureless(optimizer, name)
    return optimizer, schedules


def _require_rate(name: str, function: Callable[..., Any], learning_rate: float | None) -> None:
    takes = declared(function)
    if learning_rate is None or takes.takes_any or set(RATE_NAMES) & set(takes.names):
        return
    raise UserCodeError(
        f"{name} does not take the learning rate that is set.",
        received={"train.learning_rate": learning_rate},
        hint="Declare lr in it and hand it to the optimizer, or leave the setting out.",
    )


def _parse(returned: Any, name: str) -> tuple[optim.Optimizer, list[Schedule]]:
    """Parse what `configure_optimizers` may return in Lightning, with a single optimizer."""
    schedules: Any = ()
    monitor = ""
    optimizer = _only(returned, name)
    if isinstance(optimizer, Mapping):
        known = {"optimizer", "lr_scheduler", "monitor"}
        if not known.issuperset(optimizer) or "optimizer" not in optimizer:
            raise _unusable(name, f"a dict of {', '.join(map(str, optimizer)) or 'nothing'}")
        monitor = optimizer.get("monitor") or ""
        optimizer, schedules = optimizer["optimizer"], optimizer.get("lr_scheduler") or ()
    elif len(_listed(optimizer)) == 2 and all(
        isinstance(part, LRScheduler | Mapping) for part in _listed(optimizer[1])
    ):
        optimizer, schedules = optimizer
    optimizer = _only(optimizer, name)
    if not isinstance(optimizer, optim.Optimizer):
        raise _unusable(name, type(optimizer).__name__)
    return optimizer, [_schedule(part, optimizer, name, monitor) for part in _listed(schedules)]


def _only(value: Any, name: str) -> Any:
    """Return the element of a list of one element; anything else as it is.

    Raises:
        UserCodeError: The value is several optimizers, with or without schedulers.
    """
    parts = value.values() if isinstance(value, Mapping) else _listed(value)
    if len(parts) > 1 and all(map(_is_optimizer, parts)):
        raise UserCodeError(
            f"{name} returns several optimizers, but a step on a ring has only one: all parameters"
            " change together, by the gradients of one loss.",
            received="several optimizers",
            hint="For different settings, use parameter groups of one optimizer:"
            " torch.optim.Adam([{'params': model.body.parameters(), 'lr': 1e-4},"
            " {'params': model.head.parameters()}], lr). For consecutive phases, run one training"
            " for each (init_from=...). Alternating phases, as of a generator and its"
            " discriminator, are written in an ElasticDLSpec: create_phases and"
            " create_phase_loss.",
        )
    return value[0] if isinstance(value, tuple | list) and len(value) == 1 else value


def _is_optimizer(value: Any) -> bool:
    """Whether a value is an optimizer, or a dict with one and its scheduler."""
    optimizer = value.get("optimizer") if isinstance(value, Mapping) else value
    return isinstance(optimizer, optim.Optimizer)


def _listed(value: Any) -> Sequence[Any]:
    """Return a list or tuple as it is, and anything else as the only element of a list."""
    return value if isinstance(value, tuple | list) else [value]


def _schedule(schedule: Any, optimizer: optim.Optimizer, name: str, monitor: str) -> Schedule:
    is_dict = isinstance(schedule, Mapping)
    settings: Mapping[str, Any] = schedule if is_dict else {"scheduler": schedule}
    scheduler = settings.get("scheduler")
    if not isinstance(scheduler, LRScheduler):
        raise _unusable(name, f"{type(scheduler).__name__} in place of a scheduler")
    is_plateau = isinstance(scheduler, ReduceLROnPlateau)
    interval, frequency = settings.get("interval", _INTERVALS[0]), settings.get("frequency", 1)
    is_usable = interval in _INTERVALS and type(frequency) is int and frequency > 0
    # Lightning uses these two for schedulers like ReduceLROnPlateau, and for missing monitors.
    is_usable &= settings.get("reduce_on_plateau", is_plateau) == is_plateau
    is_usable &= settings.get("strict", True) is True
    if not is_usable or not set(settings) <= _SCHEDULE_KEYS:
        raise UserCodeError(
            f"{name} may set these for a scheduler: interval ('epoch' or 'step'), frequency (an"
            " integer of at least 1), name, and for ReduceLROnPlateau monitor.",
            received=f"{dict(settings)}",
        )
    if is_plateau and interval != _INTERVALS[0]:
        raise UserCodeError(
            f"{name} has ReduceLROnPlateau with interval='step', but the value that it monitors is"
            " only known at the end of an epoch.",
            received=f"interval={interval!r}",
            hint="Leave interval out.",
        )
    if scheduler.optimizer is not optimizer:
        raise UserCodeError(
            f"{name} returns a scheduler that belongs to another optimizer than the returned one."
        )
    monitor = str(settings.get("monitor") or monitor) if is_plateau else ""
    return Schedule(scheduler, interval == "step", monitor, frequency)


def _unusable(name: str, received: str) -> UserCodeError:
    return UserCodeError(
        f"{name} must return one torch.optim.Optimizer, alone or with its schedulers: (optimizer,"
        " scheduler), or {'optimizer': ..., 'lr_scheduler': ...}.",
        received=received,
        hint="Create it for the module's parameters: torch.optim.SGD(model.parameters(), lr).",
    )


def _require_parameters(module: nn.Module, label: str) -> None:
    known = set(map(id, module.parameters()))
    for owner in module.modules():
        for key, value in vars(owner).items():
            hidden = [tensor for tensor in _parameters_in(value) if id(tensor) not in known]
            if any(tensor.requires_grad for tensor in hidden):
                raise UserCodeError(
                    f"The attribute {key!r} of {type(owner).__name__} has layers or parameters in a"
                    f" {type(value).__name__}, where PyTorch cannot find them: they would not be"
                    " trained or saved.",
                    received=f"{len(hidden)} parameters",
                    hint="Use nn.ModuleList, nn.ModuleDict or nn.ParameterList; or call"
                    " requires_grad_(False) on them if they never change.",
                )
    if not known:
        raise UserCodeError(
            f"The module of {label} has no parameters, so there is nothing to train.",
            received=type(module).__name__,
            hint="Assign its layers to attributes of self in __init__.",
        )


def _parameters_in(value: Any) -> Iterator[nn.Parameter]:
    """Yield the parameters, and those of modules, in a list, tuple or dict."""
    for leaf in leaves(value) if isinstance(value, list | tuple | Mapping) else ():
        if isinstance(leaf, nn.Module):
            yield from leaf.parameters()
        elif isinstance(leaf, nn.Parameter):
            yield leaf


def _require_closureless(optimizer: optim.Optimizer, name: str) -> None:
    if "closure" in declared(optimizer.step).required:
        kind = type(optimizer).__name__
        raise UserCodeError(
            f"{kind} runs the model several times in a step (it requires a closure), but a step on"
            " a ring runs it only once.",
            received=f"{kind} of {name}",
            hint="Use an optimizer that needs only the gradients, such as torch.optim.Adam.",
        )


def _require_unwrapped(
    optimizer: optim.Optimizer, schedules: Sequence[Schedule], name: str
) -> None:
    """Refuse optimizers and schedulers within others, whose state the ring's would not contain."""
    states = [(optimizer, vars(optimizer))]
    states += [(schedule.scheduler, schedule.scheduler.state_dict()) for schedule in schedules]
    for owner, state in states:
        for key, value in state.items():
            for leaf in leaves(value):
                if isinstance(leaf, optim.Optimizer | LRScheduler):
                    kind, inner = type(owner).__name__, type(leaf).__name__
                    raise UserCodeError(
                        f"{name} returns {kind} around {inner}: what {inner} keeps would not be"
                        " saved, and would not reach new ranks.",
                        received=f"{inner} in the attribute {key!r}",
                        hint=f"Return {inner} itself, or one class that does what both do."
                        " PyTorch's SequentialLR and ChainedScheduler may contain schedulers.",
                    )


def _require_module_parameters(optimizer: optim.Optimizer, module: nn.Module, name: str) -> None:
    known = set(map(id, module.parameters()))
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    foreign = [parameter for parameter in held if id(parameter) not in known]
    if foreign:
        shapes: Sequence[Any] = [list(parameter.shape) for parameter in foreign[:3]]
        raise UserCodeError(
            f"{name} returns an optimizer with {len(foreign)} tensors that are not parameters of"
            " the trained module.",
            received=f"shapes {shapes}",
            hint="Use the model that is passed to create_optimizer: declare the argument model, and"
            " write model.parameters().",
        )
