"""Values that pass between a framework and the ring: batches, sums, variables and outputs."""

import contextlib
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edl_horovod.errors import UserCodeError

log = logging.getLogger(__name__)

EXAMPLES, LOSS, LOSS_WEIGHT, WANTS_CHANGE, CONTRIBUTORS, METRICS = range(6)
"""Indices into the row of numbers that the ranks sum in a step.

They are the number of examples, the loss and its divisor, the flag of `StepSums.wants_change`, and
the number of ranks that have examples. The sums of the metrics start at METRICS.
"""
_CHUNK_BYTES = 1 << 16
_SMALL_BYTES = 1 << 16


class Variable(Protocol):
    """An array whose value changes while a job runs."""

    @property
    def shape(self) -> Iterable[int]:
        """The array's shape, which never changes."""

    @property
    def dtype(self) -> Any:
        """The type of its elements; `dtype.name` is NumPy's name of it."""

    def numpy(self) -> NDArray[Any]:
        """The current value."""

    def assign(self, value: NDArray[Any]) -> Any:
        """Set the value to one of the same shape and type."""


class Array:
    """A variable outside of any framework, for a task's counters, sums and text."""

    def __init__(self, value: ArrayLike) -> None:
        self._value = _frozen(np.array(value))

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return self._value.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The array's type."""
        return self._value.dtype

    def numpy(self) -> NDArray[Any]:
        """The current value, read-only; later assignments do not change the returned array."""
        return self._value

    def assign(self, value: ArrayLike) -> None:
        """Set the value to a copy of one of the same shape."""
        copy = np.array(value, self._value.dtype)
        assert copy.shape == self._value.shape, (copy.shape, self._value.shape)
        self._value = _frozen(copy)


@dataclass(frozen=True)
class StateGroup:
    """Variables whose update depends on each other, but not on variables of other groups.

    The updates may also depend on variables that are in no group, such as a learning rate.
    """

    names: tuple[str, ...]
    is_by_rows: bool = False
    """Whether the update of a row depends only on the same row of the group's other variables. Then
    all of them have the same number of rows."""


def state_groups(
    variables: Mapping[str, Variable],
    optimized: Iterable[tuple[Sequence[str], bool]],
    others: Iterable[str],
) -> list[StateGroup]:
    """Group a training step's variables; no groups if large variables would be in none.

    Args:
        variables: All variables of a training step, by name.
        optimized: The names of each trained variable and its slots, and whether the update of an
            element uses only the same element of them.
        others: Variables each element of which never changes, or depends only on the same element
            of a sum over the ring.
    """
    groups = []
    for names, is_by_elements in (*optimized, *(([name], True) for name in others)):
        shapes = {tuple(variables[name].shape) for name in names}
        has_rows = len(shapes) == 1 and shapes != {()}
        groups.append(StateGroup(tuple(names), is_by_rows=is_by_elements and has_rows))
    grouped = {name for group in groups for name in group.names}
    ungrouped = [variable for name, variable in variables.items() if name not in grouped]
    largest = max((num_bytes(part.shape, part.dtype) for part in ungrouped), default=0)
    return groups if largest <= _SMALL_BYTES else []


@dataclass(frozen=True)
class Rows:
    """A range of rows (the first axis) of a variable, or the whole variable."""

    variable: Variable
    first: int = 0
    last: int | None = None
    """The end of the range, exclusive; None for the whole variable, which may be a scalar."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of this range."""
        shape = tuple(self.variable.shape)
        return shape if self.last is None else (self.last - self.first, *shape[1:])


def is_sum_over_batch(once: float, twice: float, thrice: float) -> bool:
    """Whether a loss contains a sum over the batch, judged by its values for repeated examples.

    Such a loss grows linearly with the number of repetitions. A mean does not change, and a loss
    that depends on the batch as a whole does not grow linearly. Other terms of the loss (means, a
    penalty on the weights) do not affect the result.

    Args:
        once: The loss of some examples.
        twice: The loss of a batch that has each of them twice.
        thrice: The loss of a batch that has each of them three times.
    """
    growth, next_growth = twice - once, thrice - twice
    rounding = 1e-5 * max(abs(once), abs(twice), abs(thrice))
    tolerance = rounding + 1e-4 * abs(growth)
    return abs(growth) > 10 * rounding and abs(next_growth - growth) <= tolerance


def are_same_loss(first: float, second: float) -> bool:
    """Whether two values of a loss are equal up to rounding; true if one of them is NaN."""
    return not abs(first - second) > 1e-4 * abs(first)


