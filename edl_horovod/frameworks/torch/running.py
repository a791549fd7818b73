"""Creates a user's module, moves it to its device, and runs it.

A dict of features becomes keyword arguments if `forward` declares its keys, and a tuple becomes
positional arguments if `forward` requires several. Otherwise the features are one argument.
"""

import contextlib
import inspect
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from edl_horovod.errors import MissingDependency, UserCodeError
from edl_horovod.frameworks.torch.buffers import unchanged
from edl_horovod.frameworks.torch.module_loss import (
    ModuleLoss,
    has_training_step,
    takes_batch_index,
    user_method,
)
from edl_horovod.frameworks.torch.structures import at_least_float32, describe, leaves, map_leaves
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.calling import call_declared, declared, first_paragraph, user_code
from edl_horovod.models.zoo import LoadedSpec

__all__ = ["ComputeOptions", "ModuleRunner", "compiled", "require_compiler"]


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
        self.loaded = loaded
        self.example = example
        self.compute = compute
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
        self._arguments = _arguments_of(module, example.features)
        self._compiled: Callable[..., Any] | None = None
        self._takes_derivatives = False
        self.module.eval()
        if has_training_step(loaded, module) and not any(map(is_lazy, module.parameters())):
            # Its step may not call forward, or may call it with other features.
            return
        doing = (
            f"Running the model of {name} on the features from create_dataset"
            f" ({describe(example.features)})"
        )
        with user_code(doing, root=loaded.zoo), unchanged(self.module):
            self._run_sample(self.to_device(example.features))

    def to_device(self, value: Any) -> Any:
        """Move a structure of tensors to the model's device."""
        device = self.compute.device
        if device.type == "cpu":
            return value
        return map_leaves(lambda tensor: tensor.to(device, non_blocking=True), value)

    def batch_to_device(self, batch: Batch) -> Batch:
        """Move a batch to the model's device."""
        features, labels, weights = map(
            self.to_device, (batch.features, batch.labels, batch.weights)
        )
        return Batch(features, labels, batch.num_examples, weights)

    def compile(self) -> None:
        """Compile the module for training; the first calls of `run` do the compilation."""
        self._compiled = compiled(self.module, self.loaded.label)

    def arguments(self, features: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and keyword arguments of `forward` for a batch's features."""
        return self._arguments(features)

    @contextlib.contextmanager
    def evaluating(self, *, keeps_graph: bool = False) -> Iterator[None]:
        """Disable gradients for an evaluation, unless `forward` itself computes derivatives."""
        with torch.set_grad_enabled(keeps_graph or self._takes_derivatives):
            yield

    def _run_sample(self, features: Any) -> None:
        try:
            with self.evaluating():
                self.run(features)
        except RuntimeError:
            # torch.autograd.grad in `forward` raises this without gradients; any other error is
            # raised again.
            self._takes_derivatives = True
            with self.evaluating():
                self.run(features)

    def outputs(self, batch: Batch, module_loss: ModuleLoss | None, number: int = 0) -> Any:
        """Run the module on a batch, for its loss.

        Args:
            batch: Examples on the model's device.
            module_loss: How the module itself computes its loss; None if it does not.
            number: The batch's index in its epoch.
        """
        return (
            self.run(batch.features)
            if module_loss is None
            else module_loss.outputs(self, batch, number)
        )

    def predict(self, features: Any) -> Any:
        """Return the result of `predict_step` if the user defined it; else that of `forward`."""
        step = user_method(self.module, "predict_step")
        if step is None:
            return self.run(features)
        with self.autocast():
            return at_least_float32(step(features, *([0] if takes_batch_index(step) else [])))

    def run(self, features: Any, **options: Any) -> Any:
        """Call the module for a batch's features; returns its outputs in at least float32.

        Args:
            features: Features on the model's device; of at least two examples in a compiled
                training.
            options: Additional keyword arguments of `forward`.
        """
        call: Callable[..., Any] = self.module
        if self._compiled is not None and self.module.training:
            call = self._compiled
        arguments, keywords = self.arguments(features)
        with self.autocast():
            return at_least_float32(call(*arguments, **keywords, **options))

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Compute with the precision of `compute`."""
        return self.compute.autocast()


def _arguments_of(
    module: nn.Module, features: Any
) -> Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]:
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
