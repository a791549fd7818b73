"""Modules that compute their loss themselves, as in Lightning and Hugging Face.

Lightning modules have `training_step` and `validation_step`. The `forward` of a Hugging Face model
returns the loss with its outputs if labels are passed.
"""

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.torch.structures import at_least_float32
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.calling import declared, referenced_names
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

__all__ = [
    "ModuleLoss",
    "Runner",
    "find_module_loss",
    "has_training_step",
    "takes_batch_index",
    "user_method",
]

_STEPS = {Mode.TRAINING: "training_step", Mode.EVALUATION: "validation_step"}
_LIGHTNING = ("lightning", "lightning_fabric", "pytorch_lightning")
_HOOK = re.compile(
    r"on_(fit|train|validation|predict|before|after|save|load)_\w+|setup|backward"
    r"|configure_(callbacks|gradient_clipping|model)|lr_scheduler_step|optimizer_(step|zero_grad)"
    r"|(training|validation)_(step|epoch)_end"
)
"""Methods of a module that Lightning's trainer calls, but this package does not."""
_TRAINER_COUNTERS = ("current_epoch", "global_step")
"""Attributes of a module that Lightning's trainer counts; without it they are always 0."""


class Runner(Protocol):
    """Runs a module; implemented by `running.ModuleRunner`."""

    @property
    def module(self) -> nn.Module:
        """The user's module."""

    def run(self, features: Any, **options: Any) -> Any:
        """Call `forward` for a batch's features, with additional keyword arguments."""

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Compute with the precision of the training."""


class ModuleLoss(Protocol):
    """How a module computes its own loss."""

    name: str
    """The method that computes the loss, for messages."""

    def outputs(self, runner: Runner, batch: Batch, number: int) -> Any:
        """Run the module for a batch; `number` is the batch's index in its epoch."""

    def loss(self, outputs: Any) -> Any:
        """Return the loss in these outputs, which already includes weights of examples."""

    @property
    def metrics(self) -> Callable[..., Any] | None:
        """A function that returns the metrics in outputs; None if the spec's metrics are used."""


def find_module_loss(loaded: LoadedSpec, module: nn.Module, mode: Mode) -> ModuleLoss | None:
    """Return how a module computes its loss; None if a function of outputs and labels does.

    Args:
        loaded: The user's spec, whose own loss has priority.
        module: The built module.
        mode: Training or evaluation.

    Raises:
        UserCodeError: The module uses features of Lightning that are not supported here.
    """
    if loaded.overrides_method("create_loss"):
        return None
    if has_training_step(loaded, module):
        return _StepLoss(loaded, module, mode)
    loss = getattr(module, "loss", None)
    if callable(loss) and not isinstance(loss, nn.Module):
        return None
    return _ForwardLoss(loaded) if "labels" in declared(module.forward).names else None


def has_training_step(loaded: LoadedSpec, module: nn.Module) -> bool:
    """Whether the module is trained by its `training_step`."""
    return (
        not loaded.overrides_method("create_loss")
        and user_method(module, _STEPS[Mode.TRAINING]) is not None
    )


def user_method(module: nn.Module, name: str) -> Any:
    """Return a method that the user defined; None if it is missing or Lightning's default."""
    method = getattr(module, name, None)
    is_method = callable(method) and not isinstance(method, nn.Module)
    return method if is_method and not _is_of_lightning(method) else None


def takes_batch_index(step: Any) -> bool:
    """Whether a step of a module also takes the index of the batch."""
    return len(declared(step).names) > 1


class _StepLoss:
    """A loss from `training_step` or `validation_step`; the logged values are the metrics."""

    def __init__(self, loaded: LoadedSpec, module: nn.Module, mode: Mode) -> None:
        self.name = _STEPS[mode]
        self._label, self._mode = f"{self.name} of {loaded.label}", mode
        self._step = user_method(module, self.name)
        if self._step is None:
            raise UserCodeError(
                f"{loaded.label} has a training_step, but no {self.name} to evaluate it.",
                hint=f"Write {self.name}(self, batch, batch_idx), which returns the loss or logs"
                " it by self.log('val_loss', ...).",
            )
        self._takes_batch_index = takes_batch_index(self._step)
        _require_automatic(loaded, module)
        if loaded.overrides_method("create_metrics"):
            raise UserCodeError(
                f"{loaded.label} has create_metrics, which is not called for a model with"
                " training_step.",
                hint="Log metrics in the step: self.log('accuracy', ...).",
            )

    def outputs(self, runner: Runner, batch: Batch, number: int) -> Any:
        is_tuple = batch.labels is not None or batch.weights is not None
        examples = batch.examples if is_tuple else batch.features
        with _logging_to(runner.module) as logged, runner.autocast():
            returned = self._step(examples, *([number] if self._takes_batch_index else []))
        loss = returned.get("loss") if isinstance(returned, Mapping) else returned
        if self._mode is Mode.EVALUATION:
            # Reports add this prefix to the names of an evaluation's values.
            logged = {name.removeprefix("val_"): value for name, value in logged.items()}
            loss = logged.get("loss", loss)
        logged.pop("loss", None)
        if loss is None:
            raise UserCodeError(
                f"{self._label} must return the loss, a tensor or a dict with it as 'loss'.",
                received=type(returned).__name__,
                hint="Return it for every batch, and leave out unwanted examples in create_dataset."
                if self._mode is Mode.TRAINING
                else "Return it, or log it by self.log('val_loss', ...).",
            )
        return at_least_float32({"loss": loss, "logged": logged})

    def loss(self, outputs: Any, sample_weight: Any = None) -> Any:
        return outputs["loss"]

    def metrics(self, outputs: Any) -> dict[str, Any]:
        logged: dict[str, Any] = outputs["logged"]
        return logged


