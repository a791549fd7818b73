"""A user's PyTorch model: its named weights, and how it is saved."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model

from edl_horovod.frameworks.models import Evaluation, Prediction
from edl_horovod.frameworks.torch import exporting
from edl_horovod.frameworks.torch.evaluation import TorchEvaluation
from edl_horovod.frameworks.torch.prediction import TorchPrediction
from edl_horovod.frameworks.torch.running import Computing, Running
from edl_horovod.frameworks.torch.variables import TorchVariable
from edl_horovod.frameworks.values import Batch, Variable
from edl_horovod.models.zoo import LoadedSpec

__all__ = ["TorchModel"]


class TorchModel:
    """See `base.Model`."""

    def __init__(self, loaded: LoadedSpec, example: Batch, computing: Computing) -> None:
        """Create the user's module; see `Running`."""
        self.running = Running(loaded, example, computing)

    @property
    def weights(self) -> dict[str, Variable]:
        """What `state_dict` has, each once: a tied parameter under its first name."""
        found: dict[int, tuple[str, torch.Tensor]] = {}
        for name, tensor in self.running.module.state_dict(keep_vars=True).items():
            if isinstance(tensor, torch.Tensor):
                found.setdefault(id(tensor), (name, tensor))
        return {name: TorchVariable(name, tensor) for name, tensor in found.values()}

    def evaluation(self, element_spec: Any) -> Evaluation:
        """Prepare its evaluation."""
        return TorchEvaluation(self.running, element_spec)

    def prediction(self, element_spec: Any) -> Prediction:
        """Prepare its prediction."""
        return TorchPrediction(self.running, element_spec)

    def save(self, folder: Path) -> None:
        """Write `model.safetensors`."""
        save_model(self.running.module.eval(), str(folder / "model.safetensors"))

    def export(self, folder: Path, *, saved_model: bool, onnx: bool) -> None:
        """Write `model.pt2` as its SavedModel, and `model.onnx`."""
        exporting.export(self.running, folder, saved_model=saved_model, onnx=onnx)
