"""The contract between a user's model file and the framework."""

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from edl_horovod.errors import UserCodeError

__all__ = ["ElasticDLSpec", "Mode", "Padding", "Phase", "padded", "padding_of"]

_PADDING = "edl_horovod_padding"
_ALL = 1 << 22
"""A batch size above any rank's examples of a step; TensorFlow reserves memory for all of them."""


class Mode(enum.Enum):
    """The purpose of a dataset or a metric."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


@dataclass(frozen=True)
class Phase:
    """A part of each training step that has a loss, variables and an optimizer of its own."""

    name: str
    """Identifies its loss, its optimizer and its metric `NAME_loss`: a Python identifier."""
    variables: Sequence[Any]
    """What its optimizer changes: Keras variables, or PyTorch parameters."""
    repeats: int = 1
    """How often it runs in a step, each time with new noise."""
    every: int = 1
    """It runs in the first step, and then in each step of this number."""
    records: Literal["same", "new"] = "same"
    """Whether each repeat takes all records of the step, or they are divided among the repeats."""


class ElasticDLSpec(ABC):
    """How to create a model, its data, its loss, its optimizer and its metrics.

    A method gets only the parameters that it declares, so `create_metrics(self, outputs, labels)`
    works as well as one that also takes `mode` and `predictions`. Parameters that the user sets for
    the job (`params.hidden_units=[10,100]`) are passed to the constructor, and to
    `create_optimizer` where it declares them.

    The types below are for a Keras model; docs/reference/pytorch.md lists PyTorch's.
    """

    parses_batches = False
    """Whether `create_dataset` works on a whole step's records at once.

    It then receives them as one string tensor of shape (records,), for `tf.io.parse_example`, or
    as one dict of columns of shape (records, ...), and returns whole batches.
    """

    outputs_processor: type | None = None
    """A class with `process(self, predictions, worker_id)` that receives the predictions.

    A class `PredictionOutputsProcessor` in the same file is used, too.
    """

    framework: str = "keras"
    """The framework of the job, `keras` or `torch`, for a spec that is written for both."""

    adapted: Any = None
    """The result of `adapt` for the training data, also in evaluation and prediction."""

    def __init__(self, context: dict[str, Any] | None = None) -> None:
        """Store the context.

        Args:
            context: Facts about the process: `worker_id` (str), `master_ip` (str). None outside a
            job.
        """
        self._context = context

    def adapt(self, records: Iterator[Any], tell: Callable[[str], None]) -> Any:
        """Look once at all records of a training, before the model is created.

        It computes vocabularies, means or the types of columns. One process of the job calls it;
        all processes have the result in `adapted`, and the trained model keeps it. It is called
        only for classes that override it, with the parameters that they declare.

        Instead of `records`, or in addition, it may declare `blocks`: the records of data with
        columns as dicts of NumPy arrays, some thousand records at a time, in which dates and
        timestamps are datetime64 and texts are bytes; None where records have no columns.

        It may also declare `examples`: the result of `create_dataset` for all records in
        `Mode.TRAINING`, in batches, as Keras layers adapt to them
        (`layer.adapt(examples.map(lambda features, labels: features["text"]))`).

        Args:
            records: All training records, as `create_dataset` gets them, in their order.
            tell: Shows a line to people, for instance the size of a vocabulary.

        Returns:
            A value that JSON can hold: dicts with text keys, lists, texts, finite numbers.
        """
        return None

    @abstractmethod
    def create_model(self) -> Any:
        """Return the model, a `keras.Model`, functional or subclassed."""

    def create_dataset(self, dataset: Any, mode: Mode) -> Any:
        """Turn a `tf.data.Dataset` of records into one of single, unbatched examples.

        Leave it out where the records are examples already, as those of a user's own
        `tf.data.Dataset` (`data=dataset:module.name`).

        It may parse, filter, expand and shuffle. It is applied to the records of one step at a
        time, so it never mixes records of different steps.

        Args:
            dataset: Scalar string tensors, one a record; of data with columns (Parquet and others,
                docs/reference/data-formats.md) a dict of tensors for each record.
            mode: In `Mode.PREDICTION` there are no labels, and each record must give one example,
                in the order of the records.

        Returns:
            A dataset of `(features, labels)` or `(features, labels, sample_weight)`, or of
            `features` alone in `Mode.PREDICTION`; `features` is a tensor, or a dict keyed by the
            names of the model's inputs. `padded` makes it of examples of different lengths.
        """
        return dataset

    def create_loss(self, outputs: Any = None, labels: Any = None) -> Any:
        """Return the mean loss over a batch, a scalar tensor.

        Leave it out where the model has a loss: it was compiled with one, or has `compute_loss`.
        With a parameter `sample_weight` it receives the weights of the examples, if there are any.

        Args:
            outputs: The outputs of the model, shape (batch, ...).
            labels: The labels of `create_dataset`, shape (batch, ...).
        """
        raise NotImplementedError("create_loss")

    def create_optimizer(self, lr: float = 0.1) -> Any:
        """Return a Keras 3 optimizer; for phases a dict with one for the name of each phase.

        Leave it out where the model was compiled with one.

        Args:
            lr: Learning rate; the job's `train.learning_rate` if it is set.
        """
        raise NotImplementedError("create_optimizer")

    def create_outer_optimizer(self, model: Any = None) -> Any:
        """Return the optimizer that applies the mean change of replicas, or parties, in rounds.

        It is used with `train.local.method=diloco` and in federated trainings, and takes the
        negative change as the gradient. Without it, it is SGD with Nesterov momentum, or FedAvg.

        Args:
            model: The result of `create_model`, built.
        """
        raise NotImplementedError("create_outer_optimizer")

    def create_phases(self, model: Any) -> Sequence[Phase]:
        """Return the phases of a step, for a training with several losses, such as a GAN's.

        A step runs them in this order. A phase computes with the values that the phases before it
        have set, and the step is one unit: if a rank is lost in it, all of it is repeated. With
        phases, `create_phase_loss` takes the place of `create_loss`, which only an evaluation
        needs.

        Args:
            model: The result of `create_model`, built.
        """
        raise NotImplementedError("create_phases")

    def create_phase_loss(
        self,
        phase: str,
        model: Any,
        features: Any,
        labels: Any = None,
        noise: Callable[..., Any] | None = None,
    ) -> Any:
        """Return the whole loss of a phase for a batch, the mean over the examples.

        It calls the model, or parts of it, in training mode itself.

        Args:
            phase: The name of the phase.
            model: The result of `create_model`.
            features: The features of `create_dataset`, shape (batch, ...).
            labels: The labels of `create_dataset`, shape (batch, ...).
            noise: `noise(*shape)` returns standard normal numbers of shape `(batch, *shape)`. Those
                of an example follow from the seed of the job, the step, the phase, and the place
                of the example in the step, so they are the same on any ring. It needs exactly one
                example from each record; where `create_dataset` shuffles, the numbers of a step
                are the same, but which example has which differs.
        """
        raise NotImplementedError("create_phase_loss")

    def create_metrics(
        self, mode: Mode = Mode.TRAINING, outputs: Any = None, labels: Any = None
    ) -> dict[str, Any]:
        """Return metrics by name: means over a batch, one value per example, or Keras metrics.

        The framework weights each batch by its number of examples, so the result is the mean over
        all examples. Keras metrics, created once and returned in `Mode.EVALUATION` only, are
        updated with all labels and outputs.

        Args:
            mode: `Mode.TRAINING` or `Mode.EVALUATION`.
            outputs: The outputs of the model, shape (batch, ...).
            labels: The labels of `create_dataset`, shape (batch, ...).
        """
        return {}

    def create_callbacks(self) -> list[Any]:
        """Return Keras callbacks for the training, new ones at each call; none by default."""
        return []


@dataclass(frozen=True)
class Padding:
    """How the examples of a data set were padded."""

    values: Any
    lengths: tuple[int, ...]


def padded(dataset: Any, padding_values: Any = None, lengths: Sequence[int] = ()) -> Any:
    """Pad examples of different lengths; `create_dataset` returns the result.

    Each rank pads its examples of a step to the longest of them. With `lengths` it pads to the
    first of these lengths that is long enough, so that batches have few different shapes.

    Args:
        dataset: A `tf.data.Dataset` of single examples, as `create_dataset` returns them.
        padding_values: As in `tf.data.Dataset.padded_batch`; None pads with 0 and empty text.
        lengths: Increasing sizes for every axis in which examples may differ. A longer example is
            an error.

    Raises:
        UserCodeError: The lengths do not increase.
    """
    if any(lower >= upper for lower, upper in pairwise([0, *lengths])):
        raise UserCodeError(
            "The lengths to pad to must rise, from 1 on.",
            received={"lengths": list(lengths)},
            hint="Write them as in edl_horovod.padded(dataset, lengths=[32, 64, 128]).",
        )
    padded = dataset.padded_batch(_ALL, padding_values=padding_values)
    setattr(padded, _PADDING, Padding(padding_values, tuple(lengths)))
    return padded


def padding_of(dataset: Any) -> Padding | None:
    """The padding of a data set that `padded` returned; None for other data sets."""
    padding = getattr(dataset, _PADDING, None)
    return padding if isinstance(padding, Padding) else None
