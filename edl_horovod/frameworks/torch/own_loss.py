"""Modules that compute their loss themselves, as those of Lightning and of Hugging Face do.

Lightning's have `training_step` and `validation_step`. The `forward` of Hugging Face's returns the
loss with its outputs where it is handed labels.
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
from edl_horovod.models.calling import declared, names_in
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

__all__ = ["OwnLoss", "Runner", "has_own_step", "own_loss", "own_step", "takes_number"]

_STEPS = {Mode.TRAINING: "training_step", Mode.EVALUATION: "validation_step"}
_LIGHTNING = ("lightning", "lightning_fabric", "pytorch_lightning")
_HOOK = re.compile(
    r"on_(fit|train|validation|predict|before|after|save|load)_\w+|setup|backward"
    r"|configure_(callbacks|gradient_clipping|model)|lr_scheduler_step|optimizer_(step|zero_grad)"
    r"|(training|validation)_(step|epoch)_end"
)
"""The methods of a module that Lightning's trainer calls, and a ring does not."""
_OF_TRAINER = ("current_epoch", "global_step")
"""Numbers that a module reads of the trainer, and that are 0 without one."""


class Runner(Protocol):
    """What runs a module: see `running.Running`."""

    @property
    def module(self) -> nn.Module:
        """The user's module."""

    def run(self, features: Any, **more: Any) -> Any:
        """Call `forward` for a batch's features, and more arguments by keyword."""

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Compute as the training's precision says."""


class OwnLoss(Protocol):
    """How a module computes its loss."""

    name: str
    """The method that does so, for messages."""

    def outputs(self, runner: Runner, batch: Batch, number: int) -> Any:
        """Run the module for a batch, whose number in its epoch counts from 0."""

    def loss(self, outputs: Any) -> Any:
        """The loss among these outputs; the step of a module is handed weights itself."""

    @property
    def metrics(self) -> Callable[..., Any] | None:
        """What finds the metrics among outputs; None where those of the spec count."""


def own_loss(loaded: LoadedSpec, module: nn.Module, mode: Mode) -> OwnLoss | None:
    """How a module computes its loss; None where a function of outputs and labels does.

    Args:
        loaded: The user's spec, whose own loss counts first.
        module: Built.
        mode: Training or evaluation.

    Raises:
        UserCodeError: It has a step of which something could not be done here.
    """
    if loaded.gives("create_loss"):
        return None
    if has_own_step(loaded, module):
        return _Step(loaded, module, mode)
    loss = getattr(module, "loss", None)
    if callable(loss) and not isinstance(loss, nn.Module):
        return None
    return _OfForward(loaded) if "labels" in declared(module.forward).names else None


def has_own_step(loaded: LoadedSpec, module: nn.Module) -> bool:
    """Whether `training_step` of the module is what trains it."""
    return not loaded.gives("create_loss") and own_step(module, _STEPS[Mode.TRAINING]) is not None


def own_step(module: nn.Module, name: str) -> Any:
    """A method of the user's; None where there is none, or only that of Lightning's base class."""
    method = getattr(module, name, None)
    is_method = callable(method) and not isinstance(method, nn.Module)
    return method if is_method and not _is_of_lightning(method) else None


def takes_number(step: Any) -> bool:
    """Whether a step of a module takes the number of a batch, too."""
    return len(declared(step).names) > 1


