"""What a framework's models are to a task: they are evaluated, predict, and are written."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from edl_horovod.frameworks.values import Batch, EvaluationSums, Output, Variable

__all__ = ["Evaluation", "Model", "Prediction"]


class Evaluation(Protocol):
    """Loss and metrics of a model, as sums that add up."""

    @property
    def names(self) -> Sequence[str]:
        """Names of its numbers, `loss` first."""

    @property
    def zeros(self) -> EvaluationSums:
        """The sums of no examples."""

    def sums(self, batch: Batch) -> EvaluationSums:
        """The sums of a batch.

        Raises:
            UserCodeError: Shapes in the model, the loss or a metric do not fit.
        """

    def values(self, sums: EvaluationSums) -> dict[str, float]:
        """The numbers by name, of at least one example."""


class Prediction(Protocol):
    """A model's outputs."""

    def describe(self) -> tuple[Output, ...]:
        """What they are, sorted by name."""

    def outputs(self, features: Any) -> Any:
        """What the model returns for a batch's features, as the user knows it."""

    def arrays(self, outputs: Any) -> dict[str, NDArray[Any]]:
        """These outputs by name."""


class Model(Protocol):
    """A user's model, built for examples of one kind."""

    @property
    def weights(self) -> Mapping[str, Variable]:
        """Its parameters, by the names that a trained model's files have for them."""

    def evaluation(self, element_spec: Any) -> Evaluation:
        """Prepare its evaluation on batches of this kind.

        Raises:
            UserCodeError: The spec's loss or metrics cannot be built for these examples.
        """

    def prediction(self, element_spec: Any) -> Prediction:
        """Prepare its prediction on batches of this kind.

        Raises:
            UserCodeError: The model raised something.
        """

    def load(self, file: Path, *, is_trusted: bool) -> None:
        """Take the weights in a file of the framework's own.

        Args:
            file: Of weights alone, or a checkpoint of another training.
            is_trusted: Whether code that it names may run.

        Raises:
            ConfigError: The framework takes no such files.
            UserCodeError: The file is no such file, or its weights are not those of this model.
        """

    def save(self, folder: Path) -> None:
        """Write it for programs without edl_horovod."""

    def export(self, folder: Path, *, saved_model: bool, onnx: bool) -> None:
        """Write it for programs without the user's code, in one format or both.

        Raises:
            UserCodeError: It cannot be written so; nothing half-written is left.
        """
