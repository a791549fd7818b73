"""What a batch is worth to a training or an evaluation: its loss and its metrics, as sums.

They are the spec's own, else methods of the module: `loss(outputs, labels)` and
`metrics(outputs, labels)`.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.torch.structures import described, map_leaves, repeated, repeated_batch
from edl_horovod.frameworks.values import Batch, is_sum_over_batch
from edl_horovod.models.calling import call_declared, declared, logging_warnings, user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

__all__ = ["Objective", "Outcome"]

log = logging.getLogger(__name__)

_WEIGHTS = "sample_weight"


@dataclass(frozen=True)
class Outcome:
    """What comes out of a batch."""

    loss_sum: torch.Tensor
    """The loss, added up over the examples; a scalar to begin a backward pass with."""
    metric_sums: list[float]
    """Those of the metrics, in the order of `Objective.metric_names`."""


class Objective:
    """Loss and metrics in one mode."""

    def __init__(
        self,
        loaded: LoadedSpec,
        module: nn.Module,
        mode: Mode,
        *,
        class_weight: Sequence[float] = (),
    ) -> None:
        """Find them; nothing is computed yet.

        Args:
            loaded: The user's spec.
            module: Built.
            mode: Handed to `create_metrics`.
            class_weight: Weights of examples by their class; none for the same of all.

        Raises:
            UserCodeError: There is no loss.
        """
        self._loaded, self._mode = loaded, mode
        self._class_weight = list(class_weight)
        self._loss = _part(loaded, module, "create_loss", "loss")
        if self._loss is None:
            has_step = callable(getattr(module, "training_step", None))
            cure = "Give the spec create_loss, the module a method loss(self, outputs, labels), or"
            cure += " its file a function loss, or set loss=..."
            if has_step:
                cure += ". A training_step is not called: on a ring the step is not the model's"
            raise UserCodeError(f"{loaded.label} lacks loss.", cure=f"{cure}.")
        self._loss_name = _name_of(loaded, "create_loss", "loss")
        self._metrics = _part(loaded, module, "create_metrics", "metrics")
        self._metrics_name = _name_of(loaded, "create_metrics", "metrics")
        self.metric_names: list[str] = []

    def begin(self, batch: Batch, outputs: Any) -> None:
        """Find out the names of the metrics, and whether all can be added up over a ring.

        Args:
            batch: Some examples.
            outputs: What the model gives for them.

        Raises:
            UserCodeError: Loss or metrics cannot be computed of these, or not be added up.
        """
        with torch.no_grad():
            outputs = map_leaves(_detached, outputs)
            doing = f"{self._metrics_name} of {self._loaded.label}"
            with user_code(doing, root=self._loaded.zoo):
                made = self._call_metrics(batch, outputs)
            self.metric_names = sorted(made)
            with logging_warnings(f"{self._loss_name} of {self._loaded.label}"):
                once = self._loss_of(batch, outputs, 1)
            more = (self._loss_of(batch, outputs, times) for times in (2, 3))
            self._require_mean(once, *more)

    def of_batch(self, batch: Batch, outputs: Any) -> Outcome:
        """The sums of a batch.

        Args:
            batch: Examples, on the device of the outputs.
            outputs: What the model gave for them.

        Raises:
            UserCodeError: Loss or metrics raised something, or returned what has no mean.
        """
        root = self._loaded.zoo
        weights = batch.weights
        if self._class_weight:
            weights = self._weights_of_classes(batch)
        with user_code(f"{self._loss_name} of {self._loaded.label}", root=root):
            loss_sum = self._loss_sum(batch, outputs, weights)
        with user_code(f"{self._metrics_name} of {self._loaded.label}", root=root), torch.no_grad():
            made = self._call_metrics(batch, map_leaves(_detached, outputs))
            if sorted(made) != self.metric_names:
                raise UserCodeError(
                    f"{self._metrics_name} of {self._loaded.label} must return the same metrics for"
                    " every batch.",
                    received=f"{', '.join(sorted(made)) or 'none'}, where it was"
                    f" {', '.join(self.metric_names) or 'none'} before",
                )
            count = batch.num_examples
            sums = [self._metric_sum(name, made[name], count) for name in self.metric_names]
        return Outcome(loss_sum, sums)

    def _loss_sum(self, batch: Batch, outputs: Any, weights: Any) -> torch.Tensor:
        assert self._loss is not None
        given = {"outputs": outputs, "labels": batch.labels}
        takes = declared(self._loss)
        takes_weights = _WEIGHTS in takes.names or takes.takes_any
        if takes_weights:
            given[_WEIGHTS] = weights
        value = call_declared(self._loss, given)
        count = batch.num_examples
        if isinstance(value, torch.Tensor) and value.ndim == 0:
            if weights is not None and not takes_weights:
                raise self._unusable(
                    "must return one value for each example, as there are weights of the examples",
                    "one number",
                    "Leave out the mean over the examples (reduction='none'), or declare"
                    " sample_weight and weigh them before the mean.",
                )
            return value * count
        if not isinstance(value, torch.Tensor) or len(value) != count or value.numel() != count:
            raise self._no_loss(value)
        value = value.reshape(count)
        if weights is not None and not takes_weights:
            value = value * weights.reshape(count).to(value.dtype)
        return value.sum()

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
        if self._metrics is None:
            return {}
        available = {
            "mode": self._mode,
            "outputs": outputs,
            "labels": batch.labels,
            "predictions": outputs,
            _WEIGHTS: batch.weights,
        }
        made = call_declared(self._metrics, available) or {}
        if not isinstance(made, dict):
            raise UserCodeError(
                f"{self._metrics_name} of {self._loaded.label} must return a dict.",
                received=type(made).__name__,
            )
        return made

    def _metric_sum(self, name: str, value: Any, count: int) -> float:
        if isinstance(value, torch.Tensor) and value.ndim and len(value) == count:
            # Those of an example, as of shape (examples, 1), count as their mean.
            return float(value.double().reshape(count, -1).mean(1).sum())
        is_number = isinstance(value, int | float)
        if is_number or (isinstance(value, torch.Tensor) and value.ndim == 0):
            return float(value) * count
        raise UserCodeError(
            f"{name} of {self._metrics_name} of {self._loaded.label} must be the mean over the"
            " batch, a scalar, or one value for each example.",
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

    def _loss_of(self, batch: Batch, outputs: Any, times: int) -> float:
        """The loss of a batch whose examples are all there so many times."""
        batch, outputs = repeated_batch(batch, times), repeated(outputs, times)
        return float(self.of_batch(batch, outputs).loss_sum) / batch.num_examples

    def _require_mean(self, once: float, twice: float, thrice: float) -> None:
        """Refuse a sum: the mean over examples that are all there twice is what it was."""
        if is_sum_over_batch(once, twice, thrice):
            raise self._unusable(
                "must return the mean over the batch, or one value for each example",
                "the sum over the batch",
                "Write reduction='mean' or 'none', in each part of the loss.",
            )
        if not once or abs(twice - once) <= 1e-3 * abs(once) or twice != twice:
            return
        log.warning(
            "the loss of %s is no mean over the examples: it is random, or depends on the batch as"
            " a whole. Each rank of a ring computes it of its own examples, so the training"
            " depends on the number of ranks",
            self._loaded.label,
        )


def _part(
    loaded: LoadedSpec, module: nn.Module, method: str, own: str
) -> Callable[..., Any] | None:
    """The spec's method where it has one of its own, else the module's."""
    if loaded.gives(method):
        return getattr(loaded.spec, method)  # type: ignore[no-any-return]
    found = getattr(module, own, None)
    # A layer of that name is a part of the model, not a function of outputs and labels.
    return found if callable(found) and not isinstance(found, nn.Module) else None


def _name_of(loaded: LoadedSpec, method: str, own: str) -> str:
    return method if loaded.gives(method) else own


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value
