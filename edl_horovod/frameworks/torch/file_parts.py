"""The optimizer and the loss that a model spec names (`optim.Adam`), with their arguments."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from edl_horovod.errors import ConfigError, UserCodeError, did_you_mean
from edl_horovod.frameworks.torch.parts import (
    loss_part,
    mean_loss_part,
    named_loss,
    named_optimizer,
)

__all__ = ["loss_of", "optimizer_of"]

_NAME_KEYS = ("name", "value")
_PREFIXES = {"optimizer": ("torch.optim.", "optim."), "loss_criterion": ("torch.nn.", "nn.")}


def optimizer_of(given: Any, *, label: str) -> Callable[..., Any]:
    """A `create_optimizer` from what `model.spec.optimizer` says.

    Args:
        given: `optim.X`, or a mapping of name (or value) and args.
        label: Names the model in messages.

    Raises:
        ConfigError: PyTorch has no such optimizer, or it has no such argument.
    """
    name, arguments = _named("optimizer", given)
    kind = named_optimizer(name)
    _check_arguments("optimizer", kind, arguments, not_ours=("params",))

    def create_optimizer(model: nn.Module, lr: float | None = None) -> Any:
        rate = {} if lr is None else {"lr": lr}
        parameters = list(model.parameters())
        if not parameters:
            raise UserCodeError(
                f"The module of {label} has no parameters, so there is nothing to train.",
                received=type(model).__name__,
            )
        return kind(parameters, **{**arguments, **rate})

    return create_optimizer


def loss_of(given: Any, *, label: str) -> Callable[..., Any]:
    """A `create_loss` from what `model.spec.loss_criterion` says.

    Args:
        given: `nn.X`, or a mapping of name (or value) and args.
        label: Names the model in messages.

    Raises:
        ConfigError: PyTorch has no such loss, it has no such argument, or gives no mean.
    """
    name, arguments = _named("loss_criterion", given)
    kind = named_loss(name)
    _check_arguments("loss_criterion", kind, arguments)
    if arguments.get("reduction", "mean") not in ("mean", "none"):
        raise ConfigError(
            "The loss of a step is the mean over its examples, whatever the ring.",
            received={"model.spec.loss_criterion": given},
            cure="Leave reduction out of its args.",
        )
    if "weight" in arguments:
        raise ConfigError(
            "Weights of classes are a setting of the training.",
            received={"model.spec.loss_criterion": given},
            cure="Set train.class_weight=[...], and leave weight out of its args.",
        )
    try:
        if arguments.pop("reduction", "mean") == "none":
            return loss_part(kind(**arguments, reduction="none"), label=label)
        return mean_loss_part(functools.partial(kind, **arguments), label=label)
    except (TypeError, ValueError) as e:
        raise ConfigError(
            f"nn.{kind.__name__} cannot be made: {e}.",
            received={"model.spec.loss_criterion": given},
            cure="Give its arguments: {name: nn.X, args: {...}}.",
        ) from e


def _named(key: str, given: Any) -> tuple[str, dict[str, Any]]:
    """The name without its prefix, and the arguments."""
    arguments: Any = {}
    name = given
    if isinstance(given, Mapping):
        names = [each for each in _NAME_KEYS if each in given]
        if len(names) != 1 or not set(given) <= {*_NAME_KEYS, "args"}:
            raise ConfigError(
                f"model.spec.{key} must be a name, or {{name: ..., args: {{...}}}}; value is"
                " another word for name.",
                received={f"model.spec.{key}": given},
            )
        name, arguments = given[names[0]], given.get("args") or {}
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise ConfigError(
            f"The name of model.spec.{key} must be text, and its args keys and values.",
            received={f"model.spec.{key}": given},
        )
    for prefix in _PREFIXES[key]:
        if name.startswith(prefix):
            return name.removeprefix(prefix), dict(arguments)
    return name, dict(arguments)


def _check_arguments(
    key: str, kind: type, arguments: Mapping[str, Any], *, not_ours: tuple[str, ...] = ()
) -> None:
    known = [name for name in inspect.signature(kind).parameters if name not in not_ours]
    for name in arguments:
        if name not in known:
            raise ConfigError(
                f"{kind.__name__} has no argument {name!r}.",
                received={f"model.spec.{key}.args.{name}": arguments[name]},
                cure=f"It has {', '.join(known)}.{did_you_mean(name, known)}",
            )
