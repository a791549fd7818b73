"""What goes between a framework and the ring: batches, sums, and arrays that no framework owns."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "BATCH_DEPENDENT",
    "Array",
    "Batch",
    "EvaluationSums",
    "Output",
    "Rows",
    "StateGroup",
    "StepSums",
    "Variable",
    "are_same_loss",
    "checksum",
    "flatten_outputs",
    "is_sum_over_batch",
    "num_bytes",
]

_CHUNK_BYTES = 1 << 16


class Variable(Protocol):
    """An array that changes while a job runs."""

    @property
    def shape(self) -> Iterable[int]:
        """Its sizes, which never change."""

    @property
    def dtype(self) -> Any:
        """Its type; `dtype.name` is NumPy's name of it."""

    def numpy(self) -> NDArray[Any]:
        """The present value."""

    def assign(self, value: NDArray[Any]) -> Any:
        """Replace the value by one of the same shape and type."""


class Array:
    """A variable that no framework computes with: sums, numbers and text of a task."""

    def __init__(self, value: ArrayLike) -> None:
        """Begin with a copy of this value."""
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
        """The present value, read-only; later changes do not show in it."""
        return self._value

    def assign(self, value: ArrayLike) -> None:
        """Replace the value by a copy of one of the same shape."""
        copy = np.array(value, self._value.dtype)
        assert copy.shape == self._value.shape, (copy.shape, self._value.shape)
        self._value = _frozen(copy)


@dataclass(frozen=True)
class StateGroup:
    """Variables that a step changes by each other's values, and by those of no other group.

    What no group holds, as a learning rate, may have a part in the changes of all.
    """

    names: tuple[str, ...]
    is_by_rows: bool = False
    """Whether a row depends on the same row of the group's other variables alone. Then all have the
    same first size."""


@dataclass(frozen=True)
class Rows:
    """Some rows of a variable, counted along its first size; or all of it."""

    variable: Variable
    first: int = 0
    last: int | None = None
    """The row after the last; None for all of the variable, which need not have rows."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the part."""
        shape = tuple(self.variable.shape)
        return shape if self.last is None else (self.last - self.first, *shape[1:])


def is_sum_over_batch(once: float, twice: float, thrice: float) -> bool:
    """Whether a loss has a part that is a sum over the batch, by what it is for repeated examples.

    A mean stays what it is, and a loss that depends on the batch as a whole changes less and less,
    or more and more. What else the loss has (means, a penalty on the weights) makes no difference.

    Args:
        once: The loss of some examples.
        twice: Of the same, each there twice.
        thrice: Of the same, each there three times.
    """
    growth, next_growth = twice - once, thrice - twice
    rounding = 1e-5 * max(abs(once), abs(twice), abs(thrice))
    return abs(growth) > 10 * rounding and abs(next_growth - growth) <= (
        rounding + 1e-4 * abs(growth)
    )


def are_same_loss(one: float, other: float) -> bool:
    """Whether two values are those of one loss, computed in two ways."""
    return not abs(one - other) > 1e-4 * abs(one)


BATCH_DEPENDENT = (
    "the loss of %s is no mean over the examples: it is random, or depends on the batch as a whole."
    " Each rank of a ring computes it of its own examples, so the training depends on the number of"
    " ranks. Where it is a sum divided by something, as by the number of tokens that count, have it"
    " return both: (sum, weight)"
)
"""What to tell of a loss of this label that a ring cannot add up."""


def num_bytes(shape: Iterable[int], dtype: Any) -> int:
    """What an array takes; `dtype` is NumPy's or a framework's."""
    each = dtype.itemsize if isinstance(dtype, np.dtype) else dtype.size
    return math.prod(shape) * int(each)