BATCH_DEPENDENT = (
    "the loss of %s is not a mean over the examples: it is random, or depends on the batch as a"
    " whole. Each rank of a ring computes it from its own examples, so the training depends on the"
    " number of ranks. If it is a sum divided by something, such as the number of tokens that are"
    " not ignored, return both: (sum, weight)"
)
"""Warning about a loss that cannot be summed over the ranks; its argument is the model's label."""


def warn_of_metrics(
    whole: Mapping[str, float], parts: Sequence[Mapping[str, float]], *, label: str, instead: str
) -> None:
    """Warn of metrics of which those of the parts of a batch do not give that of the whole.

    Args:
        whole: The metrics of the batch, by name, each multiplied by its number of examples.
        parts: The same of each part; none if it has only one example.
        label: The model, for the message.
        instead: What else `create_metrics` may return.
    """
    for name, total in whole.items() if parts else ():
        values = [part.get(name, math.nan) for part in parts]
        size = sum(map(abs, values))
        if abs(sum(values) - total) > 1e-4 * size + 1e-5:
            log.warning(
                "the metric %s of %s is not a mean over the examples. Over several batches or ranks"
                " it is the mean of their values, so it depends on their number and size. Return"
                " one value for each example, or %s",
                name,
                label,
                instead,
            )


@contextlib.contextmanager
def few_examples() -> Iterator[None]:
    """Run the user's code on a few examples, which it may find too few, without warnings.

    An AUC, for instance, needs examples of both classes. Only a `UserCodeError` is raised.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except UserCodeError:
            raise
        except Exception as e:
            log.debug("not checked on a few examples: %r", e)


def num_bytes(shape: Iterable[int], dtype: Any) -> int:
    """Return the size of an array in bytes; `dtype` is NumPy's or a framework's."""
    item_bytes = dtype.itemsize if isinstance(dtype, np.dtype) else dtype.size
    return math.prod(shape) * int(item_bytes)


def checksum(array: NDArray[Any]) -> int:
    """Return a 63-bit checksum of an array's bytes, at about 4 GB/s.

    It detects values that were computed differently or not at all; it is not cryptographic. It is
    the sum of the 64-bit words of each chunk, weighted by an odd number that depends on the chunk's
    position, modulo 2**64.
    """
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    num_bytes = flat.size // _CHUNK_BYTES * _CHUNK_BYTES
    tail = np.zeros(_CHUNK_BYTES, np.uint8)
    tail[: flat.size - num_bytes] = flat[num_bytes:]
    words = flat[:num_bytes].view(np.uint64).reshape(-1, _CHUNK_BYTES // 8)
    # The rest is shorter than a chunk; each of its words has a weight of its own.
    weights = 2 * np.arange(len(words) + 1 + _CHUNK_BYTES // 8, dtype=np.uint64) + np.uint64(1)
    sums = words.sum(axis=1, dtype=np.uint64) * weights[: len(words)]
    rest = tail.view(np.uint64) * weights[len(words) + 1 :]
    # NumPy warns of an overflow in the sum of two numbers, and of none in that of an array.
    total = np.array([sums.sum(dtype=np.uint64), rest.sum(dtype=np.uint64)]).sum()
    return int(total) >> 1


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


@dataclass(frozen=True)
class NoiseKey:
    """Identifies the random numbers of a rank's examples in one pass of a step."""

    seed: int
    number: int
    """Counts the passes of all steps."""
    places: NDArray[np.int64]
    """The place of each example in the step, shape (examples,)."""


@dataclass(frozen=True)
class Batch:
    """One rank's examples of one step, as the framework's tensors."""

    features: Any
    labels: Any
    """None in `Mode.PREDICTION`."""
    num_examples: int
    weights: Any = None
    """Weights of the examples in loss and metrics; None if all weigh the same."""
    places: Callable[[], NDArray[np.int64]] | None = None
    """Returns the place in its step of each record, shape (records,); see `DataPlan.places`."""
    noise: NoiseKey | None = None
    """The key of these examples' noise; None where the step needs none."""

    @property
    def examples(self) -> tuple[Any, ...]:
        """Features and labels, followed by the weights if there are any."""
        weights = () if self.weights is None else (self.weights,)
        return (self.features, self.labels, *weights)


