"""The loss and the metrics of a batch, as sums.

They are the spec's own, else methods of the module: `loss(outputs, labels)` and
`metrics(outputs, labels)`, which may declare `features`, too. A loss is a mean: the ring adds up
its sum and what that is divided by.
"""

import contextlib
import itertools
import logging
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.torch.denominators import (
    Mean,
    ScalarsByNode,
    divisors_are_constant,
    mean_of_pair,
    means_of,
)
from edl_horovod.frameworks.torch.own_loss import OwnLoss
from edl_horovod.frameworks.torch.parts import loss_part
from edl_horovod.frameworks.torch.structures import (
    described,
    detached,
    leaves,
    map_leaves,
    part_of,
    repeated,
    repeated_batch,
)
from edl_horovod.frameworks.values import BATCH_DEPENDENT, Batch, are_same_loss, is_sum_over_batch
from edl_horovod.models.calling import declared, logging_warnings, user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

__all__ = ["Objective", "Outcome", "metric_means"]

log = logging.getLogger(__name__)

_WEIGHTS = "sample_weight"


@dataclass(frozen=True)
class Outcome:
    """What comes out of a batch."""

    loss: torch.Tensor
    """The mean, a scalar to begin a backward pass with; a constant where nothing counts."""
    loss_weight: float
    """What the loss divides by: the number of examples, or what its own divisor is."""
    metric_sums: list[float]
    """The sum and the divisor of each metric, in the order of `Objective.metric_names`."""
    means: list[Mean] = field(default_factory=list)
    """The terms of a loss that have divisors of their own; those of this batch are in `loss`, where
    a ring has others."""

    @property
    def loss_sum(self) -> float:
        """The loss times what it divides by."""
        return float(self.loss.detach()) * self.loss_weight


@dataclass(frozen=True)
class _Loss:
    """The loss of a batch."""

    mean: torch.Tensor
    weight: float
    means: list[Mean] = field(default_factory=list)

    @property
    def value(self) -> float:
        return float(self.mean.detach()) if self.weight else math.nan