def checksum(array: NDArray[Any]) -> int:
    """A number of 63 bits that is the same for arrays of the same bits; some 4 GB/s.

    It tells apart what computing otherwise, or not at all, makes of a value; it is no match for
    somebody who looks for two values with the same number. The words of each chunk are added up,
    and the sums with odd weights that say where the chunk is, all modulo 2**64.
    """
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    num_bytes = flat.size // _CHUNK_BYTES * _CHUNK_BYTES
    tail = np.zeros(_CHUNK_BYTES, np.uint8)
    tail[: flat.size - num_bytes] = flat[num_bytes:]
    words = flat[:num_bytes].view(np.uint64).reshape(-1, _CHUNK_BYTES // 8)
    # The rest is short: there each word has a weight of its own.
    weights = 2 * np.arange(len(words) + 1 + _CHUNK_BYTES // 8, dtype=np.uint64) + np.uint64(1)
    sums = words.sum(axis=1, dtype=np.uint64) * weights[: len(words)]
    rest = tail.view(np.uint64) * weights[len(words) + 1 :]
    total = sums.sum(dtype=np.uint64) + rest.sum(dtype=np.uint64)
    return int(total) >> 1


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


@dataclass(frozen=True)
class Batch:
    """The examples of one step on one rank, as the framework has them."""

    features: Any
    labels: Any
    """None in `Mode.PREDICTION`."""
    num_examples: int
    weights: Any = None
    """Of the examples in loss and metrics; None where they weigh the same."""

    @property
    def examples(self) -> tuple[Any, ...]:
        """Features and labels, and the weights if there are any."""
        weights = () if self.weights is None else (self.weights,)
        return (self.features, self.labels, *weights)


@dataclass(frozen=True)
class StepSums:
    """A step's numbers over the whole ring, the same on every rank."""

    num_examples: int
    loss: float
    """Mean over the examples; NaN where the step held none."""
    wants_change: bool
    """Some member knows that the ring is to change after this step."""
    metrics: dict[str, float]
    metric_sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """What the metrics have counted, which adds up over steps; the framework knows what it is."""
    has_finite_gradients: bool = True
    """False means that NaN or infinite gradients were found, and that nothing was changed."""

    @property
    def is_finite(self) -> bool:
        """Whether the variables were changed; false means a loss or gradients that are not."""
        is_loss_finite = math.isfinite(self.loss)
        return self.num_examples == 0 or (is_loss_finite and self.has_finite_gradients)


@dataclass(frozen=True)
class EvaluationSums:
    """Sums over examples, which add up over batches and over ranks."""

    num_examples: float
    loss: float
    loss_weight: float
    """What the loss is divided by: the number of examples, of tokens that count, or a sum of
    weights."""
    metrics: NDArray[np.float64]
    """What the metrics count, back to back; the framework makes their values of it."""
    wants_change: float = 0.0
    """Members that know that the ring is to change."""

    @classmethod
    def zeros(cls, num_metric_sums: int) -> "EvaluationSums":
        """Of no examples."""
        return cls(0.0, 0.0, 0.0, np.zeros(num_metric_sums))

    @classmethod
    def of(cls, vector: NDArray[np.float64]) -> "EvaluationSums":
        """What `vector` was made of."""
        num_examples, loss, loss_weight = map(float, vector[:3])
        return cls(num_examples, loss, loss_weight, vector[3:-1], float(vector[-1]))

    @property
    def mean_loss(self) -> float:
        """NaN where no example counts."""
        return float(self.loss / self.loss_weight) if self.loss_weight else math.nan

    @property
    def vector(self) -> NDArray[np.float64]:
        """All of them as one array, for a collective or a variable."""
        first = [self.num_examples, self.loss, self.loss_weight]
        return np.array([*first, *self.metrics, self.wants_change])

    def __add__(self, other: "EvaluationSums") -> "EvaluationSums":
        return EvaluationSums.of(self.vector + other.vector)


@dataclass(frozen=True, kw_only=True)
class Output:
    """One of a model's outputs."""

    name: str
    dtype: str
    """NumPy's name of the type; "string" for bytes; the framework's where it is no array."""
    batch_shape: tuple[int | None, ...] | None
    """Sizes, the batch first, None for one that differs; None where even their number does."""
    problem: str = ""
    """Why it is no array of values, where it is none."""

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Sizes of one record's part."""
        return (self.batch_shape or ())[1:]


def flatten_outputs(outputs: Any, prefix: str = "") -> dict[str, Any]:
    """Name a model's outputs: keys of a dict, `output_0` and so on of a list, `output` for one.

    Fields of a dataclass are keys, those that are None left out.

    Args:
        outputs: What a model returned.
        prefix: Name of the structure that these are in.
    """
    if isinstance(outputs, Mapping):
        parts = {str(key): value for key, value in outputs.items()}
    elif isinstance(outputs, list | tuple):
        start = "" if prefix else "output_"
        names = getattr(outputs, "_fields", [f"{start}{i}" for i in range(len(outputs))])
        parts = dict(zip(names, outputs, strict=True))
    elif is_dataclass(outputs):
        named = {each.name: getattr(outputs, each.name) for each in fields(outputs)}
        parts = {name: value for name, value in named.items() if value is not None}
    else:
        return {prefix or "output": outputs}
    found: dict[str, Any] = {}
    for name, value in parts.items():
        found |= flatten_outputs(value, f"{prefix}/{name}" if prefix else name)
    return found
