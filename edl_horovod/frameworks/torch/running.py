"""Creates a user's module, moves it to its device, and runs it for outputs, or for its own loss.

A dict of features becomes keyword arguments if `forward` declares its keys, and a tuple becomes
positional arguments if `forward` requires several. Otherwise the features are one argument.

Some modules compute their loss themselves. Lightning modules have `training_step` and
`validation_step`. The `forward` of a Hugging Face model returns the loss with its outputs if labels
are passed.
"""

import contextlib
import inspect
import logging
import re
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from edl_horovod.errors import MissingDependency, UserCodeError
from edl_horovod.frameworks.torch.buffers import unchanged
from edl_horovod.frameworks.torch.structures import (
    at_least_float32,
    describe,
    leaves,
    map_batch,
    map_leaves,
)
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.calling import (
    call_declared,
    declared,
    first_paragraph,
    referenced_names,
    user_code,
)
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

log = logging.getLogger(__name__)

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


_Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""


@dataclass(frozen=True)
class ComputeOptions:
    """The device and the precision of a model."""

    device: torch.device
    dtype: torch.dtype | None = None
    """The type of autocast; None without autocast."""

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Compute in `dtype` what autocast considers safe; without `dtype` this does nothing."""
        if self.dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)  # type: ignore[no-any-return]


class ModuleRunner:
    """Runs the module that a spec creates."""

    def __init__(self, loaded: LoadedSpec, example: Batch, compute: ComputeOptions) -> None:
        """Create the user's module and run it once, so that its lazy layers get their shapes.

        Args:
            loaded: The user's spec.
            example: Sample examples.
            compute: The device and the precision.

        Raises:
            UserCodeError: `create_model` failed or did not return a module, or the module failed on
                these features.
        """
        self.loaded, self.example, self.compute = loaded, example, compute
        name = loaded.label
        with user_code(f"create_model of {name}", root=loaded.zoo):
            module = call_declared(loaded.spec.create_model, {})
        if not isinstance(module, nn.Module):
            raise UserCodeError(
                f"create_model of {name} must return a torch.nn.Module.",
                received=type(module).__name__,
                hint="" if not isinstance(module, type) else f"Write {module.__name__}(...).",
            )
        with user_code(f"Taking the model of {name} to {compute.device}", root=loaded.zoo):
            self.module = module.to(compute.device)
        self.arguments = _arguments_of(module, example.features)
        """Returns the positional and keyword arguments of `forward` for a batch's features."""
        self._compiled: Callable[..., Any] | None = None
        self._takes_derivatives = False
        has_training_step = _has_training_step(loaded, module)
        self._in_evaluation = {
            layer_name
            for layer_name, layer in module.named_modules()
            if has_training_step and not layer.training
        }
        """Names of the layers that a training leaves in evaluation mode, as Lightning does. The
        loop of any other module usually calls `train()` of the whole module."""
        if self._in_evaluation:
            log.info(
                "%d layers of %s stay in evaluation mode in training, as create_model returned"
                " them",
                len(self._in_evaluation),
                name,
            )
        self.module.eval()
        if has_training_step and not any(map(is_lazy, module.parameters())):
            # Its step may not call forward, or may call it with other features.
            return
        doing = (
            f"Running the model of {name} on the features from create_dataset"
            f" ({describe(example.features)})"
        )
        with user_code(doing, root=loaded.zoo), unchanged(self.module):
            features = self.to_device(example.features)
            try:
                with self.evaluating():
                    self.run(features)
            except RuntimeError:
                # torch.autograd.grad in `forward` raises this without gradients; any other error is
                # raised again.
                self._takes_derivatives = True
                with self.evaluating():
                    self.run(features)

    def to_device(self, value: Any) -> Any:
        """Move a structure of tensors to the model's device."""
        device = self.compute.device
        if device.type == "cpu":
            return value
        return map_leaves(lambda tensor: tensor.to(device, non_blocking=True), value)

    def batch_to_device(self, batch: Batch) -> Batch:
        """Move a batch to the model's device."""
        return batch if self.compute.device.type == "cpu" else map_batch(self.to_device, batch)

    @property
    def training_layers(self) -> list[nn.Module]:
        """The layers that are in training mode in a training."""
        named = self.module.named_modules()
        return [layer for name, layer in named if name not in self._in_evaluation]

    def train(self) -> None:
        """Switch the module to training mode, except for layers that stay in evaluation mode."""
        self.module.train()
        for name, layer in self.module.named_modules():
            if name in self._in_evaluation:
                layer.training = False

    def compile(self) -> None:
        """Compile the module for training; the first calls of `run` do the compilation."""
        self._compiled = compiled(self.module, self.loaded.label)

    @contextlib.contextmanager
    def not_compiled(self) -> Iterator[None]:
        """Let `run` call the module itself, also in a compiled training."""
        compiled_module, self._compiled = self._compiled, None
        try:
            yield
        finally:
            self._compiled = compiled_module

    @contextlib.contextmanager
    def evaluating(self, *, keeps_graph: bool = False) -> Iterator[None]:
        """Disable gradients for an evaluation, unless `forward` itself computes derivatives."""
        with torch.set_grad_enabled(keeps_graph or self._takes_derivatives):
            yield

    def predict(self, features: Any) -> Any:
        """Return the result of `predict_step` if the user defined it; else that of `forward`."""
        step = _user_method(self.module, "predict_step")
        if step is None:
            return self.run(features)
        with self.compute.autocast():
            return at_least_float32(step(features, *([0] if _takes_batch_index(step) else [])))

    def run(self, features: Any, **options: Any) -> Any:
        """Call the module for a batch's features; returns its outputs in at least float32.

        Args:
            features: Features on the model's device; of at least two examples if the module is
                compiled.
            options: Additional keyword arguments of `forward`.
        """
        call: Callable[..., Any] = self.module
        if self._compiled is not None and self.module.training:
            call = self._compiled
        arguments, keywords = self.arguments(features)
        with self.compute.autocast():
            return at_least_float32(call(*arguments, **keywords, **options))


