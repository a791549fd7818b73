"""The loss and the metrics of a batch, as sums.

They come from the spec, or else from methods of the module: `loss(outputs, labels)` and
`metrics(outputs, labels)`, which may also declare `features`. A loss is a mean: the ring adds up
its numerators and its divisors.
"""

import contextlib
import functools
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
    is_over_examples,
    mean_of_pair,
    means_of,
)
from edl_horovod.frameworks.torch.plain_models import loss_part
from edl_horovod.frameworks.torch.running import ModuleLoss, ModuleRunner, find_module_loss
from edl_horovod.frameworks.torch.structures import (
    describe,
    detach,
    leaves,
    map_leaves,
    repeated,
    repeated_batch,
    slice_batch,
)
from edl_horovod.frameworks.values import (
    BATCH_DEPENDENT,
    Batch,
    are_same_loss,
    few_examples,
    is_sum_over_batch,
    warn_of_metrics,
)
from edl_horovod.models.calling import declared, logging_warnings, user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

log = logging.getLogger(__name__)

_WEIGHTS = "sample_weight"
_TINY = 1e-12


@dataclass(frozen=True)
class Outcome:
    """Loss and, once they are computed, metrics of a batch."""

    loss: torch.Tensor
    """The mean, a scalar for the backward pass; a constant if no example counts."""
    loss_weight: float
    """The divisor of the loss: the number of examples, or the divisor in the user's loss."""
    loss_terms: list[Mean] = field(default_factory=list)
    """The terms of a loss with several different divisors. `loss` uses the divisors of this batch,
    which a ring has to replace by the sums over the ranks."""
    metrics: list[float | torch.Tensor] = field(default_factory=list)
    """The sum and the divisor of each metric, in the order of `Objective.metric_names`."""

    @property
    def metric_sums(self) -> list[float]:
        """`metrics` as numbers; on a GPU this waits until they are computed."""
        return [float(number) for number in self.metrics]

    @property
    def loss_sum(self) -> float:
        """The loss multiplied by its divisor; on a GPU this waits until it is computed."""
        return float(self.loss.detach()) * self.loss_weight

    @property
    def mean_loss(self) -> float:
        """The loss as a number; NaN if no example counts."""
        return float(self.loss.detach()) if self.loss_weight else math.nan


