"""The interface of a framework's models: evaluation, prediction, and writing to files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from edl_horovod.frameworks.values import Batch, EvaluationSums, Output, Variable

__all__ = ["Evaluation", "Model", "Prediction"]


class Evaluation(Protocol):
    """Loss and metrics of a model, as sums that can be added over batches and ranks."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the loss and the metrics, `loss` first."""

    @property
    def zeros(self) -> EvaluationSums:
        """The sums of an empty batch."""

    def sums(self, batch: Batch) -> EvaluationSums:
        """Return the sums of a batch.

        Raises:
            UserCodeError: The model, the loss or a metric failed, for example on a shape.
        """

    def values(self, sums: EvaluationSums) -> dict[str, float]:
        """Return loss and metrics by name; the sums must hold at least one example."""


class Prediction(Protocol):
    """Computes a model's outputs."""

    def describe(self) -> tuple[Output, ...]:
        """Describe the outputs, sorted by name."""

    def outputs(self, features: Any) -> Any:
        """Return the model's outputs for a batch's features, in the structure that it returns."""

    def arrays(self, outputs: Any) -> dict[str, NDArray[Any]]:
        """Return such outputs as arrays by name."""


class Model(Protocol):
    """A user's model, built for batches of one structure."""

    @property
    def weights(self) -> Mapping[str, Variable]:
        """The model's weights by their names in a trained model's files."""

    def evaluation(self, element_spec: Any) -> Evaluation:
        """Prepare the evaluation of batches of this structure.

        Raises:
            UserCodeError: The spec's loss or metrics cannot be built for these examples.
        """

    def prediction(self, element_spec: Any) -> Prediction:
        """Prepare the prediction for batches of this structure.

        Raises:
            UserCodeError: The model failed.
        """

    def load(self, file: Path, *, is_trusted: bool) -> None:
        """Load the weights from a file in the framework's own format.

        Args:
            file: Weights alone, or a checkpoint of another training.
            is_trusted: Whether code that the file names may run.

        Raises:
            ConfigError: The framework does not read such files.
            UserCodeError: The file has another format, or its weights do not fit this model.
        """

    def save(self, folder: Path) -> None:
        """Write the model for programs that do not have edl_horovod."""

    def export(self, folder: Path, *, saved_model: bool, onnx: bool) -> None:
        """Write the model for programs that do not have the user's code, in one or both formats.

        Raises:
            UserCodeError: The model cannot be exported; no incomplete file is left.
        """
