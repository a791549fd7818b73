"""Prediction by a PyTorch model, and the description of its outputs."""

from typing import Any

import torch
from numpy.typing import NDArray

from edl_horovod.frameworks.torch.running import ModuleRunner
from edl_horovod.frameworks.torch.structures import detach, map_leaves
from edl_horovod.frameworks.torch.variables import numpy_dtype, to_numpy
from edl_horovod.frameworks.values import Batch, Output, flatten_outputs
from edl_horovod.models.calling import user_code

__all__ = ["TorchPrediction"]


class TorchPrediction:
    """Implements `models.Prediction`; thread-safe."""

    def __init__(self, runner: ModuleRunner, example: Batch) -> None:
        """Run the model once, on the sample examples.

        Raises:
            UserCodeError: The model failed.
        """
        self._runner = runner
        runner.module.eval()
        with user_code(f"Running the model of {runner.loaded.label}", root=runner.loaded.zoo):
            self._example = self.outputs(example.features)

    def describe(self) -> tuple[Output, ...]:
        """Describe the outputs, sorted by name."""
        named = flatten_outputs(self._example)
        return tuple(_describe(name, output) for name, output in sorted(named.items()))

    def outputs(self, features: Any) -> Any:
        """Return the model's outputs for a batch's features."""
        with self._runner.evaluating():  # This setting belongs to the current thread.
            return map_leaves(detach, self._runner.predict(self._runner.to_device(features)))

    def arrays(self, outputs: Any) -> dict[str, NDArray[Any]]:
        """Return such outputs as arrays by name."""
        return {name: to_numpy(tensor) for name, tensor in flatten_outputs(outputs).items()}


def _describe(name: str, value: Any) -> Output:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        problem = "it is not a dense tensor"
        return Output(name=name, dtype=type(value).__name__, batch_shape=None, problem=problem)
    sizes = tuple(value.shape)
    shape = (None, *sizes[1:]) if sizes else ()
    return Output(name=name, dtype=numpy_dtype(value.dtype).name, batch_shape=shape)
