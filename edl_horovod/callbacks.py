"""Callbacks that act on every step, for `create_callbacks` beside those of Keras.

Keras' own are called between epochs only (`frameworks.keras.callbacks`). These depend on nothing
but the step's number, so every rank does the same without asking, whatever the ring does.
"""

from collections.abc import Callable

import keras

from edl_horovod.errors import UserCodeError

__all__ = ["LearningRateScheduler", "MaxSteps"]


class MaxSteps(keras.callbacks.Callback):  # type: ignore[misc]  # Keras ships no types.
    """Ends the training after a number of steps; the smallest of all such bounds counts."""

    def __init__(self, max_steps: int) -> None:
        """Set the bound.

        Args:
            max_steps: Steps of the job, 1 or more.

        Raises:
            UserCodeError: It is no such number.
        """
        super().__init__()
        if not isinstance(max_steps, int) or max_steps < 1:
            raise UserCodeError(
                "MaxSteps needs a number of steps, 1 or more.", received={"max_steps": max_steps}
            )
        self.max_steps = max_steps


class LearningRateScheduler(keras.callbacks.Callback):  # type: ignore[misc]  # As above.
    """Sets the learning rate of each step; Keras' class of that name does so for each epoch."""

    def __init__(self, schedule: Callable[[int], float]) -> None:
        """Keep the schedule.

        Args:
            schedule: From the step of the job, counted from 0, to its learning rate. It must give
                the same for the same step in every process.
        """
        super().__init__()
        self.schedule = schedule
