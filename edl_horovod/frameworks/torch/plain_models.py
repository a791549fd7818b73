"""PyTorch models without a spec: an `nn.Module` subclass, or a function that returns a module.

The parts of a spec are created from functions, PyTorch's classes and objects, or their names. Loss,
metrics and optimizer may also be methods of the class: `loss` or `training_step`, `metrics`,
`configure_optimizers`.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from edl_horovod.errors import ConfigError, UserCodeError, did_you_mean
from edl_horovod.frameworks import plain_models as parts
from edl_horovod.frameworks.plain_models import Part
from edl_horovod.models.calling import declared
from edl_horovod.models.parts import LOSS_ROLES, PlainModels, with_roles
from edl_horovod.spec import Mode

_WEIGHTS = "sample_weight"


def model_part(maker: Any, *, label: str) -> Part:
    """Create a `create_model` from a class or a function.

    Args:
        maker: An `nn.Module` subclass, or a function that returns a module.
        label: Its name in messages.
    """
    return parts.model_part(maker, parts.named_parameters(maker), label=label)


def dataset_part(function: Any, *, label: str) -> Part:
    """Create a `create_dataset` from a function of the records and, if declared, the mode."""
    return parts.dataset_part(_function(function, label=label), label=label)


def loss_part(loss: Any, *, label: str) -> Part:
    """Create a `create_loss` from a function of outputs and labels, a PyTorch loss, or its name.

    A function whose parameters have none of the usual names is called with labels, then outputs, as
    in ElasticDL; a PyTorch loss is called with outputs, then labels.
    """
    if isinstance(loss, str):
        return mean_loss_part(named_loss(loss), label=label)
    if inspect.isclass(loss) and issubclass(loss, nn.Module):
        loss = loss()
    if not isinstance(loss, nn.Module):
        return _with_loss_roles(loss, label)
    is_by_example = getattr(loss, "reduction", "") == "none"

    def create_loss(outputs: Any, labels: Any) -> Any:
        value = loss(outputs, labels)
        return value.flatten(1).mean(1) if is_by_example and value.ndim > 1 else value

    create_loss.__qualname__ = label
    return create_loss


def mean_loss_part(make: Callable[..., nn.Module], *, label: str) -> Part:
    """Create a `create_loss` with PyTorch's mean; with weights, it returns weighted values.

    Args:
        make: Creates the loss for a `reduction`.
        label: Its name in messages.
    """
    mean, by_example = make(reduction="mean"), make(reduction="none")

    def create_loss(outputs: Any, labels: Any, sample_weight: Any = None) -> Any:
        if sample_weight is None:
            return mean(outputs, labels)
        values = by_example(outputs, labels)
        return values.reshape(len(values), -1).mean(1) * sample_weight.flatten()

    create_loss.__qualname__ = label
    return create_loss


def optimizer_part(optimizer: Any, *, label: str) -> Part:
    """Create a `create_optimizer` from a function, a PyTorch optimizer class, or its name."""
    if isinstance(optimizer, str):
        optimizer = named_optimizer(optimizer)
    if inspect.isclass(optimizer) and issubclass(optimizer, torch.optim.Optimizer):
        return optimizer_of_class(optimizer, {}, label=label)
    return _function(optimizer, label=label)


def optimizer_of_class(kind: Any, arguments: Mapping[str, Any], *, label: str) -> Part:
    """Create a `create_optimizer` from a PyTorch optimizer class and its arguments."""

    def create_optimizer(model: nn.Module, lr: float | None = None) -> Any:
        rate = {} if lr is None else {"lr": lr}
        return kind(model.parameters(), **{**arguments, **rate})

    create_optimizer.__qualname__ = label
    return create_optimizer


def named_loss(name: str) -> Any:
    """Return PyTorch's loss class of this name.

    Raises:
        ConfigError: There is no such class.
    """
    losses = {key: value for key, value in vars(nn).items() if key.endswith("Loss")}
    return _named(name, losses, role="loss")


def named_optimizer(name: str) -> Any:
    """Return PyTorch's optimizer class of this name.

    Raises:
        ConfigError: There is no such class.
    """
    base = torch.optim.Optimizer
    optimizers = {
        key: value
        for key, value in vars(torch.optim).items()
        if inspect.isclass(value) and issubclass(value, base) and value is not base
    }
    return _named(name, optimizers, role="optimizer")


def metrics_part(function: Any, *, label: str) -> Part:
    """Create a `create_metrics` from a function of labels and outputs, for evaluation only."""
    make = _with_loss_roles(function, label)
    takes = declared(make)
    return lambda mode, labels, outputs, features: (
        takes.call(make, {"labels": labels, "outputs": outputs, "features": features})
        if mode is Mode.EVALUATION
        else {}
    )


def _with_loss_roles(function: Any, label: str) -> Part:
    """Adapt a function of labels, outputs and, if declared, features, for a loss or metrics."""
    make = _function(function, label=label)
    takes_features = "features" in declared(make).names
    features = {"features": frozenset({"features"})} if takes_features else {}
    return with_roles(make, {**LOSS_ROLES, **features}, label=label)


def _function(value: Any, *, label: str) -> Part:
    """Return a function or a class as a function."""
    if callable(value):
        return functools.partial(value) if inspect.isclass(value) else value
    raise UserCodeError(
        f"{label} must be a function, or the name of a loss or optimizer of PyTorch.",
        received=type(value).__name__,
    )


def _named(name: str, classes: Mapping[str, Any], *, role: str) -> Any:
    """Return the class with this name, without regard to upper and lower case."""
    by_lower_case = {key.lower(): value for key, value in classes.items()}
    kind = by_lower_case.get(name.lower())
    if kind is None:
        raise ConfigError(
            f"PyTorch has no {role} {name!r}.",
            received={role: name},
            hint=f"It has {', '.join(sorted(classes))}.{did_you_mean(name, classes)}",
        )
    return kind


PLAIN_MODELS = PlainModels(
    "torch",
    nn.Module,
    make={
        "model": model_part,
        "input_fn": dataset_part,
        "loss": loss_part,
        "optimizer": optimizer_part,
        "metrics": metrics_part,
        "callbacks": _function,
    },
    hints={
        "input_fn": "its file a function feed(records, mode) (not needed with your own Dataset,"
        " data=dataset:module.name)",
        "loss": "the class a method loss(self, outputs, labels) or training_step",
        "optimizer": "the class a method configure_optimizers(self, lr)",
    },
    own_methods={"loss": "loss", "training_step": "loss", "configure_optimizers": "optimizer"},
)
