"""A learning rate that is multiplied where the optimizer uses it, and nowhere else.

Multiplying the gradients would be the same for plain SGD alone: Adam and others divide by the
gradients' size. So the optimizer itself must see another rate, also for its weight decay. Its own
variable has that only while it is applied: the user's callbacks, the ring's state and checkpoints
have the value before it.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.optimizer import inner_optimizer

__all__ = ["ScaledLearningRate"]


class ScaledLearningRate:
    """The learning rate of an optimizer, times a factor."""

    def __init__(self, optimizer: keras.optimizers.Optimizer, *, label: str) -> None:
        """Take hold of it, before anything that applies the optimizer is traced.

        Args:
            optimizer: Made by the user; a schedule in it is replaced by one that multiplies it.
            label: The model's, for the message.

        Raises:
            UserCodeError: It keeps its learning rate where nobody can multiply it.
        """
        self._factor = tf.Variable(1.0, trainable=False)
        self._variable: keras.Variable | None = None
        optimizer = inner_optimizer(optimizer)
        # The public property has the value of a schedule, not the schedule.
        found = vars(optimizer).get("_learning_rate")
        if isinstance(found, keras.Variable):
            self._variable = found
        elif isinstance(found, keras.optimizers.schedules.LearningRateSchedule):
            optimizer.learning_rate = _ScaledSchedule(found, self._factor)
        elif callable(found):
            optimizer.learning_rate = lambda: _times(found(), self._factor)
        else:
            raise UserCodeError(
                f"The optimizer of {label} keeps its learning rate where it cannot be multiplied"
                " by the size of the ring.",
                received=f"{type(optimizer).__name__} with learning rate {found!r}",
                cure="Hand learning_rate to the constructor of keras.optimizers.Optimizer, or use"
                " elastic.batching=global.",
            )

    def scale(self, factor: float) -> None:
        """Multiply by this from now on."""
        self._factor.assign(factor)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The optimizer with the multiplied rate, while the ops that apply it are traced."""
        if self._variable is None:
            yield
            return
        # A graph runs what reads and assigns one variable in the order of the calls.
        own = tf.convert_to_tensor(self._variable.value)
        self._variable.assign(_times(own, self._factor))
        yield
        self._variable.assign(own)


class _ScaledSchedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]  # Keras has no types.
    """A user's schedule, times a factor."""

    def __init__(self, schedule: Any, factor: tf.Variable) -> None:
        self._schedule, self._factor = schedule, factor

    def __call__(self, step: Any) -> tf.Tensor:
        return _times(self._schedule(step), self._factor)

    def get_config(self) -> dict[str, Any]:
        """The user's schedule; a model is never written with this one."""
        return dict(self._schedule.get_config())


def _times(rate: Any, factor: tf.Variable) -> tf.Tensor:
    rate = tf.convert_to_tensor(rate)
    return rate * tf.cast(factor, rate.dtype)
