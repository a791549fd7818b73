"""Scale the learning rate where the optimizer uses it, and nowhere else.

Scaling the gradients would only be equivalent for plain SGD: Adam and others divide by the
gradients' magnitude. So the optimizer itself must see the scaled rate, also for its weight decay.
Its learning-rate variable holds the scaled value only while an update is applied: the user's
callbacks, the ring's state and checkpoints see the unscaled value.
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
    """The learning rate of an optimizer, multiplied by a variable factor."""

    def __init__(self, optimizer: keras.optimizers.Optimizer, *, label: str) -> None:
        """Prepare the optimizer; call this before any function that applies it is traced.

        Args:
            optimizer: The user's optimizer. A schedule in it is replaced by a scaled one.
            label: Name of the model in messages.

        Raises:
            UserCodeError: The learning rate is stored in an unknown way and cannot be scaled.
        """
        self._factor = tf.Variable(1.0, trainable=False)
        self._variable: keras.Variable | None = None
        optimizer = inner_optimizer(optimizer)
        # The public property returns the value of a schedule, not the schedule.
        rate = vars(optimizer).get("_learning_rate")
        if isinstance(rate, keras.Variable):
            self._variable = rate
        elif isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            optimizer.learning_rate = _ScaledSchedule(rate, self._factor)
        elif callable(rate):
            optimizer.learning_rate = lambda: _scaled(rate(), self._factor)
        else:
            raise UserCodeError(
                f"The learning rate of the optimizer of {label} cannot be scaled by the size of"
                " the ring.",
                received=f"{type(optimizer).__name__} with learning rate {rate!r}",
                hint="Pass learning_rate to the constructor of keras.optimizers.Optimizer, or set"
                " elastic.batching=global.",
            )

    def scale(self, factor: float) -> None:
        """Set the factor for the following updates."""
        self._factor.assign(factor)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Scale the optimizer's rate for the ops that are traced within this context."""
        if self._variable is None:
            yield
            return
        # A traced function runs reads and assignments of one variable in program order.
        unscaled = tf.convert_to_tensor(self._variable.value)
        self._variable.assign(_scaled(unscaled, self._factor))
        yield
        self._variable.assign(unscaled)


class _ScaledSchedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]  # Keras has no types.
    """A user's schedule, multiplied by a factor."""

    def __init__(self, schedule: Any, factor: tf.Variable) -> None:
        self._schedule, self._factor = schedule, factor

    def __call__(self, step: Any) -> tf.Tensor:
        return _scaled(self._schedule(step), self._factor)

    def get_config(self) -> dict[str, Any]:
        """Return the user's schedule, so that a saved model never refers to this class."""
        return dict(self._schedule.get_config())


def _scaled(rate: Any, factor: tf.Variable) -> tf.Tensor:
    rate = tf.convert_to_tensor(rate)
    return rate * tf.cast(factor, rate.dtype)
