"""The optimizer and the loss that a model spec names, such as `optim.Adam`, with arguments."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from edl_horovod.errors import ConfigError, UserCodeError, did_you_mean
from edl_horovod.frameworks.torch.plain_models import (
    loss_part,
    mean_loss_part,
    named_loss,
    named_optimizer,
)

__all__ = ["loss_of", "optimizer_of"]

_NAME_KEYS = ("name", "value")
_PREFIXES = {"optimizer": ("torch.optim.", "optim."), "loss_criterion": ("torch.nn.", "nn.")}


def optimizer_of(option: Any, *, label: str) -> Callable[..., Any]:
    """Create a `create_optimizer` from the setting `model.spec.optimizer`.

    Args:
        option: `optim.X`, or a mapping with the keys name (or value) and args.
        label: Name of the model, for messages.

    Raises:
        ConfigError: PyTorch has no such optimizer, or it has no such argument.
    """
    name, arguments = _name_and_arguments("optimizer", option)
    kind = named_optimizer(name)
    _check_arguments("optimizer", kind, arguments, excluded=("params",))

    def create_optimizer(model: nn.Module, lr: float | None = None) -> Any:
        learning_rate = {} if lr is None else {"lr": lr}
        parameters = list(model.parameters())
        if not parameters:
            raise UserCodeError(
                f"The module of {label} has no parameters, so there is nothing to train.",
                received=type(model).__name__,
            )
        return kind(parameters, **{**arguments, **learning_rate})

    return create_optimizer


def loss_of(option: Any, *, label: str) -> Callable[..., Any]:
    """Create a `create_loss` from the setting `model.spec.loss_criterion`.

    Args:
        option: `nn.X`, or a mapping with the keys name (or value) and args.
        label: Name of the model, for messages.

    Raises:
        ConfigError: PyTorch has no such loss, it has no such argument, or is set to return a sum.
    """
    name, arguments = _name_and_arguments("loss_criterion", option)
    kind = named_loss(name)
    _check_arguments("loss_criterion", kind, arguments)
    if arguments.get("reduction", "mean") not in ("mean", "none"):
        raise ConfigError(
            "The loss of a step must be the mean over its examples, for any size of the ring.",
            received={"model.spec.loss_criterion": option},
            hint="Leave out reduction in its args.",
        )
    if "weight" in arguments:
        raise ConfigError(
            "Weights of classes are a setting of the training, not of the loss.",
            received={"model.spec.loss_criterion": option},
            hint="Set train.class_weight=[...], and leave out weight in its args.",
        )
    try:
        if arguments.pop("reduction", "mean") == "none":
            return loss_part(kind(**arguments, reduction="none"), label=label)
        return mean_loss_part(functools.partial(kind, **arguments), label=label)
    except (TypeError, ValueError) as e:
        raise ConfigError(
            f"nn.{kind.__name__} cannot be created: {e}.",
            received={"model.spec.loss_criterion": option},
            hint="Check its arguments: {name: nn.X, args: {...}}.",
        ) from e


def _name_and_arguments(setting: str, option: Any) -> tuple[str, dict[str, Any]]:
    """Return the name without its prefix, and the arguments."""
    arguments: Any = {}
    name = option
    if isinstance(option, Mapping):
        name_keys = [key for key in _NAME_KEYS if key in option]
        if len(name_keys) != 1 or not set(option) <= {*_NAME_KEYS, "args"}:
            raise ConfigError(
                f"model.spec.{setting} must be a name, or {{name: ..., args: {{...}}}}. The key"
                " value may be used in place of name.",
                received={f"model.spec.{setting}": option},
            )
        name, arguments = option[name_keys[0]], option.get("args") or {}
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise ConfigError(
            f"In model.spec.{setting}, the name must be text, and args must be keys and values.",
            received={f"model.spec.{setting}": option},
        )
    for prefix in _PREFIXES[setting]:
        if name.startswith(prefix):
            return name.removeprefix(prefix), dict(arguments)
    return name, dict(arguments)


def _check_arguments(
    setting: str, kind: type, arguments: Mapping[str, Any], *, excluded: tuple[str, ...] = ()
) -> None:
    allowed = [name for name in inspect.signature(kind).parameters if name not in excluded]
    for name in arguments:
        if name not in allowed:
            raise ConfigError(
                f"{kind.__name__} has no argument {name!r}.",
                received={f"model.spec.{setting}.args.{name}": arguments[name]},
                hint=f"It has {', '.join(allowed)}.{did_you_mean(name, allowed)}",
            )
