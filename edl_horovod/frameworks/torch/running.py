"""A user's module: created, on its device, and run.

Features that are a dict go by keyword where `forward` names them, and a tuple by position where it
requires several parameters, as those who write `forward` call it; else they are one argument.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.torch.compiling import compiled
from edl_horovod.frameworks.torch.moving import unchanged
from edl_horovod.frameworks.torch.own_loss import OwnLoss, has_own_step, own_step, takes_number
from edl_horovod.frameworks.torch.structures import at_least_float32, described, map_leaves
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.calling import call_declared, declared, user_code
from edl_horovod.models.zoo import LoadedSpec

__all__ = ["Computing", "Running"]


@dataclass(frozen=True)
class Computing:
    """Where and how a model computes."""

    device: torch.device
    dtype: torch.dtype | None = None
    """What autocast computes in; None without autocast."""

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Compute in less than float32 what bears it, where that is wanted."""
        if self.dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)  # type: ignore[no-any-return]


class Running:
    """The module that a spec makes."""

    def __init__(self, loaded: LoadedSpec, example: Batch, computing: Computing) -> None:
        """Create the user's module and run it once, so that its lazy layers get their shapes.

        Args:
            loaded: The user's spec.
            example: Some examples, which stand for all.
            computing: Where and how it computes.

        Raises:
            UserCodeError: `create_model` raised, returned no module, or the module refuses these
                features.
        """
        self.loaded = loaded
        self.example = example
        self.computing = computing
        name = loaded.label
        with user_code(f"create_model of {name}", root=loaded.zoo):
            module = call_declared(loaded.spec.create_model, {})
        if not isinstance(module, nn.Module):
            raise UserCodeError(
                f"create_model of {name} must return a torch.nn.Module.",
                received=type(module).__name__,
                cure="" if not isinstance(module, type) else f"Write {module.__name__}(...).",
            )
        with user_code(f"Taking the model of {name} to {computing.device}", root=loaded.zoo):
            self.module = module.to(computing.device)
        self._arguments = _arguments_of(module, example.features)
        self._compiled: Callable[..., Any] | None = None
        self._takes_derivatives = False
        self.module.eval()
        if has_own_step(loaded, module) and not any(map(is_lazy, module.parameters())):
            # Its step need not call forward, nor with these features.
            return
        doing = (
            f"Running the model of {name} on what create_dataset gives"
            f" ({described(example.features)})"
        )
        with user_code(doing, root=loaded.zoo), unchanged(self.module):
            self._try(self.here(example.features))

    def here(self, value: Any) -> Any:
        """A structure of tensors on the model's device."""
        device = self.computing.device
        if device.type == "cpu":
            return value
        return map_leaves(lambda tensor: tensor.to(device, non_blocking=True), value)

    def batch_here(self, batch: Batch) -> Batch:
        """A batch on the model's device."""
        features, labels, weights = map(self.here, (batch.features, batch.labels, batch.weights))
        return Batch(features, labels, batch.num_examples, weights)

    def compile(self) -> None:
        """Have `run` run the module compiled in training; its first passes compile it."""
        self._compiled = compiled(self.module, self.loaded.label)

    def arguments(self, features: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What `forward` is called with for a batch's features, by position and by keyword."""
        return self._arguments(features)

    @contextlib.contextmanager
    def evaluating(self, *, keeps_graph: bool = False) -> Iterator[None]:
        """Keep nothing for gradients outside training, unless `forward` takes some itself."""
        with torch.set_grad_enabled(keeps_graph or self._takes_derivatives):
            yield

    def _try(self, features: Any) -> None:
        try:
            with self.evaluating():
                self.run(features)
        except RuntimeError:
            # As torch.autograd.grad says where nothing is kept; any other error comes once more.
            self._takes_derivatives = True
            with self.evaluating():
                self.run(features)

    def outputs(self, batch: Batch, own: OwnLoss | None, number: int = 0) -> Any:
        """What a batch's loss is computed of.

        Args:
            batch: On the model's device.
            own: How the module computes its loss itself; None where it does not.
            number: The batch's place in its epoch, counted from 0.
        """
        return self.run(batch.features) if own is None else own.outputs(self, batch, number)

    def predict(self, features: Any) -> Any:
        """What a prediction takes of a module: what `predict_step` returns, else `forward`."""
        step = own_step(self.module, "predict_step")
        if step is None:
            return self.run(features)
        with self.autocast():
            return at_least_float32(step(features, *([0] if takes_number(step) else [])))

    def run(self, features: Any, **more: Any) -> Any:
        """What the module returns for a batch's features, in float32 at least.

        Args:
            features: Where a training compiles it, of two examples at least.
            more: Other arguments of `forward`.
        """
        call: Callable[..., Any] = self.module
        if self._compiled is not None and self.module.training:
            call = self._compiled
        arguments, keywords = self.arguments(features)
        with self.autocast():
            return at_least_float32(call(*arguments, **keywords, **more))

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Compute in the type of `Computing`."""
        return self.computing.autocast()


def _arguments_of(
    module: nn.Module, features: Any
) -> Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]:
    """How features like these become arguments of `forward`."""
    is_one = _takes_one(module.forward)
    if isinstance(features, Mapping):
        takes = declared(module.forward)
        # A single parameter takes the dict itself, whatever its name is.
        takes_several = takes.takes_any or len(takes.names) > 1
        is_named = not features.keys().isdisjoint(takes.names)
        has_required = features.keys() >= set(takes.required)
        if not is_one or (takes_several and is_named and has_required):
            return lambda given: ((), dict(given))
    elif isinstance(features, tuple | list) and not is_one:
        return lambda given: (tuple(given), {})
    return lambda given: ((given,), {})


def _takes_one(forward: Callable[..., Any]) -> bool:
    """Whether a function can be called with one argument."""
    try:
        inspect.signature(forward).bind(None)
    except TypeError:
        return False
    except ValueError:  # A program of TorchScript has no signature.
        return True
    return True
