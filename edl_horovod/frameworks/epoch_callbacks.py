"""Callbacks between epochs and between steps; common to all frameworks.

Numbers, text, and lists and dicts of these in a callback's attributes are part of the ring's state
as JSON, so a new leader continues where the lost one stopped (docs/adr/0005).
"""

import contextlib
import inspect
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.callbacks import LearningRateScheduler, MaxSteps
from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.values import Array, StepSums, Variable
from edl_horovod.models.calling import user_code

log = logging.getLogger(__name__)

STATE_BYTES = 1 << 16
"""Maximum size of the JSON text of all callbacks' attributes."""
_CLASS = ""
"""The key of a callback's class among its attributes."""


class EpochCallbacks(ABC):
    """The user's callbacks of a training run, which the leader calls between epochs.

    A framework adds how a callback reaches the model and the optimizer. Between epochs the leader
    runs the hooks, and then the ring synchronizes its state. Between two steps it does not, so the
    hooks of steps must not change anything.
    """

    def __init__(
        self,
        callbacks: Sequence[Any],
        *,
        num_metric_sums: int,
        metric_values: Callable[[NDArray[np.float64], float], Mapping[str, float]],
        trainable: Variable,
        settle: Callable[[], None],
        zoo: Path,
    ) -> None:
        """Separate the user's own callbacks from the built-in ones that act on every rank.

        Args:
            callbacks: All callbacks that the user's spec returned.
            num_metric_sums: Length of `StepSums.metric_sums`.
            metric_values: Computes the metrics by name from these sums over a number of examples.
            trainable: Flags that say which variables of the model are trained.
            settle: Checks, and takes over, what callbacks have changed between epochs.
            zoo: The folder of the user's files, for tracebacks.
        """

        def of_kind(kind: type) -> list[Any]:
            return [callback for callback in callbacks if isinstance(callback, kind)]

        self._rates = of_kind(LearningRateScheduler)
        self._bounds = [callback.max_steps for callback in of_kind(MaxSteps)]
        built_in = (LearningRateScheduler, MaxSteps)
        self._callbacks = [callback for callback in callbacks if not isinstance(callback, built_in)]
        self._step_callbacks: list[Any] = []
        """The callbacks whose hooks of steps are called."""
        self._metric_values, self._trainable, self._settle = metric_values, trainable, settle
        self._zoo = zoo
        self._has_begun = False
        self._loaded_text = b""
        self._lost: dict[tuple[int, str], str] = {}
        """What containers that are not part of the ring's state first held, as text, by the index
        of their callback and their name."""
        # Number of examples, sum of their losses, and sums of the metrics, since the epoch began.
        self._sums = Array(np.zeros(2 + num_metric_sums))
        self._state = Array(np.zeros(STATE_BYTES, np.uint8))
        self._stopped = Array(np.int64(0))

    @property
    def variables(self) -> dict[str, Variable]:
        """Variables that must be part of the ring's state, by name."""
        return {
            "epoch_sums": self._sums,
            "callbacks": self._state,
            "stopped": self._stopped,
            "trainable": self._trainable,
        }

    def _require_no_rates(self, instead: str) -> None:
        """Refuse `LearningRateScheduler` for a training with several optimizers."""
        if self._rates:
            raise UserCodeError(
                "LearningRateScheduler sets the learning rate of one optimizer, but each phase has"
                " an optimizer of its own.",
                received="LearningRateScheduler in create_callbacks",
                hint=f"Remove it, and in create_optimizer {instead}.",
            )

    @property
    def is_over(self) -> bool:
        """Whether a callback has ended the training."""
        return bool(self._stopped.numpy())

    @property
    def max_steps(self) -> int | None:
        """The number of steps after which a callback ends the training; None for no limit."""
        return min(self._bounds, default=None)

    def before_step(self, step: int, *, batch: int | None) -> None:
        """Set the step's learning rate on every rank; on the leader, call the hooks of steps.

        Steps of the job count from 0. On the leader, `batch` is the step's number in its epoch,
        counted from 0; elsewhere None.

        Raises:
            UserCodeError: A schedule did not return a number, the optimizer has its own schedule,
                or a hook changed something.
        """
        for callback in self._rates:
            with user_code(f"The schedule of LearningRateScheduler at step {step}", root=self._zoo):
                rate = float(callback.schedule(step))
            self._set_learning_rate(rate)
        if batch is not None and self._step_callbacks:
            with self._prepared():
                self._call_read_only("on_train_batch_begin", batch, *self._no_logs())

    def after_step(self, sums: StepSums, *, batch: int | None) -> None:
        """Add a step's sums, equal on all ranks; on the leader, call the hooks of steps."""
        if sums.num_examples:
            count = sums.num_examples
            added = np.array([count, count * sums.loss, *sums.metric_sums])
            self._sums.assign(self._sums.numpy() + added)
        if batch is not None and self._step_callbacks:
            with self._prepared():
                self._call_read_only("on_train_batch_end", batch, self._means())

    def begin_epoch(self, epoch: int) -> None:
        """Call the hooks of an epoch's begin, only on the leader; then the ring is synced.

        Epochs count from 0.
        """
        with self._between_epochs():
            self._call("on_epoch_begin", epoch, *self._no_logs())

    def end_epoch(self, epoch: int, evaluation: Mapping[str, float]) -> None:
        """Call the hooks of an epoch's end, only on the leader; then the ring is synced."""
        logs = self._means() | {f"val_{name}": value for name, value in evaluation.items()}
        with self._between_epochs():
            self._advance_schedules(epoch, logs)
            self._call("on_epoch_end", epoch, logs)
            self._stopped.assign(int(self._wants_stop()))
        self._sums.assign(np.zeros_like(self._sums.numpy()))

    def end(self) -> None:
        """Call the hooks of the training's end, on the leader, before it writes the model."""
        with self._between_epochs():
            self._call("on_train_end", *self._no_logs())

    @abstractmethod
    def _attach(self, callback: Any, *, is_first: bool) -> None:
        """Set a callback's model and optimizer; `is_first` if no leader has run it before."""

    @abstractmethod
    def _set_learning_rate(self, rate: float) -> None:
        """Set the optimizer's learning rate."""

    @abstractmethod
    def _call_read_only(self, hook: str, *arguments: Any) -> None:
        """Call a hook of steps and raise an error if it changes anything."""

    @abstractmethod
    def _attributes(self, callback: Any) -> dict[str, Any]:
        """The attributes of a callback that are not set by the framework, by name."""

    @abstractmethod
    def _wants_stop(self) -> bool:
        """Whether a callback has asked to end the training."""

    def _advance_schedules(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Advance the optimizer's own schedules at an epoch's end, if the framework has any."""

    def _no_logs(self) -> tuple[dict[str, float], ...]:
        """The argument for the values of a hook that has none."""
        return ()

    @contextlib.contextmanager
    def _prepared(self) -> Iterator[None]:
        """Prepare the callbacks on this rank, which may have become the leader just now."""
        if not self._has_begun:
            self._has_begun = True
            is_first, flags = not self._text, self._trainable.numpy()
            for callback in self._callbacks:
                self._attach(callback, is_first=is_first)
            self._call("on_train_begin", *self._no_logs())
            if not is_first:
                # The lost leader's callbacks may have unfrozen what on_train_begin freezes.
                self._trainable.assign(flags)
        self._load()
        yield

    @contextlib.contextmanager
    def _between_epochs(self) -> Iterator[None]:
        """Run callbacks between epochs and save their attributes in the ring's state."""
        with self._prepared():
            yield
            self._settle()
            self._save()

    def _means(self) -> dict[str, float]:
        """Compute the mean loss and the metrics of the epoch so far."""
        count, loss_sum, *sums = self._sums.numpy().tolist()
        if not count:
            return {}
        return {"loss": loss_sum / count, **self._metric_values(np.array(sums), count)}

    def _call(self, hook: str, *arguments: Any, only: Sequence[Any] | None = None) -> None:
        for callback in self._callbacks if only is None else only:
            with user_code(f"{hook} of {type(callback).__name__}", root=self._zoo):
                getattr(callback, hook)(*arguments)

    @property
    def _text(self) -> bytes:
        return self._state.numpy().tobytes().rstrip(b"\0")

    def _load(self) -> None:
        """Set the callbacks' attributes to the values in the ring's state."""
        text = self._text
        if text == self._loaded_text:
            return  # The attributes are the same here, or newer: hooks of steps changed them.
        waiting = list(self._callbacks)
        for saved in json.loads(text or b"[]"):
            # Those of a former run may be others. Older checkpoints have no names of classes.
            name = saved.pop(_CLASS, None)
            same_class = (call for call in waiting if name in (None, type(call).__name__))
            callback = next(same_class, None)
            if callback is not None:
                waiting.remove(callback)
                _warn_of_settings(callback, saved)
                vars(callback).update(saved)
        self._loaded_text = text

    def _save(self) -> None:
        """Write the callbacks' attributes to the ring's state.

        Raises:
            UserCodeError: They are larger than `STATE_BYTES`.
        """
        saved = []
        for index, callback in enumerate(self._callbacks):
            attributes = {k: _python_value(v) for k, v in self._attributes(callback).items()}
            plain = {name: value for name, value in attributes.items() if _is_plain(value)}
            saved.append({_CLASS: type(callback).__name__, **plain})
            others = {name: attributes[name] for name in set(attributes) - set(plain)}
            self._warn_of_loss(index, others)
        text = json.dumps(saved).encode()
        if len(text) > STATE_BYTES:
            raise UserCodeError(
                "The attributes of the callbacks are too large for the ring's state.",
                received=f"{len(text)} bytes of numbers and text; the limit is {STATE_BYTES}",
                hint="Write long lists, such as a history of values, to a file.",
            )
        self._loaded_text = text
        self._state.assign(np.frombuffer(text.ljust(STATE_BYTES, b"\0"), np.uint8))

    def _warn_of_loss(self, index: int, attributes: Mapping[str, Any]) -> None:
        """Warn once of each container that changes and that a new leader would not have."""
        for name, value in attributes.items():
            if not isinstance(value, dict | list | tuple | set | np.ndarray):
                continue
            content = repr(value)
            if self._lost.setdefault((index, name), content) not in ("", content):
                self._lost[index, name] = ""
                log.warning(
                    "%r of %s changes, but will be lost with the leader and in a resumed training:"
                    " it is not a number, a text, or a list or dict (with text keys) of these",
                    name,
                    type(self._callbacks[index]).__name__,
                )


def _warn_of_settings(callback: Any, saved: Mapping[str, Any]) -> None:
    """Warn of the arguments of a callback that have been changed for a resumed training."""
    try:
        settings = inspect.signature(type(callback)).parameters
    except (TypeError, ValueError):  # Not all classes have one.
        return
    for name, value in saved.items():
        now = _python_value(vars(callback).get(name, value))
        if name.lstrip("_") in settings and _is_plain(now) and now != value:
            log.warning(
                "%s of %s stays %r, as in the training so far, although create_callbacks gives %r."
                " To use the new value, start a new training in another job_dir.",
                name,
                type(callback).__name__,
                value,
                now,
            )


def _python_value(value: Any) -> Any:
    """Convert NumPy's numbers in a value to Python's."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is list:
        return [_python_value(element) for element in value]
    if type(value) is dict:
        return {key: _python_value(element) for key, element in value.items()}
    return value


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, text, or a list or dict of these, which JSON preserves."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(value[key]) for key in value)
    return value is None or type(value) in (bool, int, float, str)