def _arguments_of(module: nn.Module, features: Any) -> Callable[[Any], _Arguments]:
    """Return a function that converts features of this structure to arguments of `forward`."""
    takes_single = _takes_one(module.forward)
    if isinstance(features, Mapping):
        takes = declared(module.forward)
        # A single parameter receives the dict itself, independent of its name.
        takes_several = takes.takes_any or len(takes.names) > 1
        is_named = not features.keys().isdisjoint(takes.names)
        has_required = features.keys() >= set(takes.required)
        if not takes_single or (takes_several and is_named and has_required):
            return lambda features: ((), dict(features))
    elif isinstance(features, tuple | list) and not takes_single:
        return lambda features: (tuple(features), {})
    return lambda features: ((features,), {})


def _takes_one(forward: Callable[..., Any]) -> bool:
    """Whether a function can be called with one argument."""
    try:
        inspect.signature(forward).bind(None)
    except TypeError:
        return False
    except ValueError:  # A program of TorchScript has no signature.
        return True
    return True


def require_compiler() -> None:
    """Check before a training that PyTorch can compile programs.

    Raises:
        MissingDependency: A C++ compiler or the headers of Python are missing.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler  # This import takes seconds.
    from torch._inductor.exc import InvalidCxxCompiler

    missing = []
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        missing.append("a C++ compiler")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        missing.append(f"the headers of Python ({header})")
    if missing:
        raise MissingDependency(
            f"Compiling the model needs {' and '.join(missing)} where the job runs.",
            received={"train.compile": True},
            hint="Install the system packages g++ and python3-dev, also in images (set CXX to use"
            " another compiler); or leave train.compile out.",
        )


def compiled(module: nn.Module, label: str) -> Callable[..., Any]:
    """Return a function that calls a module in training; its first call compiles the module.

    Args:
        module: A built module, whose parameters and buffers are used in place.
        label: Name of its spec, for messages.
    """
    from torch._inductor import config

    # PyTorch's pool of compiling processes would outlive the worker.
    config.compile_threads = 1
    # With fallback_random, dropout draws the same numbers as in a module that is not compiled.
    compiled_module = torch.compile(module, options={"fallback_random": True})

    def call(*arguments: Any, **keywords: Any) -> Any:
        for leaf in leaves((arguments, keywords)):
            if isinstance(leaf, torch.Tensor) and leaf.ndim:
                # Compile one program for any number of examples, if the module allows it.
                torch._dynamo.maybe_mark_dynamic(leaf, 0)
        try:
            return compiled_module(*arguments, **keywords)
        except torch._dynamo.exc.TorchDynamoException as e:
            raise UserCodeError(
                f"PyTorch cannot compile the model of {label}: {first_paragraph(e)}",
                received={"train.compile": True},
                hint="Leave train.compile out, or mark the code that cannot be compiled with"
                " torch.compiler.disable.",
            ) from e

    return call


def find_module_loss(loaded: LoadedSpec, module: nn.Module, mode: Mode) -> "ModuleLoss | None":
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
    if _has_training_step(loaded, module):
        return _StepLoss(loaded, module, mode)
    loss = getattr(module, "loss", None)
    if callable(loss) and not isinstance(loss, nn.Module):
        return None
    return _ForwardLoss(loaded) if "labels" in declared(module.forward).names else None


def _has_training_step(loaded: LoadedSpec, module: nn.Module) -> bool:
    """Whether the module is trained by its `training_step`."""
    step = _user_method(module, _STEPS[Mode.TRAINING])
    return step is not None and not loaded.overrides_method("create_loss")


def _user_method(module: nn.Module, name: str) -> Any:
    """Return a method that the user defined; None if it is missing or Lightning's default."""
    method = getattr(module, name, None)
    is_method = callable(method) and not isinstance(method, nn.Module)
    return method if is_method and not _is_of_lightning(method) else None


