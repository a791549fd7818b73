"""Callbacks for `create_callbacks` that belong to no framework.

`LearningRateScheduler` and `MaxSteps` act on every step, for models of any framework. They depend
on nothing but the step's number, so every rank does the same without asking, whatever the ring
does.
`Callback` is what those of a PyTorch model extend; those of a Keras model extend Keras' own class.
"""

from collections.abc import Callable, Mapping
from typing import Any

from edl_horovod.errors import UserCodeError

__all__ = ["Callback", "LearningRateScheduler", "MaxSteps"]


class Callback:
    """A callback of a PyTorch model: called on the leader, and what it changes reaches all ranks.

    Its attributes that are numbers, texts, or lists or dicts of these travel with the ring's state.
    """

    model: Any
    """The module that is trained; set before the first call."""
    optimizer: Any
    """Its `torch.optim.Optimizer`; set before the first call."""
    stop_training: bool = False
    """Set it in `on_epoch_end` to end the training."""

    def on_train_begin(self) -> None:
        """Called before the first step, and in each process that comes to lead the ring."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Called as an epoch begins, counted from 0."""

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Called at an epoch's end.

        Args:
            epoch: Counted from 0.
            logs: Means over the epoch, `loss` and the metrics of the training, and as `val_...`
                the numbers of the last evaluation.
        """

    def on_train_end(self) -> None:
        """Called at the training's end, before the model is written."""

    def on_train_batch_begin(self, batch: int) -> None:
        """Called before each step, counted from 0 in its epoch, with `callbacks.per_step=true`.

        It may look, and change nothing.
        """

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Called after each step with the means of the epoch so far, as `on_train_batch_begin`."""


class MaxSteps:
    """Ends the training after a number of steps; the smallest of all such bounds counts."""

    def __init__(self, max_steps: int) -> None:
        """Set the bound.

        Args:
            max_steps: Steps of the job, 1 or more.

        Raises:
            UserCodeError: It is no such number.
        """
        if not isinstance(max_steps, int) or max_steps < 1:
            raise UserCodeError(
                "MaxSteps needs a number of steps, 1 or more.", received={"max_steps": max_steps}
            )
        self.max_steps = max_steps


class LearningRateScheduler:
    """Sets the learning rate of each step; Keras' class of that name does so for each epoch."""

    def __init__(self, schedule: Callable[[int], float]) -> None:
        """Keep the schedule.

        Args:
            schedule: From the step of the job, counted from 0, to its learning rate. It must give
                the same for the same step in every process.
        """
        self.schedule = schedule