class Objective:
    """Loss and metrics of a model in one mode."""

    def __init__(
        self,
        loaded: LoadedSpec,
        module: nn.Module,
        mode: Mode,
        *,
        class_weight: Sequence[float] = (),
        phase_loss: ModuleLoss | None = None,
    ) -> None:
        """Find the functions for loss and metrics; nothing is computed yet.

        Args:
            loaded: The user's spec.
            module: The built module.
            mode: Passed to `create_metrics`.
            class_weight: Weights of examples by class index; empty if all weigh the same.
            phase_loss: The loss of a phase, which has no metrics; None without phases.

        Raises:
            UserCodeError: There is no loss, or it does not support weights of classes; or the
                module uses features of Lightning that are not supported here.
        """
        self._loaded, self._mode = loaded, mode
        self._class_weight = list(class_weight)
        self.module_loss = module_loss = phase_loss or find_module_loss(loaded, module, mode)
        """How the module itself computes its loss; None if it does not."""
        if module_loss is not None and class_weight:
            raise UserCodeError(
                f"train.class_weight has no effect on the loss that {module_loss.name} of"
                f" {loaded.label} itself computes.",
                received={"train.class_weight": self._class_weight},
                hint="Leave it out, or give the spec create_loss(self, outputs, labels).",
            )
        find = functools.partial(_find_function, loaded, module)
        self._metrics, self._metrics_name = find("create_metrics", "metrics")
        if phase_loss is not None:
            self._metrics = None
        loss: Callable[..., Any] | None
        if module_loss is None:
            loss, self._loss_name = find("create_loss", "loss")
        else:
            loss, self._loss_name = module_loss.loss, module_loss.name
            if module_loss.metrics is not None:
                self._metrics, self._metrics_name = module_loss.metrics, module_loss.name
        if loss is None:
            hint = (
                "Give the spec create_loss, the module a method loss(self, outputs, labels) or"
                " training_step(self, batch, batch_idx), or its file a function loss, or set"
                " loss=..."
            )
            attribute = getattr(module, "loss", None)
            if isinstance(attribute, nn.Module):
                hint += (
                    f". Its attribute loss is a module ({type(attribute).__name__}) that may be any"
                    " layer: give it another name, and call it in def loss(self, outputs, labels)"
                )
            raise UserCodeError(f"{loaded.label} lacks loss.", hint=f"{hint}.")
        takes = declared(loss)
        self._call_loss = functools.partial(takes.call, loss)
        self._loss_takes_weights = _WEIGHTS in takes.names or takes.takes_any
        self._metrics_takes = declared(self._metrics) if self._metrics is not None else None
        self._scalars = ScalarsByNode()
        self._num_means = 0
        """The number of terms of the loss with their own divisors; 0 for a mean over examples."""
        self._are_over_examples: list[bool] = []
        """For each mean in the graph of a scalar loss, whether its divisor is one of these."""
        self._is_begun = False
        self._depends_on_parameters: list[bool] = []
        """For each leaf of the outputs, whether it depends on parameters."""
        self._has_opaque_outputs = False
        """Whether the outputs contain other objects than tensors and numbers, in which a graph of
        the loss alone cannot begin."""
        self.metric_names: list[str] = []

    @property
    def num_metric_sums(self) -> int:
        """The length of `Outcome.metric_sums`."""
        return 2 * len(self.metric_names)

    def metric_values(self, sums: NDArray[np.float64]) -> dict[str, float]:
        """Return the metrics from totals of `Outcome.metric_sums`; NaN if a divisor is 0."""
        return {
            name: float(total / weight) if weight else math.nan
            for name, total, weight in zip(self.metric_names, sums[::2], sums[1::2], strict=True)
        }

    @property
    def num_divisors(self) -> int:
        """The length of `Outcome.loss_terms`; 0 if one divisor is enough."""
        return self._num_means if self._num_means > 1 else 0

    @property
    def needs_graph(self) -> bool:
        """Whether the outputs need their autograd graph, even in an evaluation."""
        has_graph = self.module_loss is not None or self._has_opaque_outputs
        return has_graph and self._num_means > 0

    def outputs(self, runner: ModuleRunner, batch: Batch, number: int = 0) -> Any:
        """Run the module on a batch, for its loss.

        Args:
            runner: Runs the module of this objective.
            batch: Examples on the module's device.
            number: The batch's index in its epoch.
        """
        if self.module_loss is None:
            return runner.run(batch.features)
        if self._is_begun:
            if not self.num_divisors:
                return self.module_loss.outputs(runner, batch, number)
            self._scalars = ScalarsByNode()
        with self._scalars:
            return self.module_loss.outputs(runner, batch, number)

    def begin(
        self, batch: Batch, outputs: Any, rerun: Callable[[Batch], Any] | None = None
    ) -> None:
        """Find out the names of the metrics, and how the loss is summed over a ring.

        Args:
            batch: Sample examples.
            outputs: The model's outputs for them, with their autograd graph.
            rerun: Runs the model on other examples. It is needed only if the module itself computes
                its loss, or if its outputs cannot be cut into those of single examples; else they
                are sliced and repeated instead.

        Raises:
            UserCodeError: Loss or metrics cannot be computed for these examples, or not be summed.
        """
        self._depends_on_parameters = _are_traced(outputs)
        self._has_opaque_outputs = any(map(_is_opaque, leaves(outputs)))
        is_sliced = self.module_loss is None and _can_be_sliced(outputs, batch.num_examples)

        def with_outputs(batch: Batch, outputs: Any) -> tuple[Batch, Any]:
            if is_sliced or rerun is None:
                return batch, outputs
            with torch.enable_grad():
                outputs = rerun(batch)
            return batch, outputs if self.module_loss else map_leaves(detach, outputs)

        with torch.no_grad():
            detached_outputs = map_leaves(detach, outputs)
            if self.module_loss is None:
                outputs = detached_outputs
            doing = f"{self._metrics_name} of {self._loaded.label}"
            with user_code(doing, root=self._loaded.zoo):
                self.metric_names = sorted(self._call_metrics(batch, detached_outputs))
            doing = f"{self._loss_name} of {self._loaded.label}"
            with user_code(doing, root=self._loaded.zoo):
                with logging_warnings(doing):
                    self._value(batch, outputs)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # They were logged above.
                    halves = [with_outputs(*half) for half in _halves(batch, outputs)]
                    copies = [
                        with_outputs(repeated_batch(batch, times), repeated(outputs, times))
                        for times in (1, 2, 3)
                    ]
                    self._find_divisors([(batch, outputs), *halves], copies[1])
                    once, twice, thrice = (self._loss_of(*sample).mean_loss for sample in copies)
                    whole = with_outputs(*_enlarged(batch, outputs))
                    adds_up = self._adds_up(whole, halves)
            if is_sum_over_batch(once, twice, thrice):
                raise self._unusable(
                    "must return the mean over the batch, or one value for each example",
                    "the sum over the batch",
                    "Set reduction='mean' or 'none' in each part of the loss.",
                )
            if not adds_up or not are_same_loss(once, twice):
                log.warning(BATCH_DEPENDENT, self._loaded.label)
            with few_examples():
                total, *parts = map(self._metric_totals, [whole, *halves])
                label, instead = self._loaded.label, "a pair (sum, weight)"
                warn_of_metrics(total, parts, label=label, instead=instead)
        # The recorded scalars keep the graphs of all these batches.
        self._scalars, self._is_begun = ScalarsByNode(), True

    def loss_of(self, batch: Batch, outputs: Any) -> torch.Tensor:
        """Compute the loss of a batch alone, with its graph."""
        with user_code(f"{self._loss_name} of {self._loaded.label}", root=self._loaded.zoo):
            return self._loss_of(batch, outputs).loss

    def loss_of_one(self, batch: Batch, outputs: Any) -> torch.Tensor:
        """Compute the loss of a batch of one example, for the transforms of `torch.func`.

        In these, tensors have no values that Python could read.
        """
        value = self._call_loss(_arguments(batch, outputs))
        if isinstance(value, torch.Tensor):
            return value.mean()
        pairs = [value] if _is_pair(value) else value
        # An example that does not count has the divisor 0, and the sum 0.
        terms = [total / torch.as_tensor(divisor).clamp(min=_TINY) for total, divisor in pairs]
        return torch.stack(terms).sum()

    def of_batch(self, batch: Batch, outputs: Any) -> Outcome:
        """Compute loss and metrics of a batch.

        Args:
            batch: Examples, on the device of the outputs.
            outputs: The model's outputs for them.

        Raises:
            UserCodeError: Loss or metrics failed, or returned an unusable value.
        """
        root = self._loaded.zoo
        # Here, so that the metrics see what the loss writes into the outputs, as in a plain loop.
        outputs = self._with_graph(outputs)
        with user_code(f"{self._loss_name} of {self._loaded.label}", root=root):
            outcome = self._loss_of(batch, outputs)
        if not torch.is_grad_enabled():
            outcome = replace(outcome, loss=outcome.loss.detach())
        if self._metrics is None:
            return outcome
        with user_code(f"{self._metrics_name} of {self._loaded.label}", root=root), torch.no_grad():
            metrics = self._call_metrics(batch, map_leaves(detach, outputs))
            if sorted(metrics) != self.metric_names:
                raise UserCodeError(
                    f"{self._metrics_name} of {self._loaded.label} must return the same metrics for"
                    " every batch.",
                    received=f"{', '.join(sorted(metrics)) or 'none'}; before it was"
                    f" {', '.join(self.metric_names) or 'none'}",
                )
            count = batch.num_examples
            pairs = (self._sum_and_divisor(name, metrics[name], count) for name in sorted(metrics))
            sums = list(itertools.chain.from_iterable(pairs))
        return replace(outcome, metrics=sums)

    def _loss_of(self, batch: Batch, outputs: Any) -> Outcome:
        """Compute the loss of a batch, without metrics."""
        scalars = ScalarsByNode() if self.module_loss is None else self._scalars
        with scalars if self.num_divisors else contextlib.nullcontext():
            value = self._value(batch, outputs)
        count = batch.num_examples
        if isinstance(value, list):
            return Outcome(sum(mean for mean, _ in value), count, [term for _, term in value])
        if isinstance(value, tuple):
            total, weight = value
            return Outcome(total / weight, weight) if weight else _empty_loss(total)
        if value.ndim or not self._num_means:
            return Outcome(value.mean() if value.ndim else value, count)
        means = means_of(value, scalars.values)
        if len(means) != len(self._are_over_examples):
            raise self._unusable(
                "must have the same terms in every batch",
                f"{len(means)} means over the batch; before there were"
                f" {len(self._are_over_examples)}",
                "Multiply a term by 0 instead of leaving it out, or return (sum, weight).",
            )
        means = list(itertools.compress(means, self._are_over_examples))
        if self.num_divisors:
            return Outcome(value, count, means)
        (mean,) = means
        if mean.may_be_clamped:
            mean = replace(mean, value=float(value.detach()))
        divisor = mean.counted
        return Outcome(value, divisor) if divisor else _empty_loss(value)

    def _value(self, batch: Batch, outputs: Any) -> Any:
        """Call the user's loss.

        Returns:
            A scalar; one weighted value for each example; a sum and its divisor as a tuple; or
            several of these pairs as a list of means.
        """
        weights = self._weights_of_classes(batch) if self._class_weight else batch.weights
        available = _arguments(batch, self._with_graph(outputs))
        takes_weights = self._loss_takes_weights
        if takes_weights:
            available[_WEIGHTS] = weights
        with torch.enable_grad():
            value = self._call_loss(available)
            is_scalar = isinstance(value, torch.Tensor) and value.ndim == 0
            is_reduced = is_scalar or isinstance(value, tuple | list)
            if is_reduced and weights is not None and not takes_weights:
                raise self._unusable(
                    "must return one value for each example, as the examples have weights",
                    "one number",
                    "Leave out the mean over the examples (reduction='none'), or declare"
                    " sample_weight and apply the weights before the mean.",
                )
            if is_reduced:
                return value if is_scalar else self._pairs(value)
            count = batch.num_examples
            if not isinstance(value, torch.Tensor) or len(value) != count or value.numel() != count:
                raise self._invalid_loss(value)
            value = value.reshape(count)
            if weights is not None and not takes_weights:
                value = value * weights.reshape(count).to(value.dtype)
            return value

    def _with_graph(self, outputs: Any) -> Any:
        """Copy outputs without a graph to a new one, which has the loss' divisors.

        The copies are no leaves of the graph, as the loss may write into them.
        """
        if self.module_loss is not None or any(_are_traced(outputs)):
            return outputs
        depends = iter(
            self._depends_on_parameters
            if any(self._depends_on_parameters)
            else itertools.repeat(True)
        )

        def start_graph(leaf: Any) -> Any:
            is_tensor = isinstance(leaf, torch.Tensor)
            is_number = is_tensor and (leaf.is_floating_point() or leaf.is_complex())
            return leaf.detach().requires_grad_().clone() if next(depends) and is_number else leaf

        with torch.enable_grad():
            return map_leaves(start_graph, outputs)

    def _pairs(self, value: Any) -> Any:
        """Parse a pair of a sum and its divisor, or several pairs, which become means."""
        pairs = [value] if _is_pair(value) else value
        if not pairs or not all(map(_is_pair, pairs)):
            raise self._invalid_loss(value)
        if len(pairs) == 1:
            return self._pair(pairs[0])
        return [mean_of_pair(*self._pair(pair)) for pair in pairs]

    def _pair(self, value: Any) -> tuple[torch.Tensor, float]:
        total, divisor = value
        if isinstance(divisor, torch.Tensor) and divisor.requires_grad:
            divisor_is = "one that depends on the model's outputs"
        elif 0 <= float(divisor) < math.inf:
            return total, float(divisor)
        else:
            divisor_is = str(float(divisor))
        raise self._unusable(
            "must return a number that is not negative as the weight that divides the sum",
            divisor_is,
            "Return the sum of the losses and the sum of their weights, for example"
            " (losses * mask).sum(), mask.sum().",
        )

    def _find_divisors(
        self, samples: Sequence[tuple[Batch, Any]], doubled: tuple[Batch, Any]
    ) -> None:
        """Find out from some batches which means the loss consists of.

        Args:
            samples: Batches and their outputs.
            doubled: A batch that has each of the first one's examples twice, and its outputs.
        """
        with self._scalars:
            *values, doubled_value = [self._value(*sample) for sample in (*samples, doubled)]
        if isinstance(values[0], list):
            self._num_means = len(values[0])
        if not isinstance(values[0], torch.Tensor) or values[0].ndim:
            return
        means = [means_of(value, self._scalars.values) for value in (*values, doubled_value)]
        if any(len(batch_means) != len(means[0]) for batch_means in means):
            return
        are_over_examples = list(map(is_over_examples, means[0], means[-1]))
        *means, doubled_means = [
            list(itertools.compress(batch_means, are_over_examples)) for batch_means in means
        ]
        num_means = sum(are_over_examples)
        counts = [batch.num_examples for batch, _ in samples]
        if num_means == 1 or not divisors_are_constant(means, counts, doubled_means):
            self._num_means, self._are_over_examples = num_means, are_over_examples

    def _adds_up(self, whole: tuple[Batch, Any], halves: Sequence[tuple[Batch, Any]]) -> bool:
        """Whether the losses of two parts of a batch add up to that of the whole batch."""
        if self.num_divisors:
            return True
        parts = [self._loss_of(*part) for part in halves]
        weight = sum(part.loss_weight for part in parts)
        if not weight:
            return True
        total = sum(part.loss_sum for part in parts)
        return are_same_loss(self._loss_of(*whole).mean_loss, total / weight)

    def _invalid_loss(self, value: Any) -> UserCodeError:
        shape = f"shape {list(value.shape)}" if isinstance(value, torch.Tensor) else ""
        return self._unusable(
            "must return a tensor: the mean over the batch, a scalar, or one value for each"
            " example, shape (examples,)",
            shape or type(value).__name__,
            "Take the mean over the other axes, for example .flatten(1).mean(1)."
            if shape
            else "Return the result of a loss of torch.nn.functional.",
        )

    def _unusable(self, rule: str, received: str, hint: str) -> UserCodeError:
        name = f"{self._loss_name} of {self._loaded.label}"
        return UserCodeError(f"{name} {rule}.", received=received, hint=hint)

    def _call_metrics(self, batch: Batch, outputs: Any) -> dict[str, Any]:
        if self._metrics is None or self._metrics_takes is None:
            return {}
        available = _arguments(batch, outputs)
        available |= {"mode": self._mode, "predictions": outputs, _WEIGHTS: batch.weights}
        metrics = self._metrics_takes.call(self._metrics, available) or {}
        if not isinstance(metrics, dict):
            raise UserCodeError(
                f"{self._metrics_name} of {self._loaded.label} must return a dict.",
                received=type(metrics).__name__,
            )
        return metrics

    def _metric_totals(self, sample: tuple[Batch, Any]) -> dict[str, float]:
        """Return the sums of the metrics of a batch, given with its outputs."""
        batch, outputs = sample
        metrics = self._call_metrics(batch, map_leaves(detach, outputs)).items()
        count = batch.num_examples
        return {name: float(self._sum_and_divisor(name, v, count)[0]) for name, v in metrics}

    def _sum_and_divisor(
        self, name: str, value: Any, count: int
    ) -> tuple[float | torch.Tensor, float]:
        """Return a metric's sum and divisor for a batch of `count` examples."""
        if _is_pair(value):
            return float(value[0]), float(value[1])
        if isinstance(value, torch.Tensor) and value.ndim and len(value) == count:
            # Several values of an example, such as shape (examples, 1), are averaged.
            return value.double().reshape(count, -1).mean(1).sum(), count
        if isinstance(value, int | float) or _is_scalar(value):
            return float(value) * count, count
        raise UserCodeError(
            f"{name} of {self._metrics_name} of {self._loaded.label} must be the mean over the"
            " batch, a scalar, one value for each example, or a pair (sum, weight).",
            received=str(describe(value)),
        )

    def _weights_of_classes(self, batch: Batch) -> torch.Tensor:
        """Return the weight of each example by its class, shape (examples,), float32."""
        labels, label = batch.labels, self._loaded.label
        if batch.weights is not None:
            raise UserCodeError(
                f"create_dataset of {label} returns weights of the examples, but"
                " train.class_weight is also set.",
                received={"train.class_weight": self._class_weight},
                hint="Use only one of them.",
            )
        if not isinstance(labels, torch.Tensor) or labels.ndim not in (1, 2):
            raise UserCodeError(
                f"train.class_weight needs one class for each example of {label}.",
                received=f"labels {describe(labels)}",
                hint="Leave it out, and return (features, labels, sample_weight) from"
                " create_dataset.",
            )
        if labels.ndim == 2:
            labels = labels[:, 0] if labels.shape[1] == 1 else labels.argmax(1)
        classes = labels.long()
        table = torch.tensor(self._class_weight, dtype=torch.float32, device=classes.device)
        is_weighted = (classes >= 0) & (classes < len(table))
        return torch.where(is_weighted, table[torch.where(is_weighted, classes, 0)], 1.0)


