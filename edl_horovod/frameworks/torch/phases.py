"""The loss of a phase of a PyTorch model, and the noise that it may draw."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from edl_horovod.frameworks.phases import NoiseKey
from edl_horovod.frameworks.torch.batches import step_seed
from edl_horovod.frameworks.torch.running import ModuleRunner
from edl_horovod.frameworks.torch.structures import at_least_float32
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.calling import call_declared
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Phase


def with_noise(batch: Batch) -> Batch:
    """A batch with the key of its noise beside the features.

    The key has a row for each example, so that it is split and moved with them: the seed, the
    number of the pass, and the place of the example.
    """
    key: NoiseKey = batch.noise
    places = torch.as_tensor(key.places)
    rows = torch.stack([torch.full_like(places, n) for n in (key.seed, key.number)] + [places], 1)
    return replace(batch, features=(batch.features, rows), noise=None, places=None)


@contextmanager
def only(parameters: Sequence[nn.Parameter], module: nn.Module) -> Iterator[None]:
    """Compute no gradients of other parameters of the module inside the context."""
    ids = set(map(id, parameters))
    others = [p for p in module.parameters() if p.requires_grad and id(p) not in ids]
    for parameter in others:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in others:
            parameter.requires_grad_(True)


class PhaseLoss:
    """The loss of a phase; implements `running.ModuleLoss`."""

    metrics = None

    def __init__(self, loaded: LoadedSpec, phase: Phase, *, num_places: int) -> None:
        """Prepare the loss; nothing is computed.

        Args:
            loaded: The user's spec.
            phase: The phase.
            num_places: Records of a full step.
        """
        self.name = f"create_phase_loss (phase {phase.name})"
        self._function = loaded.spec.create_phase_loss
        self._phase, self._num_places = phase, num_places

    def outputs(self, runner: ModuleRunner, batch: Batch, number: int) -> Any:
        """Compute the loss of the result of `with_noise`."""
        features, key = batch.features
        arguments = {
            "phase": self._phase.name,
            "model": runner.module,
            "features": features,
            "labels": batch.labels,
            "sample_weight": batch.weights,
            "noise": _Noise(key, self._num_places),
        }
        with runner.compute.autocast():
            return at_least_float32({"loss": call_declared(self._function, arguments)})

    def loss(self, outputs: Any, sample_weight: Any = None) -> Any:
        """Return the loss in these outputs, which already includes weights of examples."""
        return outputs["loss"]


class _Noise:
    """Draws the noise of a batch's examples: a row of numbers for each place in the step."""

    def __init__(self, key: torch.Tensor, num_places: int) -> None:
        self._key, self._num_places, self._calls = key, num_places, 0

    def __call__(self, *shape: int) -> torch.Tensor:
        """Return standard normal numbers of shape (batch, *shape)."""
        seed, number = self._key[0, :2].tolist()
        places = self._key[:, 2]
        num_rows = max(int(places.max()) + 1, self._num_places)
        # On the CPU, so that the numbers are the same on any device.
        generator = torch.Generator().manual_seed(step_seed(seed, number, self._calls))
        self._calls += 1
        rows = torch.randn(num_rows, *shape, generator=generator)
        return rows.to(places.device)[places]