def _takes_batch_index(step: Any) -> bool:
    """Whether a step of a module also takes the index of the batch."""
    return len(declared(step).names) > 1


class _StepLoss:
    """A loss from `training_step` or `validation_step`; the logged values are the metrics."""

    def __init__(self, loaded: LoadedSpec, module: nn.Module, mode: Mode) -> None:
        self.name = _STEPS[mode]
        self._label, self._mode = f"{self.name} of {loaded.label}", mode
        self._step = _user_method(module, self.name)
        if self._step is None:
            raise UserCodeError(
                f"{loaded.label} has a training_step, but no {self.name} to evaluate it.",
                hint=f"Write {self.name}(self, batch, batch_idx), which returns the loss or logs"
                " it by self.log('val_loss', ...).",
            )
        self._takes_batch_index = _takes_batch_index(self._step)
        _require_automatic(loaded, module)
        if loaded.overrides_method("create_metrics"):
            raise UserCodeError(
                f"{loaded.label} has create_metrics, which is not called for a model with"
                " training_step.",
                hint="Log metrics in the step: self.log('accuracy', ...).",
            )

    def outputs(self, runner: ModuleRunner, batch: Batch, number: int) -> Any:
        """Run the module for a batch; `number` is the batch's index in its epoch."""
        is_tuple = batch.labels is not None or batch.weights is not None
        examples = batch.examples if is_tuple else batch.features
        with _logging_to(runner.module) as logged, runner.compute.autocast():
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
        """Return the loss in these outputs, which already includes weights of examples."""
        return outputs["loss"]

    def metrics(self, outputs: Any) -> Any:
        """Return the metrics in these outputs, by name."""
        return outputs["logged"]


class _ForwardLoss:
    """A loss that `forward` returns with its outputs, as in Hugging Face models."""

    name = "forward"
    metrics = None
    """The spec's metrics are used."""

    def __init__(self, loaded: LoadedSpec) -> None:
        self._label = loaded.label

    def outputs(self, runner: ModuleRunner, batch: Batch, number: int) -> Any:
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


class ModuleLoss(Protocol):
    """How a module computes its own loss."""

    name: str
    """Names the user's function in messages."""

    @property
    def loss(self) -> Callable[..., Any]:
        """Returns the loss in the outputs."""

    @property
    def metrics(self) -> Callable[..., Any] | None:
        """Returns the metrics in the outputs, by name; None for those of the spec."""

    def outputs(self, runner: ModuleRunner, batch: Batch, number: int) -> Any:
        """Run the module for a batch; `number` is the batch's index in its epoch."""


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
            " Alternating phases, as of a generator and its discriminator, are written in an"
            " ElasticDLSpec: create_phases and create_phase_loss.",
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
    names = {name for _, function in methods for name in referenced_names(function)}
    counters = [name for name in _TRAINER_COUNTERS if name in names]
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