class _Step:
    """`training_step` or `validation_step`; what it logs are the metrics."""

    def __init__(self, loaded: LoadedSpec, module: nn.Module, mode: Mode) -> None:
        self.name = _STEPS[mode]
        self._label, self._mode = f"{self.name} of {loaded.label}", mode
        self._step = own_step(module, self.name)
        if self._step is None:
            raise UserCodeError(
                f"{loaded.label} has a training_step, and no {self.name} to evaluate it with.",
                cure=f"Write {self.name}(self, batch, batch_idx), which returns the loss or logs"
                " it by self.log('val_loss', ...).",
            )
        self._takes_number = takes_number(self._step)
        _require_automatic(loaded, module)
        if loaded.gives("create_metrics"):
            raise UserCodeError(
                f"{loaded.label} has create_metrics, which is not called beside a training_step.",
                cure="Log metrics in the step: self.log('accuracy', ...).",
            )

    def outputs(self, runner: Runner, batch: Batch, number: int) -> Any:
        is_tuple = batch.labels is not None or batch.weights is not None
        examples = batch.examples if is_tuple else batch.features
        with _logging_to(runner.module) as logged, runner.autocast():
            returned = self._step(examples, *([number] if self._takes_number else []))
        loss = returned.get("loss") if isinstance(returned, Mapping) else returned
        if self._mode is Mode.EVALUATION:
            # The ring's own names of an evaluation's numbers begin with it, where it is told.
            logged = {name.removeprefix("val_"): value for name, value in logged.items()}
            loss = logged.get("loss", loss)
        logged.pop("loss", None)
        if loss is None:
            raise UserCodeError(
                f"{self._label} must return the loss, a tensor or a dict with it as 'loss'.",
                received=type(returned).__name__,
                cure="Return it for every batch. What shall not count, create_dataset leaves out."
                if self._mode is Mode.TRAINING
                else "Return it, or log it by self.log('val_loss', ...).",
            )
        return at_least_float32({"loss": loss, "logged": logged})

    def loss(self, outputs: Any, sample_weight: Any = None) -> Any:
        return outputs["loss"]

    def metrics(self, outputs: Any) -> dict[str, Any]:
        logged: dict[str, Any] = outputs["logged"]
        return logged


class _OfForward:
    """The loss that `forward` returns with its outputs, as models of Hugging Face do."""

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
                f"{self._label} lacks loss: its forward takes labels, and returns none with its"
                " outputs.",
                received=type(outputs).__name__,
                cure="Return the loss as outputs.loss or outputs['loss'], or give the spec"
                " create_loss(self, outputs, labels).",
            )
        return loss


@contextlib.contextmanager
def _logging_to(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Have `self.log` and `self.log_dict` note what they are handed, unless they are the user's."""
    logged: dict[str, Any] = {}

    def log(name: str, value: Any, *_options: Any, reduce_fx: Any = "mean", **_more: Any) -> None:
        if reduce_fx not in ("mean", torch.mean):
            raise UserCodeError(
                f"self.log takes means over the batch, and {name!r} is none.",
                received={"reduce_fx": reduce_fx},
                cure="Log a mean, and leave reduce_fx out.",
            )
        if isinstance(value, nn.Module):
            raise UserCodeError(
                f"self.log is handed an object that computes {name!r} of all batches, and each rank"
                " of a ring has some of them.",
                received=type(value).__name__,
                cure="Log what it gives for the batch, of which the mean over all examples is"
                " taken: self.log(name, metric(outputs, labels)).",
            )
        logged[name] = value

    def log_dict(values: Mapping[str, Any], *_options: Any, **more: Any) -> None:
        for name, value in values.items():
            log(name, value, **more)

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
    """Refuse what Lightning's trainer would do otherwise than a step of the ring."""
    if not getattr(module, "automatic_optimization", True):
        raise UserCodeError(
            f"{loaded.label} optimizes by hand (automatic_optimization is False), and the steps of"
            " a ring are not the model's.",
            cure="Return the loss from training_step and leave optimizers to configure_optimizers:"
            " one optimizer, with train.clip_norm and train.accumulate_steps as settings. Phases"
            " that take turns, as of a generator and its discriminator, are not supported.",
        )
    methods = [
        (name, value)
        for kind in type(module).__mro__
        if kind is not nn.Module and kind is not object and not _is_of_lightning(kind)
        for name, value in vars(kind).items()
        if inspect.isfunction(value)
    ]
    hooks = sorted({name for name, _ in methods if _HOOK.fullmatch(name)})
    if hooks:
        raise UserCodeError(
            f"{loaded.label} has {', '.join(hooks)}, which Lightning's trainer calls and a ring"
            " does not.",
            cure="Make parts of the model in __init__; compute what each step needs in"
            " training_step; do between epochs what is left in an"
            " edl_horovod.callbacks.Callback of create_callbacks. Bounds of gradients are"
            " train.clip_norm and train.clip_value.",
        )
    numbers = sorted({n for n in _OF_TRAINER for _, function in methods if n in names_in(function)})
    if numbers:
        raise UserCodeError(
            f"{loaded.label} reads self.{' and self.'.join(numbers)}, which only Lightning's"
            " trainer counts.",
            cure="Count in a buffer, which every rank has and a checkpoint keeps:"
            " self.register_buffer('num_steps', torch.zeros((), dtype=torch.int64)), and"
            " self.num_steps += 1 in training_step.",
        )


def _is_of_lightning(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in _LIGHTNING
