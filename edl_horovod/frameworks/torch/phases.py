"""The loss of a phase of a PyTorch model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from edl_horovod.frameworks.torch.noise import Noise
from edl_horovod.frameworks.torch.running import ModuleRunner
from edl_horovod.frameworks.torch.structures import at_least_float32
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.calling import call_declared
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Phase


@contextmanager
def only(parameters: Sequence[nn.Parameter] | None, module: nn.Module) -> Iterator[None]:
    """Compute no gradients of other parameters of the module inside the context; None for all."""
    if parameters is None:
        yield
        return
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
            "noise": Noise(key, self._num_places),
        }
        with runner.compute.autocast():
            return at_least_float32({"loss": call_declared(self._function, arguments)})

    def loss(self, outputs: Any, sample_weight: Any = None) -> Any:
        """Return the loss in these outputs, which already includes weights of examples."""
        return outputs["loss"]
