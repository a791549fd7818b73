"""Callbacks for `create_callbacks` that do not depend on a framework.

`LearningRateScheduler` and `MaxSteps` act on every step, for models of any framework. They depend
only on the step's number, so all ranks do the same without communicating, also while the ring
changes.
Callbacks of a PyTorch model extend `Callback`; those of a Keras model extend Keras' own class.
"""

from collections.abc import Callable, Mapping
from typing import Any

from edl_horovod.errors import UserCodeError


class Callback:
    """A callback of a PyTorch model: it is called on the leader, and its changes reach all ranks.

    Attributes that are numbers, texts, or lists or dicts of these are part of the ring's state.
    """

    model: Any
    """The module that is trained; set before the first call."""
    optimizer: Any
    """The module's `torch.optim.Optimizer`; set before the first call."""
    stop_training: bool = False
    """Set it to True in `on_epoch_end` to end the training."""

    def on_train_begin(self) -> None:
        """Called before the first step, and in each process that becomes the leader later."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Called as an epoch begins, counted from 0."""

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Called at an epoch's end.

        Args:
            epoch: Counted from 0.
            logs: Means over the epoch, `loss` and the metrics of the training, and as `val_...`
                the results of the last evaluation.
        """

    def on_train_end(self) -> None:
        """Called at the training's end, before the model is written."""

    def on_train_batch_begin(self, batch: int) -> None:
        """Called before each step, counted from 0 in its epoch, with `callbacks.per_step=true`.

        It must not change anything.
        """

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Called after each step, with `callbacks.per_step=true`; it must not change anything.

        Args:
            batch: Counted from 0 in its epoch.
            logs: The means over the epoch so far.
        """


class MaxSteps:
    """Ends the training after a number of steps; of several such callbacks the smallest counts."""

    def __init__(self, max_steps: int) -> None:
        """Set the bound.

        Args:
            max_steps: Steps of the job, 1 or more.

        Raises:
            UserCodeError: The bound is not an integer of 1 or more.
        """
        if not isinstance(max_steps, int) or max_steps < 1:
            raise UserCodeError(
                "MaxSteps needs a number of steps, 1 or more.", received={"max_steps": max_steps}
            )
        self.max_steps = max_steps


class LearningRateScheduler:
    """Sets the learning rate of each step; Keras' class of the same name does so for each epoch."""

    def __init__(self, schedule: Callable[[int], float]) -> None:
        """Store the schedule.

        Args:
            schedule: Takes the step of the job, counted from 0, and returns its learning rate. It
                must return the same rate for the same step in every process.
        """
        self.schedule = schedule
