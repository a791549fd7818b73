"""A user's module: created, on its device, and run."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.torch.compiling import compiled
from edl_horovod.frameworks.torch.moving import unchanged
from edl_horovod.frameworks.torch.structures import at_least_float32, described, map_leaves
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.zoo import LoadedSpec

__all__ = ["Computing", "Running"]


@dataclass(frozen=True)
class Computing:
    """Where and how a model computes."""

    device: torch.device
    dtype: torch.dtype | None = None
    """What autocast computes in; None without autocast."""

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        """Compute in less than float32 what bears it, where that is wanted."""
        if self.dtype is None:
            yield
            return
        with torch.autocast(self.device.type, dtype=self.dtype):
            yield


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
        self._compiled: Callable[[Any], Any] | None = None
        self.module.eval()
        doing = (
            f"Running the model of {name} on what create_dataset gives"
            f" ({described(example.features)})"
        )
        self._takes_derivatives = False
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
        """Have `train` run the module compiled; its first passes compile it."""
        self._compiled = compiled(self.module, self.loaded.label)

    def run(self, features: Any) -> Any:
        """What the module returns for a batch's features, in float32 at least."""
        with self.computing.autocast():
            return at_least_float32(self.module(features))

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Keep nothing for gradients outside training, unless `forward` takes some itself."""
        with torch.set_grad_enabled(self._takes_derivatives):
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

    def train(self, features: Any) -> Any:
        """As `run`, for a step of a training; where it compiles, of two examples at least."""
        if self._compiled is None:
            return self.run(features)
        with self.computing.autocast():
            return at_least_float32(self._compiled(features))
