"""A PyTorch model's outputs, and what they are."""

from typing import Any

import torch
from numpy.typing import NDArray

from edl_horovod.frameworks.torch.running import Running
from edl_horovod.frameworks.torch.structures import detached, map_leaves
from edl_horovod.frameworks.torch.variables import numpy_dtype, to_numpy
from edl_horovod.frameworks.values import Batch, Output, flatten_outputs
from edl_horovod.models.calling import user_code

__all__ = ["TorchPrediction"]


class TorchPrediction:
    """The prediction of a batch; several threads may ask for one at a time."""

    def __init__(self, running: Running, example: Batch) -> None:
        """Run it once.

        Raises:
            UserCodeError: The model raised something.
        """
        self._running = running
        running.module.eval()
        with user_code(f"Running the model of {running.loaded.label}", root=running.loaded.zoo):
            self._example = self.outputs(example.features)

    def describe(self) -> tuple[Output, ...]:
        """What the outputs are, sorted by name."""
        named = flatten_outputs(self._example)
        return tuple(_described(name, each) for name, each in sorted(named.items()))

    def outputs(self, features: Any) -> Any:
        """What the model returns for a batch's features."""
        with self._running.evaluating():  # Of this thread.
            return map_leaves(detached, self._running.predict(self._running.here(features)))

    def arrays(self, outputs: Any) -> dict[str, NDArray[Any]]:
        """These outputs by name."""
        return {name: to_numpy(tensor) for name, tensor in flatten_outputs(outputs).items()}


def _described(name: str, value: Any) -> Output:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        problem = "it is no dense tensor"
        return Output(name=name, dtype=type(value).__name__, batch_shape=None, problem=problem)
    sizes = tuple(value.shape)
    shape = (None, *sizes[1:]) if sizes else ()
    return Output(name=name, dtype=numpy_dtype(value.dtype).name, batch_shape=shape)