def _find_function(
    loaded: LoadedSpec, module: nn.Module, method: str, module_method: str
) -> tuple[Callable[..., Any] | None, str]:
    """Return the spec's method if it overrides one; else the module's, if any; and its name."""
    if loaded.overrides_method(method):
        return getattr(loaded.spec, method), method
    attribute = getattr(module, module_method, None)
    if type(attribute).__module__ == nn.MSELoss.__module__:
        return loss_part(attribute, label=f"{module_method} of {loaded.label}"), module_method
    # Any other layer of this name is part of the model, not a function of outputs and labels.
    is_function = callable(attribute) and not isinstance(attribute, nn.Module)
    return attribute if is_function else None, module_method


def _arguments(batch: Batch, outputs: Any) -> dict[str, Any]:
    """Arguments that the user's loss and metrics may declare."""
    return {"outputs": outputs, "labels": batch.labels, "features": batch.features}


def _are_traced(outputs: Any) -> list[bool]:
    """For each leaf of the outputs, whether it has an autograd graph."""
    return [getattr(leaf, "requires_grad", False) for leaf in leaves(outputs)]


def _is_opaque(leaf: Any) -> bool:
    return not isinstance(leaf, torch.Tensor | bool | int | float | str)


def _can_be_sliced(outputs: Any, num_examples: int) -> bool:
    """Whether the first axis of each tensor certainly is that of the examples."""

    def can_be_sliced(leaf: Any) -> bool:
        if not isinstance(leaf, torch.Tensor):
            return not _is_opaque(leaf)
        if not leaf.ndim:
            return True
        first, *others = leaf.shape
        return bool(first == num_examples and num_examples not in others)

    return all(map(can_be_sliced, leaves(outputs)))