class Objective:
    """Loss and metrics in one mode."""

    def __init__(
        self,
        loaded: LoadedSpec,
        module: nn.Module,
        mode: Mode,
        *,
        class_weight: Sequence[float] = (),
        own: OwnLoss | None = None,
    ) -> None:
        """Find them; nothing is computed yet.

        Args:
            loaded: The user's spec.
            module: Built.
            mode: Handed to `create_metrics`.
            class_weight: Weights of examples by their class; none for the same of all.
            own: How the module computes its loss itself; None where it does not.

        Raises:
            UserCodeError: There is no loss, or one that bears no weights of classes.
        """
        self._loaded, self._mode = loaded, mode
        self._class_weight = list(class_weight)
        self._own = own
        if own is not None and class_weight:
            raise UserCodeError(
                f"train.class_weight does not reach the loss that {own.name} of {loaded.label}"
                " computes itself.",
                received={"train.class_weight": self._class_weight},
                cure="Leave it out, or give the spec create_loss(self, outputs, labels).",
            )
        self._loss = _part(loaded, module, "create_loss", "loss") if own is None else own.loss
        if self._loss is None:
            cure = (
                "Give the spec create_loss, the module a method loss(self, outputs, labels) or"
                " training_step(self, batch, batch_idx), or its file a function loss, or set"
                " loss=..."
            )
            attribute = getattr(module, "loss", None)
            if isinstance(attribute, nn.Module):
                cure += (
                    f". Its attribute loss is a module ({type(attribute).__name__}) that may be any"
                    " layer: give it another name, and call it in def loss(self, outputs, labels)"
                )
            raise UserCodeError(f"{loaded.label} lacks loss.", cure=f"{cure}.")
        self._loss_takes = declared(self._loss)
        self._loss_takes_weights = _WEIGHTS in self._loss_takes.names or self._loss_takes.takes_any
        self._loss_name = _name_of(loaded, "create_loss", "loss") if own is None else own.name
        self._metrics = _part(loaded, module, "create_metrics", "metrics")
        self._metrics_name = _name_of(loaded, "create_metrics", "metrics")
        if own is not None and own.metrics is not None:
            self._metrics, self._metrics_name = own.metrics, own.name
        self._metrics_takes = declared(self._metrics) if self._metrics is not None else None
        self._scalars = ScalarsByNode()
        self._num_means = 0
        """Terms of the loss with a divisor of their own; 0 for a mean over the examples."""
        self._depends: list[bool] = []
        """Which of the outputs depend on parameters."""
        self.metric_names: list[str] = []

    @property
    def num_metric_sums(self) -> int:
        """How many numbers `Outcome.metric_sums` has."""
        return 2 * len(self.metric_names)

    @property
    def num_divisors(self) -> int:
        """How many means with divisors of their own `Outcome.means` has."""
        return self._num_means if self._num_means > 1 else 0

    @property
    def needs_graph(self) -> bool:
        """Whether outputs must come with their graph of autograd, also for an evaluation."""
        return self._own is not None and self._num_means > 0

    def recording(self) -> contextlib.AbstractContextManager[Any]:
        """Record while a module runs what it computes its loss of, where that is needed."""
        if self._own is None or not self.num_divisors:
            return contextlib.nullcontext()
        self._scalars = ScalarsByNode()
        return self._scalars

    def begin(
        self, batch: Batch, outputs: Any, rerun: Callable[[Batch], Any] | None = None
    ) -> None:
        """Find out the names of the metrics, and how the loss is added up over a ring.

        Args:
            batch: Some examples.
            outputs: What the model gives for them, with the graph of autograd: it tells which of
                them depend on parameters.
            rerun: Runs the model on other ones, where it computes its loss itself; None where
                outputs of parts and of repeated examples are parts of these, and these repeated.

        Raises:
            UserCodeError: Loss or metrics cannot be computed of these, or not be added up.
        """
        self._depends = [getattr(leaf, "requires_grad", False) for leaf in leaves(outputs)]

        def tried(batch: Batch, outputs: Any) -> tuple[Batch, Any]:
            if rerun is None:
                return batch, outputs
            with torch.enable_grad():
                return batch, rerun(batch)

        with torch.no_grad():
            constants = map_leaves(detached, outputs)
            if rerun is None:
                outputs = constants
            doing = f"{self._metrics_name} of {self._loaded.label}"
            with user_code(doing, root=self._loaded.zoo):
                self.metric_names = sorted(self._call_metrics(batch, constants))
            doing = f"{self._loss_name} of {self._loaded.label}"
            with user_code(doing, root=self._loaded.zoo):
                with logging_warnings(doing):
                    self._value(batch, outputs)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # They are told.
                    halves = [tried(*half) for half in _halves(batch, outputs)]
                    self._learn_divisors([(batch, outputs), *halves])
                    once, twice, thrice = (
                        self._loss_of(*tried(repeated_batch(batch, n), repeated(outputs, n))).value
                        for n in (1, 2, 3)
                    )
                    adds_up = self._adds_up(tried(*_whole(batch, outputs)), halves)
            if is_sum_over_batch(once, twice, thrice):
                raise self._unusable(
                    "must return the mean over the batch, or one value for each example",
                    "the sum over the batch",
                    "Write reduction='mean' or 'none', in each part of the loss.",
                )
            if not adds_up or not are_same_loss(once, twice):
                log.warning(BATCH_DEPENDENT, self._loaded.label)

    def of_batch(self, batch: Batch, outputs: Any) -> Outcome:
        """The sums of a batch.

        Args:
            batch: Examples, on the device of the outputs.
            outputs: What the model gave for them.

        Raises:
            UserCodeError: Loss or metrics raised something, or returned what has no mean.
        """
        root = self._loaded.zoo
        with user_code(f"{self._loss_name} of {self._loaded.label}", root=root):
            loss = self._loss_of(batch, outputs)
        mean = loss.mean if torch.is_grad_enabled() else loss.mean.detach()
        if self._metrics is None:
            return Outcome(mean, loss.weight, [], loss.means)
        with user_code(f"{self._metrics_name} of {self._loaded.label}", root=root), torch.no_grad():
            metrics = self._call_metrics(batch, map_leaves(detached, outputs))
            if sorted(metrics) != self.metric_names:
                raise UserCodeError(
                    f"{self._metrics_name} of {self._loaded.label} must return the same metrics for"
                    " every batch.",
                    received=f"{', '.join(sorted(metrics)) or 'none'}, where it was"
                    f" {', '.join(self.metric_names) or 'none'} before",
                )
            count = batch.num_examples
            sums = [
                number
                for name in self.metric_names
                for number in self._metric_sum(name, metrics[name], count)
            ]
        return Outcome(mean, loss.weight, sums, loss.means)

    def _loss_of(self, batch: Batch, outputs: Any) -> _Loss:
        """The loss of a batch."""
        scalars = ScalarsByNode() if self._own is None else self._scalars
        with scalars if self.num_divisors else contextlib.nullcontext():
            value = self._value(batch, outputs)
        count = batch.num_examples
        if isinstance(value, list):
            return _Loss(sum(mean for mean, _ in value), count, [term for _, term in value])
        if isinstance(value, tuple):
            total, weight = value
            return _Loss(total / weight, weight) if weight else _nothing(total)
        if value.ndim or not self._num_means:
            return _Loss(value.mean() if value.ndim else value, count)
        means = means_of(value, scalars.values)
        if len(means) != self._num_means:
            raise self._unusable(
                "must have the same terms in every batch",
                f"{len(means)} means over the batch, where there were {self._num_means} before",
                "Multiply a term by 0 where it is not to count, or return (sum, weight).",
            )
        if self.num_divisors:
            return _Loss(value, count, means)
        (mean,) = means
        if mean.may_be_clamped:
            mean = replace(mean, value=float(value.detach()))
        divisor = mean.counted
        return _Loss(value, divisor) if divisor else _nothing(value)

    def _value(self, batch: Batch, outputs: Any) -> Any:
        """Compute the loss.

        Returns:
            A scalar; one value for each example, weighed; a sum and its divisor as a tuple; or
            several of these as a list of means.
        """
        assert self._loss is not None
        weights = self._weights_of_classes(batch) if self._class_weight else batch.weights
        if self._own is None and not _is_traced(outputs):
            outputs = self._with_graph(outputs)
        available = {"outputs": outputs, "labels": batch.labels, "features": batch.features}
        takes, takes_weights = self._loss_takes, self._loss_takes_weights
        if takes_weights:
            available[_WEIGHTS] = weights
        with torch.enable_grad():
            value = takes.call(self._loss, available)
            is_one = isinstance(value, tuple | list)
            is_one = is_one or (isinstance(value, torch.Tensor) and value.ndim == 0)
            if is_one and weights is not None and not takes_weights:
                raise self._unusable(
                    "must return one value for each example, as there are weights of the examples",
                    "one number",
                    "Leave out the mean over the examples (reduction='none'), or declare"
                    " sample_weight and weigh them before the mean.",
                )
            if isinstance(value, tuple | list):
                return self._pairs(value)
            if is_one:
                return value
            count = batch.num_examples
            if not isinstance(value, torch.Tensor) or len(value) != count or value.numel() != count:
                raise self._no_loss(value)
            value = value.reshape(count)
            if weights is not None and not takes_weights:
                value = value * weights.reshape(count).to(value.dtype)
            return value

    def _with_graph(self, outputs: Any) -> Any:
        """Outputs that begin a graph of autograd, which has the divisor of a loss."""
        depends = iter(self._depends if any(self._depends) else itertools.repeat(True))

        def begun(leaf: Any) -> Any:
            is_number = isinstance(leaf, torch.Tensor) and (
                leaf.is_floating_point() or leaf.is_complex()
            )
            return leaf.detach().requires_grad_() if next(depends) and is_number else leaf

        return map_leaves(begun, outputs)

    def _pairs(self, value: Any) -> Any:
        """A sum and its divisor, or several of them as means."""
        if _is_pair(value):
            return self._pair(value)
        if not value or not all(map(_is_pair, value)):
            raise self._no_loss(value)
        if len(value) == 1:
            return self._pair(value[0])
        return [mean_of_pair(*self._pair(each)) for each in value]

    def _pair(self, value: Any) -> tuple[torch.Tensor, float]:
        total, divisor = value
        if isinstance(divisor, torch.Tensor) and divisor.requires_grad:
            divisor_is = "one that depends on the model's outputs"
        elif 0 <= float(divisor) < math.inf:
            return total, float(divisor)
        else:
            divisor_is = str(float(divisor))
        raise self._unusable(
            "must return a weight that the sum is divided by",
            divisor_is,
            "Return the sum of the losses and the sum of their weights, for instance"
            " (losses * mask).sum(), mask.sum().",
        )

    def _learn_divisors(self, tries: Sequence[tuple[Batch, Any]]) -> None:
        """Find out by some batches which means the loss consists of."""
        values = [self._value(*each) for each in tries]
        if isinstance(values[0], list):
            self._num_means = len(values[0])
        if not isinstance(values[0], torch.Tensor) or values[0].ndim:
            return
        counts = [batch.num_examples for batch, _ in tries]
        means = [means_of(value) for value in values]
        num_means = len(means[0])
        if any(len(its) != num_means for its in means):
            return
        if num_means == 1 or not divisors_are_constant(means, counts):
            self._num_means = num_means

    def _adds_up(self, whole: tuple[Batch, Any], halves: Sequence[tuple[Batch, Any]]) -> bool:
        """Whether the sums of two parts of a batch are that of the whole."""
        if self.num_divisors:
            return True
        parts = [self._loss_of(*part) for part in halves]
        weight = sum(part.weight for part in parts)
        if not weight:
            return True
        total = sum(part.value * part.weight for part in parts if part.weight)
        return are_same_loss(self._loss_of(*whole).value, total / weight)

    def _no_loss(self, value: Any) -> UserCodeError:
        shape = f"shape {list(value.shape)}" if isinstance(value, torch.Tensor) else ""
        return self._unusable(
            "must return a tensor: the mean over the batch, a scalar, or one value for each"
            " example, shape (examples,)",
            shape or type(value).__name__,
            "Take the mean over the other axes, for instance .flatten(1).mean(1)."
            if shape
            else "Return what a function of torch.nn.functional gives.",
        )

    def _unusable(self, what: str, received: str, cure: str) -> UserCodeError:
        return UserCodeError(
            f"{self._loss_name} of {self._loaded.label} {what}.", received=received, cure=cure
        )

    def _call_metrics(self, batch: Batch, outputs: Any) -> dict[str, Any]:
        if self._metrics is None or self._metrics_takes is None:
            return {}
        available = {
            "mode": self._mode,
            "outputs": outputs,
            "labels": batch.labels,
            "features": batch.features,
            "predictions": outputs,
            _WEIGHTS: batch.weights,
        }
        metrics = self._metrics_takes.call(self._metrics, available) or {}
        if not isinstance(metrics, dict):
            raise UserCodeError(
                f"{self._metrics_name} of {self._loaded.label} must return a dict.",
                received=type(metrics).__name__,
            )
        return metrics

    def _metric_sum(self, name: str, value: Any, count: int) -> tuple[float, float]:
        """A metric's sum and divisor."""
        if _is_pair(value):
            return float(value[0]), float(value[1])
        if isinstance(value, torch.Tensor) and value.ndim and len(value) == count:
            # Those of an example, as of shape (examples, 1), count as their mean.
            return float(value.double().reshape(count, -1).mean(1).sum()), count
        if isinstance(value, int | float) or _is_scalar(value):
            return float(value) * count, count
        raise UserCodeError(
            f"{name} of {self._metrics_name} of {self._loaded.label} must be the mean over the"
            " batch, a scalar, one value for each example, or a pair (sum, weight).",
            received=str(described(value)),
        )

    def _weights_of_classes(self, batch: Batch) -> torch.Tensor:
        """The weight of each example by its class, shape (examples,), float32."""
        labels, label = batch.labels, self._loaded.label
        if batch.weights is not None:
            raise UserCodeError(
                f"create_dataset of {label} gives weights of the examples, and train.class_weight"
                " is set, too.",
                received={"train.class_weight": self._class_weight},
                cure="Use one of them.",
            )
        if not isinstance(labels, torch.Tensor) or labels.ndim not in (1, 2):
            raise UserCodeError(
                f"train.class_weight needs one class for each example of {label}.",
                received=f"labels {described(labels)}",
                cure="Leave it out, and have create_dataset give (features, labels,"
                " sample_weight).",
            )
        if labels.ndim == 2:
            labels = labels[:, 0] if labels.shape[1] == 1 else labels.argmax(1)
        classes = labels.long()
        table = torch.tensor(self._class_weight, dtype=torch.float32, device=classes.device)
        is_weighted = (classes >= 0) & (classes < len(table))
        return torch.where(is_weighted, table[torch.where(is_weighted, classes, 0)], 1.0)