@dataclass(frozen=True)
class StepSums:
    """A step's results over the whole ring, the same on every rank apart from its times."""

    num_examples: int
    loss: float
    """Mean over the examples; NaN if the step had none."""
    wants_change: bool
    """Whether a member knows that the ring has to change after this step."""
    metrics: dict[str, float]
    metric_sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Sums of the metrics, which can be added over steps; the framework defines their meaning."""
    has_finite_gradients: bool = True
    """False if gradients were NaN or infinite; then no variable was changed."""
    local_steps: int | None = field(default=None, compare=False)
    """Local steps that this rank alone has done in a round; None for a step that is no round."""
    exchange_seconds: float = field(default=0.0, compare=False)
    """Time of this rank alone from the end of its own passes to the sums of all ranks."""
    apply_seconds: float = field(default=0.0, compare=False)
    """Time of this rank alone for the update that followed."""
    reductions: Sequence[tuple[str, float, float]] = field(default=(), compare=False)
    """Names, begins and ends of the sums of buckets over the ring, in seconds from the end of this
    rank's own passes on; empty unless `Reduction.is_timed`."""

    @classmethod
    def of(cls, row: Sequence[float] | NDArray[np.float64], **results: Any) -> Self:
        """Create the results of a step from the row of numbers that the ranks have summed.

        Args:
            row: The row, with EXAMPLES, WANTS_CHANGE and so on as indices.
            **results: The fields that a framework computes itself.
        """
        wants_change = bool(row[WANTS_CHANGE] > 0)
        return cls(num_examples=round(row[EXAMPLES]), wants_change=wants_change, **results)

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradients are finite; if not, no variable was changed."""
        is_loss_finite = math.isfinite(self.loss)
        return self.num_examples == 0 or (is_loss_finite and self.has_finite_gradients)


@dataclass(frozen=True)
class EvaluationSums:
    """Sums over examples, which can be added over batches and over ranks."""

    num_examples: float
    loss: float
    loss_weight: float
    """The divisor of the loss: the number of examples or of tokens that are not ignored, or
    a sum of weights."""
    metrics: NDArray[np.float64]
    """The sums of all metrics in one row; the framework computes the metrics' values from them."""
    wants_change: float = 0.0
    """The number of members that know that the ring has to change."""

    @classmethod
    def zeros(cls, num_metric_sums: int) -> Self:
        """Return the sums of an empty batch."""
        return cls(0.0, 0.0, 0.0, np.zeros(num_metric_sums))

    @classmethod
    def of(cls, vector: NDArray[np.float64]) -> Self:
        """Create the sums from their `vector`."""
        num_examples, loss, loss_weight = map(float, vector[:3])
        return cls(num_examples, loss, loss_weight, vector[3:-1], float(vector[-1]))

    @property
    def mean_loss(self) -> float:
        """The loss divided by its divisor; NaN if that is 0."""
        return float(self.loss / self.loss_weight) if self.loss_weight else math.nan

    @property
    def vector(self) -> NDArray[np.float64]:
        """All sums as one array, for a collective or a variable."""
        scalars = [self.num_examples, self.loss, self.loss_weight]
        return np.array([*scalars, *self.metrics, self.wants_change])

    def __add__(self, other: "EvaluationSums") -> "EvaluationSums":
        return EvaluationSums.of(self.vector + other.vector)


@dataclass(frozen=True, kw_only=True)
class Output:
    """One of a model's outputs."""

    name: str
    dtype: str
    """NumPy's name of the type; "string" for bytes; the framework's name if it is not an array."""
    batch_shape: tuple[int | None, ...] | None
    """The shape with the batch axis first; None for a size that varies, or if the rank varies."""
    problem: str = ""
    """Why the output cannot be written as an array; empty if it can."""

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of one record's part."""
        return (self.batch_shape or ())[1:]


def flatten_outputs(outputs: Any, prefix: str = "") -> dict[str, Any]:
    """Return a model's outputs by name.

    Names are the keys of a dict, the fields of a dataclass (without those that are None),
    `output_0` and so on for a list, and `output` for a single output.

    Args:
        outputs: The return value of a model.
        prefix: Name of the structure that contains them.
    """
    if isinstance(outputs, Mapping):
        parts = {str(key): value for key, value in outputs.items()}
    elif isinstance(outputs, list | tuple):
        start = "" if prefix else "output_"
        names = getattr(outputs, "_fields", [f"{start}{i}" for i in range(len(outputs))])
        parts = dict(zip(names, outputs, strict=True))
    elif is_dataclass(outputs):
        named = {attribute.name: getattr(outputs, attribute.name) for attribute in fields(outputs)}
        parts = {name: value for name, value in named.items() if value is not None}
    else:
        return {prefix or "output": outputs}
    flattened: dict[str, Any] = {}
    for name, value in parts.items():
        flattened |= flatten_outputs(value, f"{prefix}/{name}" if prefix else name)
    return flattened