def _is_pair(value: Any) -> bool:
    """Whether a value is a pair of a sum and its divisor."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    total, divisor = value
    return _is_scalar(total) and (isinstance(divisor, int | float) or _is_scalar(divisor))


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.ndim == 0


def _empty_loss(value: torch.Tensor) -> Outcome:
    """Return the loss of a batch in which no example counts."""
    return Outcome(torch.zeros_like(value.detach()), 0.0)


def _enlarged(batch: Batch, outputs: Any) -> tuple[Batch, Any]:
    """Return a batch that is large enough to be split into two different parts."""
    times = 1 if batch.num_examples > 3 else 3
    return repeated_batch(batch, times), repeated(outputs, times)


def _halves(batch: Batch, outputs: Any) -> list[tuple[Batch, Any]]:
    """Split the result of `_whole` into two parts; an empty list for a single example."""
    if batch.num_examples == 1:
        return []
    batch, outputs = _enlarged(batch, outputs)
    count = batch.num_examples
    middle = count // 2

    def some(first: int, last: int) -> Any:
        return map_leaves(
            lambda leaf: leaf[first:last] if getattr(leaf, "ndim", 0) else leaf, outputs
        )

    return [
        (slice_batch(batch, first, last), some(first, last))
        for first, last in ((0, middle), (middle, count))
    ]
