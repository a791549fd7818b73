"""Keras callbacks on a ring: the leader runs them, and what they change goes to every rank.

After the leader has run them the ring's state is synchronised, so a callback may change any
variable of model or optimizer, the learning rate above all. Their own numbers (how long a metric
has been flat) travel in that state too, as JSON: another leader goes on where the lost one was.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.epoch_callbacks import EpochCallbacks, is_plain
from edl_horovod.frameworks.keras.batch_hooks import BatchHooks
from edl_horovod.frameworks.keras.trainable import Trainable
from edl_horovod.frameworks.values import StepSums

__all__ = ["KerasCallbacks", "may_freeze"]

_KEEPS_WEIGHTS = "keeps weights in one process only, and a ring may lose that process"
_TEST_HOOKS = ("on_test_begin", "on_test_end", "on_test_batch_begin", "on_test_batch_end")


class EpochMetrics(Protocol):
    """What makes the metrics of an epoch."""

    @property
    def num_metric_sums(self) -> int:
        """How many numbers they count."""

    def metric_values(self, counted: NDArray[np.float64], count: float) -> dict[str, float]:
        """Their values, of the sums of what steps have counted of so many examples."""


class KerasCallbacks(EpochCallbacks):
    """The callbacks of a training, and what they must be told."""

    def __init__(
        self,
        callbacks: Sequence[Any],
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        *,
        metrics: EpochMetrics,
        trainable: Trainable,
        begin_anew: Callable[[], None],
        num_epochs: int,
        steps_per_epoch: int | None,
        per_step: bool,
        zoo: Path,
    ) -> None:
        """Call nothing yet. The model has `optimizer` while a callback runs.

        Args:
            callbacks: The user's.
            model: What is trained.
            optimizer: Trains it.
            metrics: Makes the numbers of an epoch.
            trainable: What of the model is trained.
            begin_anew: Called where callbacks have changed that.
            num_epochs: Told to the callbacks.
            steps_per_epoch: Told to the callbacks; None where it depends on the ring.
            per_step: Whether what Keras calls for each batch is called (`callbacks.per_step`).
            zoo: The folder of the user's files.

        Raises:
            UserCodeError: One of them cannot work on a ring.
        """
        super().__init__(
            callbacks, num_metric_sums=metrics.num_metric_sums, trainable=trainable, zoo=zoo
        )
        for callback in self._callbacks:
            _require_usable(callback)
        self._batches = BatchHooks(self._callbacks, model, optimizer, is_on=per_step, zoo=zoo)
        self._model = model
        self._optimizer = optimizer
        self._metrics = metrics
        self._trainable, self._begin_anew = trainable, begin_anew
        self._params = {"epochs": num_epochs, "steps": steps_per_epoch, "verbose": 0}
        self._has_begun = False

    def before_step(self, step: int, *, batch: int | None) -> None:
        """Set the step's learning rate, on every rank the same; let the leader's callbacks look.

        Raises:
            UserCodeError: A schedule gave no number, or the optimizer has a schedule of its own.
        """
        for callback in self._rates:
            self._optimizer.learning_rate = self._rate_of(callback, step)
        if batch is not None and self._batches:
            with self._ready(is_first=False):
                self._batches.begin(batch)

    def after_step(self, sums: StepSums, *, batch: int | None) -> None:
        """Add a step's numbers, the same on all ranks; let the leader's callbacks look."""
        self._add(sums)
        if batch is not None and self._batches:
            with self._ready(is_first=False):
                self._batches.end(batch, self._means())

    def end_epoch(self, epoch: int, evaluation: Mapping[str, float]) -> None:
        """Tell the callbacks of an epoch's end; only the leader does, and then the ring syncs."""
        logs = self._means() | {f"val_{name}": value for name, value in evaluation.items()}
        with self._live(epoch + 1):
            self._call("on_epoch_end", epoch, logs)
            self._stopped.assign(int(bool(self._model.stop_training)))
        self._forget_sums()

    def begin_epoch(self, epoch: int) -> None:
        """Tell them of an epoch's begin; only the leader does, and then the ring syncs."""
        with self._live(epoch):
            self._call("on_epoch_begin", epoch, {})

    def end(self) -> None:
        """Tell them of the training's end; only the leader does, before the model is written."""
        with self._live(1):
            self._call("on_train_end", {})

    def _means(self) -> dict[str, float]:
        """Loss and metrics over the epoch so far."""
        sums = self._sums.numpy()
        if not (count := float(sums[0])):
            return {}
        values = self._metrics.metric_values(sums[2:], count)
        return {"loss": float(sums[1]) / count, **values}

    @contextlib.contextmanager
    def _live(self, epoch: int) -> Iterator[None]:
        """The callbacks between epochs: what they note then is for all ranks."""
        with self._ready(is_first=epoch == 0):
            yield
            self._save()
            if self._trainable.note():
                self._begin_anew()

    @contextlib.contextmanager
    def _ready(self, *, is_first: bool) -> Iterator[None]:
        """The callbacks with their model and, whoever ran them last, their numbers."""
        # The model's own, if any, is what it is saved with.
        own, self._model.optimizer = getattr(self._model, "optimizer", None), self._optimizer
        try:
            if not self._has_begun:
                self._has_begun = True
                self._begin(is_first=is_first)
            self._load()
            yield
            self._require_same_optimizer()
        finally:
            self._model.optimizer = own

    def _begin(self, *, is_first: bool) -> None:
        self._model.stop_training = False
        for callback in self._callbacks:
            if isinstance(callback, keras.callbacks.CSVLogger) and not is_first:
                callback.append = True  # What is there, another leader has written.
            callback.set_params(self._params)
            callback.set_model(self._model)
        self._call("on_train_begin", {})
        if not is_first:
            # What they froze at the begin, they may have freed since then.
            self._trainable.assign(self._trainable.numpy())

    def _require_same_optimizer(self) -> None:
        if self._model.optimizer is not self._optimizer:
            raise UserCodeError(
                "A callback gave the model another optimizer, or compiled it, but the ring's state"
                " has the slots of the first one.",
                received=type(self._model.optimizer).__name__,
                cure="Set self.model.optimizer.learning_rate, and layer.trainable for fine-tuning:"
                " the optimizer then begins anew by itself.",
            )

    def _numbers(self, callback: Any) -> dict[str, Any]:
        """The attributes of a callback that are plain and its own, by name.

        What Keras' own callbacks take as settings is theirs from the start; some change its sign
        once.
        """
        if isinstance(callback, keras.callbacks.CSVLogger):
            return {}  # Its file holds all.
        found = {}
        settings = {"params"} | {
            name
            for kind in type(callback).__mro__
            if kind.__module__.startswith("keras.")
            for name in inspect.signature(kind).parameters
        }
        for name, value in vars(callback).items():
            plain = value.item() if isinstance(value, np.generic) else value
            if name not in settings and not name.startswith("_") and is_plain(plain):
                found[name] = plain
        return found


