"""What callbacks of any framework have in common on a ring: the state that every rank has.

Numbers, text, and lists and dicts of these that a callback keeps as attributes travel as JSON with
the ring's state, so another leader goes on where the lost one was (docs/adr/0005).
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
"""Room for what all callbacks of a training keep."""


class EpochCallbacks:
    """The part of `base.Callbacks` that knows no framework."""

    def __init__(
        self, callbacks: Sequence[Any], *, num_metric_sums: int, trainable: Variable, zoo: Path
    ) -> None:
        """Tell the user's own callbacks from those that act on every rank.

        Args:
            callbacks: The user's.
            num_metric_sums: How many numbers the metrics of a step are.
            trainable: Says what of the model is trained.
            zoo: The folder of the user's files.
        """
        self._rates = [each for each in callbacks if isinstance(each, LearningRateScheduler)]
        self._bounds = [each.max_steps for each in callbacks if isinstance(each, MaxSteps)]
        own = (LearningRateScheduler, MaxSteps)
        self._callbacks = [each for each in callbacks if not isinstance(each, own)]
        self._zoo = zoo
        self._own_numbers = b""
        # Examples, the loss' sum, and the metrics' sums over the epoch so far.
        self._sums = Array(np.zeros(2 + num_metric_sums))
        self._state = Array(np.zeros(STATE_BYTES, np.uint8))
        self._stopped = Array(np.int64(0))
        self._trained: Variable = trainable

    @property
    def variables(self) -> dict[str, Variable]:
        """What the ring's state must hold, by name."""
        return {
            "epoch_sums": self._sums,
            "callbacks": self._state,
            "stopped": self._stopped,
            "trainable": self._trained,
        }

    @property
    def is_over(self) -> bool:
        """Whether a callback has ended the training."""
        return bool(self._stopped.numpy())

    @property
    def max_steps(self) -> int | None:
        """The fewest steps after which one of them ends the training; None for no bound."""
        return min(self._bounds, default=None)

    def _add(self, sums: StepSums) -> None:
        """Add a step's numbers to those of the epoch, the same on all ranks."""
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
        """The attributes of a callback that are plain and its own, by name."""
        raise NotImplementedError

    @property
    def _text(self) -> bytes:
        return self._state.numpy().tobytes().rstrip(b"\0")

    def _load(self) -> None:
        """Give the callbacks the numbers that the ring has of them."""
        text = self._text
        if text == self._own_numbers:
            return  # Theirs here are the same, or newer by what they saw at steps since.
        for callback, numbers in zip(self._callbacks, json.loads(text or b"[]"), strict=False):
            vars(callback).update(numbers)
        self._own_numbers = text

    def _save(self) -> None:
        """Put their numbers into what the ring has of them.

        Raises:
            UserCodeError: They are too many.
        """
        text = json.dumps([self._numbers(callback) for callback in self._callbacks]).encode()
        if len(text) > STATE_BYTES:
            raise UserCodeError(
                "The callbacks keep too much to go with the ring's state.",
                received=f"{len(text)} bytes of numbers and text, room for {STATE_BYTES}",
                cure="Keep lists of what happened in a file.",
            )
        self._own_numbers = text
        self._state.assign(np.frombuffer(text.ljust(STATE_BYTES, b"\0"), np.uint8))


def is_plain(value: Any) -> bool:
    """Whether a value is a number, text, or a list or dict of these, which JSON brings back."""
    if isinstance(value, list):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(value[key]) for key in value)
    return value is None or type(value) in (bool, int, float, str)
