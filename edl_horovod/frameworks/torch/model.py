"""A user's PyTorch model: its named weights, and how it is saved."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from edl_horovod.frameworks.models import Evaluation, Prediction
from edl_horovod.frameworks.torch import exporting
from edl_horovod.frameworks.torch.evaluation import TorchEvaluation
from edl_horovod.frameworks.torch.prediction import TorchPrediction
from edl_horovod.frameworks.torch.running import Computing, Running
from edl_horovod.frameworks.torch.variables import TorchVariable
from edl_horovod.frameworks.torch.weight_files import read_weights, restore
from edl_horovod.frameworks.values import Batch, Variable
from edl_horovod.models.calling import user_code
from edl_horovod.models.zoo import LoadedSpec

__all__ = ["TorchModel"]


class TorchModel:
    """See `base.Model`."""

    def __init__(self, loaded: LoadedSpec, example: Batch, computing: Computing) -> None:
        """Create the user's module; see `Running`.

        Raises:
            UserCodeError: As for `Running`; or a tensor of the module cannot be stored.
        """
        self.running = Running(loaded, example, computing)
        with user_code(f"The state_dict of {loaded.label}", root=loaded.zoo):
            self._variables()

    @property
    def weights(self) -> dict[str, Variable]:
        """Its parameters and buffers, each once: a tied parameter under its first name.

        `state_dict` says which buffers. What else is in it, as the extra state of a module, the
        training leaves as it is (`Moving`), and `create_model` makes it again.
        """
        return {**self._variables()}

    def evaluation(self, element_spec: Any) -> Evaluation:
        """Prepare its evaluation."""
        return TorchEvaluation(self.running, element_spec)

    def prediction(self, element_spec: Any) -> Prediction:
        """Prepare its prediction."""
        return TorchPrediction(self.running, element_spec)

    def load(self, file: Path, *, is_trusted: bool) -> None:
        """Take the weights in a `.pt`, `.pth`, `.ckpt` or `.safetensors`."""
        restore(self.running.module, read_weights(file, is_trusted=is_trusted), file)

    def save(self, folder: Path) -> None:
        """Write `model.safetensors`."""
        self.running.module.eval()
        tensors = {name: variable.tensor for name, variable in self._variables().items()}
        save_file(_apart(tensors), folder / "model.safetensors")

    def export(self, folder: Path, *, saved_model: bool, onnx: bool) -> None:
        """Write `model.pt2` as its SavedModel, and `model.onnx`."""
        exporting.export(self.running, folder, saved_model=saved_model, onnx=onnx)

    def _variables(self) -> dict[str, TorchVariable]:
        module = self.running.module
        stored = set(map(id, (*module.parameters(), *module.buffers())))
        first_names: dict[int, tuple[str, torch.Tensor]] = {}
        # A state_dict of the user's may leave parameters out.
        named = (*module.state_dict(keep_vars=True).items(), *module.named_parameters())
        for name, tensor in named:
            if id(tensor) in stored:
                first_names.setdefault(id(tensor), (name, tensor))
        return {name: TorchVariable(name, tensor) for name, tensor in first_names.values()}


def _apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors as the safetensors format takes them: each in memory of its own, tied ones once."""
    writable: dict[str, torch.Tensor] = {}
    places, memory = set(), set()
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and place in places:
            continue
        storage = tensor.untyped_storage()
        if storage.data_ptr() in memory or storage.nbytes() > tensor.nbytes:
            tensor = tensor.clone()
        places.add(place)
        memory.add(storage.data_ptr())
        # The format has no type for complex numbers of 16 bytes.
        numbers = torch.view_as_real(tensor) if tensor.dtype == torch.complex128 else tensor
        writable[name] = numbers.contiguous()
    return writable