def may_freeze(callback: Any) -> bool:
    """Whether a callback may change what is trained: not those whose work is known."""
    kind = type(callback)
    is_known = kind.__module__.partition(".")[0] in ("keras", "edl_horovod")
    return not is_known or kind is keras.callbacks.LambdaCallback


def _require_usable(callback: Any) -> None:
    """Refuse what would be wrong on a ring."""
    name = type(callback).__name__
    if not isinstance(callback, keras.callbacks.Callback):
        raise UserCodeError(
            "A callback must be a keras.callbacks.Callback.",
            received=name,
            cure="Extend that class.",
        )
    why, cure = "", ""
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        why, cure = _KEEPS_WEIGHTS, "Remove it and set checkpoint.* and resume=auto."
    elif getattr(callback, "restore_best_weights", False):
        keys = "train.early_stopping.metric and train.early_stopping.restore_best=true"
        why, cure = _KEEPS_WEIGHTS, f"Remove it and set {keys}."
    elif isinstance(callback, keras.callbacks.SwapEMAWeights):
        why = "changes weights around an evaluation, of which no callback is told here"
        cure = "Remove it: with use_ema=True the trained model gets the averaged weights."
    elif not type(callback).__module__.startswith("keras."):
        base = keras.callbacks.Callback
        own = [
            hook for hook in _TEST_HOOKS if getattr(type(callback), hook) is not getattr(base, hook)
        ]
        if own:
            why = f"has {' and '.join(own)}, and no callback is told of evaluations here"
            cure = "The numbers of an evaluation are in the logs of on_epoch_end, as val_...."
    if why:
        raise UserCodeError(f"{name} {why}.", received=f"{name} in create_callbacks", cure=cure)
