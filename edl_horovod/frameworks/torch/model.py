"""A user's PyTorch model: its named weights, and how they are loaded and saved."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from edl_horovod.frameworks.models import Evaluation, Prediction
from edl_horovod.frameworks.torch import exporting
from edl_horovod.frameworks.torch.evaluation import TorchEvaluation
from edl_horovod.frameworks.torch.prediction import TorchPrediction
from edl_horovod.frameworks.torch.running import ComputeOptions, ModuleRunner
from edl_horovod.frameworks.torch.variables import TorchVariable
from edl_horovod.frameworks.torch.weight_files import read_weights, restore
from edl_horovod.frameworks.values import Batch, Variable
from edl_horovod.models.calling import user_code
from edl_horovod.models.zoo import LoadedSpec

__all__ = ["TorchModel"]


class TorchModel:
    """Implements `models.Model`."""

    def __init__(self, loaded: LoadedSpec, example: Batch, compute: ComputeOptions) -> None:
        """Create the user's module; the arguments are those of `ModuleRunner`.

        Raises:
            UserCodeError: As for `ModuleRunner`; or a tensor of the module cannot be stored.
        """
        self.runner = ModuleRunner(loaded, example, compute)
        with user_code(f"The state_dict of {loaded.label}", root=loaded.zoo):
            self._variables()

    @property
    def weights(self) -> dict[str, Variable]:
        """Parameters, and buffers in `state_dict`; a tied parameter once, under its first name.

        Other content of `state_dict`, such as extra state of modules, is not included: training
        does not change it (`TrackedBuffers` checks this), and `create_model` creates it again.
        """
        return {**self._variables()}

    def evaluation(self, element_spec: Any) -> Evaluation:
        """Prepare the evaluation."""
        return TorchEvaluation(self.runner, element_spec)

    def prediction(self, element_spec: Any) -> Prediction:
        """Prepare the prediction."""
        return TorchPrediction(self.runner, element_spec)

    def load(self, file: Path, *, is_trusted: bool) -> None:
        """Load the weights from a `.pt`, `.pth`, `.ckpt` or `.safetensors` file."""
        restore(self.runner.module, read_weights(file, is_trusted=is_trusted), file)

    def save(self, folder: Path) -> None:
        """Write `model.safetensors`."""
        self.runner.module.eval()
        tensors = {name: variable.tensor for name, variable in self._variables().items()}
        save_file(_without_sharing(tensors), folder / "model.safetensors")

    def export(self, folder: Path, *, saved_model: bool, onnx: bool) -> None:
        """Write `model.pt2`, PyTorch's counterpart of a SavedModel, and `model.onnx`."""
        exporting.export(self.runner, folder, saved_model=saved_model, onnx=onnx)

    def _variables(self) -> dict[str, TorchVariable]:
        module = self.runner.module
        stored = set(map(id, (*module.parameters(), *module.buffers())))
        first_names: dict[int, tuple[str, torch.Tensor]] = {}
        # A user's own state_dict may omit parameters.
        named = (*module.state_dict(keep_vars=True).items(), *module.named_parameters())
        for name, tensor in named:
            if id(tensor) in stored:
                first_names.setdefault(id(tensor), (name, tensor))
        return {name: TorchVariable(name, tensor) for name, tensor in first_names.values()}


def _without_sharing(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Prepare tensors for the safetensors format: no shared memory, and tied tensors only once."""
    writable: dict[str, torch.Tensor] = {}
    views, storages = set(), set()
    for name, tensor in tensors.items():
        view = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and view in views:
            continue
        storage = tensor.untyped_storage()
        if storage.data_ptr() in storages or storage.nbytes() > tensor.nbytes:
            tensor = tensor.clone()
        views.add(view)
        storages.add(storage.data_ptr())
        # The format does not support complex128.
        numbers = torch.view_as_real(tensor) if tensor.dtype == torch.complex128 else tensor
        writable[name] = numbers.contiguous()
    return writable
