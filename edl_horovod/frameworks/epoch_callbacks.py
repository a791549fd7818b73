"""The state of callbacks, which every rank has; common to all frameworks.

Numbers, text, and lists and dicts of these in a callback's attributes are part of the ring's state
as JSON, so a new leader continues where the lost one stopped (docs/adr/0005).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edl_horovod.callbacks import LearningRateScheduler, MaxSteps
from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.values import Array, StepSums, Variable
from edl_horovod.models.calling import user_code

__all__ = ["STATE_BYTES", "EpochCallbacks", "is_plain"]

STATE_BYTES = 1 << 16
"""Maximum size of the JSON text of all callbacks' attributes."""


class EpochCallbacks:
    """The part of `base.Callbacks` that does not depend on a framework."""

    def __init__(
        self, callbacks: Sequence[Any], *, num_metric_sums: int, trainable: Variable, zoo: Path
    ) -> None:
        """Separate the user's own callbacks from the built-in ones that act on every rank.

        Args:
            callbacks: All callbacks that the user's spec returned.
            num_metric_sums: Length of `StepSums.metric_sums`.
            trainable: Flags that say which variables of the model are trained.
            zoo: The folder of the user's files, for tracebacks.
        """
        self._rates = [
            callback for callback in callbacks if isinstance(callback, LearningRateScheduler)
        ]
        self._bounds = [
            callback.max_steps for callback in callbacks if isinstance(callback, MaxSteps)
        ]
        built_in = (LearningRateScheduler, MaxSteps)
        self._callbacks = [callback for callback in callbacks if not isinstance(callback, built_in)]
        self._zoo = zoo
        self._loaded_text = b""
        # Number of examples, sum of their losses, and sums of the metrics, since the epoch began.
        self._sums = Array(np.zeros(2 + num_metric_sums))
        self._state = Array(np.zeros(STATE_BYTES, np.uint8))
        self._stopped = Array(np.int64(0))
        self._trainable_flags: Variable = trainable

    @property
    def variables(self) -> dict[str, Variable]:
        """Variables that must be part of the ring's state, by name."""
        return {
            "epoch_sums": self._sums,
            "callbacks": self._state,
            "stopped": self._stopped,
            "trainable": self._trainable_flags,
        }

    @property
    def is_over(self) -> bool:
        """Whether a callback has ended the training."""
        return bool(self._stopped.numpy())

    @property
    def max_steps(self) -> int | None:
        """The number of steps after which a callback ends the training; None for no limit."""
        return min(self._bounds, default=None)

    def _add(self, sums: StepSums) -> None:
        """Add a step's sums, which are the same on all ranks, to those of the epoch."""
        if sums.num_examples:
            count = sums.num_examples
            added = np.array([count, count * sums.loss, *sums.metric_sums])
            self._sums.assign(self._sums.numpy() + added)

    def _forget_sums(self) -> None:
        self._sums.assign(np.zeros_like(self._sums.numpy()))

    def _rate_of(self, callback: LearningRateScheduler, step: int) -> float:
        with user_code(f"The schedule of LearningRateScheduler at step {step}", root=self._zoo):
            return float(callback.schedule(step))

    def _call(self, hook: str, *arguments: Any, only: Sequence[Any] | None = None) -> None:
        for callback in self._callbacks if only is None else only:
            with user_code(f"{hook} of {type(callback).__name__}", root=self._zoo):
                getattr(callback, hook)(*arguments)

    def _numbers(self, callback: Any) -> dict[str, Any]:
        """The attributes of a callback that are plain and not set by the framework, by name."""
        raise NotImplementedError

    @property
    def _text(self) -> bytes:
        return self._state.numpy().tobytes().rstrip(b"\0")

    def _load(self) -> None:
        """Set the callbacks' attributes to the values in the ring's state."""
        text = self._text
        if text == self._loaded_text:
            return  # The attributes are the same here, or newer: hooks of steps changed them.
        for callback, numbers in zip(self._callbacks, json.loads(text or b"[]"), strict=False):
            vars(callback).update(numbers)
        self._loaded_text = text

    def _save(self) -> None:
        """Write the callbacks' attributes to the ring's state.

        Raises:
            UserCodeError: They are larger than `STATE_BYTES`.
        """
        text = json.dumps([self._numbers(callback) for callback in self._callbacks]).encode()
        if len(text) > STATE_BYTES:
            raise UserCodeError(
                "The attributes of the callbacks are too large for the ring's state.",
                received=f"{len(text)} bytes of numbers and text; the limit is {STATE_BYTES}",
                hint="Write long lists, such as a history of values, to a file.",
            )
        self._loaded_text = text
        self._state.assign(np.frombuffer(text.ljust(STATE_BYTES, b"\0"), np.uint8))


def is_plain(value: Any) -> bool:
    """Whether a value is a number, text, or a list or dict of these, which JSON preserves."""
    if isinstance(value, list):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(value[key]) for key in value)
    return value is None or type(value) in (bool, int, float, str)