def _part(
    loaded: LoadedSpec, module: nn.Module, method: str, own: str
) -> Callable[..., Any] | None:
    """The spec's method where it has one of its own, else the module's."""
    if loaded.gives(method):
        return getattr(loaded.spec, method)  # type: ignore[no-any-return]
    found = getattr(module, own, None)
    if type(found).__module__ == nn.MSELoss.__module__:
        return loss_part(found, label=f"{own} of {loaded.label}")
    # Another layer of that name is a part of the model, not a function of outputs and labels.
    return found if callable(found) and not isinstance(found, nn.Module) else None


def _name_of(loaded: LoadedSpec, method: str, own: str) -> str:
    return method if loaded.gives(method) else own


def metric_means(sums: NDArray[np.float64]) -> list[float]:
    """The metrics of what `Outcome.metric_sums` add up to; NaN where nothing was counted."""
    return [
        float(total / weight) if weight else math.nan
        for total, weight in zip(sums[::2], sums[1::2], strict=True)
    ]


def _is_traced(outputs: Any) -> bool:
    """Whether some of the outputs have a graph of autograd."""
    return any(getattr(leaf, "requires_grad", False) for leaf in leaves(outputs))


def _is_pair(value: Any) -> bool:
    """Whether a loss has returned a sum and what it is to be divided by."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    total, divisor = value
    return _is_scalar(total) and (isinstance(divisor, int | float) or _is_scalar(divisor))


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.ndim == 0


def _nothing(value: torch.Tensor) -> _Loss:
    """The loss of examples of which none counts."""
    return _Loss(torch.zeros_like(value.detach()), 0.0)


def _whole(batch: Batch, outputs: Any) -> tuple[Batch, Any]:
    """A batch of which two parts are different, also one of few examples."""
    times = 1 if batch.num_examples > 3 else 3
    return repeated_batch(batch, times), repeated(outputs, times)


def _halves(batch: Batch, outputs: Any) -> list[tuple[Batch, Any]]:
    """Two parts of that; none of one example."""
    if batch.num_examples == 1:
        return []
    batch, outputs = _whole(batch, outputs)
    count = batch.num_examples
    middle = count // 2

    def some(first: int, last: int) -> Any:
        return map_leaves(
            lambda leaf: leaf[first:last] if getattr(leaf, "ndim", 0) else leaf, outputs
        )

    return [
        (part_of(batch, first, last), some(first, last))
        for first, last in ((0, middle), (middle, count))
    ]