class _ForwardLoss:
    """A loss that `forward` returns with its outputs, as in Hugging Face models."""

    name = "forward"
    metrics = None

    def __init__(self, loaded: LoadedSpec) -> None:
        self._label = loaded.label

    def outputs(self, runner: Runner, batch: Batch, number: int) -> Any:
        labels = {} if batch.labels is None else {"labels": batch.labels}
        return runner.run(batch.features, **labels)

    def loss(self, outputs: Any) -> Any:
        is_dict = isinstance(outputs, Mapping)
        loss = outputs.get("loss") if is_dict else getattr(outputs, "loss", None)
        if loss is None:
            raise UserCodeError(
                f"{self._label} lacks loss: its forward takes labels, but does not return a loss"
                " with its outputs.",
                received=type(outputs).__name__,
                hint="Return the loss as outputs.loss or outputs['loss'], or give the spec"
                " create_loss(self, outputs, labels).",
            )
        return loss


@contextlib.contextmanager
def _logging_to(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Record the values of `self.log` and `self.log_dict`, unless the user defined them."""
    logged: dict[str, Any] = {}

    def log(name: str, value: Any, *_options: Any, reduce_fx: Any = "mean", **_more: Any) -> None:
        if reduce_fx not in ("mean", torch.mean):
            raise UserCodeError(
                f"self.log accepts only means over the batch, but {name!r} is not one.",
                received={"reduce_fx": reduce_fx},
                hint="Log a mean, and leave reduce_fx out.",
            )
        if isinstance(value, nn.Module):
            raise UserCodeError(
                f"self.log is called with an object that computes {name!r} over all batches, but"
                " each rank of a ring has only some of them.",
                received=type(value).__name__,
                hint="Log its value for the batch: self.log(name, metric(outputs, labels)). The"
                " mean over all examples is computed from these.",
            )
        logged[name] = value

    def log_dict(values: Mapping[str, Any], *_options: Any, **options: Any) -> None:
        for name, value in values.items():
            log(name, value, **options)

    methods = {
        name: method
        for name, method in {"log": log, "log_dict": log_dict}.items()
        if not hasattr(module, name) or _is_of_lightning(getattr(module, name))
    }
    vars(module).update(methods)
    try:
        yield logged
    finally:
        for name in methods:
            del vars(module)[name]


def _require_automatic(loaded: LoadedSpec, module: nn.Module) -> None:
    """Refuse modules that rely on features of Lightning's trainer."""
    if not getattr(module, "automatic_optimization", True):
        raise UserCodeError(
            f"{loaded.label} sets automatic_optimization to False, but its model cannot run the"
            " optimizer itself: that is part of a step on the ring.",
            hint="Return the loss from training_step, and return one optimizer from"
            " configure_optimizers; train.clip_norm and train.accumulate_steps are settings."
            " Alternating phases, as of a generator and its discriminator, are not supported.",
        )
    methods = [
        (name, value)
        for base in type(module).__mro__
        if base is not nn.Module and base is not object and not _is_of_lightning(base)
        for name, value in vars(base).items()
        if inspect.isfunction(value)
    ]
    hooks = sorted({name for name, _ in methods if _HOOK.fullmatch(name)})
    if hooks:
        raise UserCodeError(
            f"{loaded.label} has {', '.join(hooks)}, which Lightning's trainer calls, but this"
            " package does not.",
            hint="Create parts of the model in __init__, compute values of a step in"
            " training_step, and do other work between epochs in an"
            " edl_horovod.callbacks.Callback from create_callbacks. To clip gradients, set"
            " train.clip_norm or train.clip_value.",
        )
    counters = sorted(
        {
            attribute
            for attribute in _TRAINER_COUNTERS
            for _, function in methods
            if attribute in referenced_names(function)
        }
    )
    if counters:
        raise UserCodeError(
            f"{loaded.label} reads self.{' and self.'.join(counters)}, which only Lightning's"
            " trainer counts.",
            hint="Count in a buffer, which is the same on every rank and saved in checkpoints:"
            " self.register_buffer('num_steps', torch.zeros((), dtype=torch.int64)), and"
            " self.num_steps += 1 in training_step.",
        )


def _is_of_lightning(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in _LIGHTNING
