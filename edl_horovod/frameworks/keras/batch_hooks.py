"""What callbacks do at each step: they may look, on the leader, and change nothing.

The ring has no moment between two steps at which a change could reach every rank. So the hooks run
where each variable shows its present value, as a constant, and keeps it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import keras

from edl_horovod.errors import UserCodeError
from edl_horovod.models.calling import user_code

__all__ = ["BatchHooks"]

_NAMES = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_CURE = (
    "If it only looks (logging, time stamps, profiling), set callbacks.per_step=true: then it is"
    " called on the leader. What changes something by the step is"
    " edl_horovod.callbacks.LearningRateScheduler or MaxSteps."
)


class BatchHooks:
    """The hooks of a training's callbacks that Keras calls for each batch."""

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        *,
        is_on: bool,
        zoo: Path,
    ) -> None:
        """Call nothing yet.

        Args:
            callbacks: The user's.
            model: What is trained.
            optimizer: Trains it.
            is_on: Whether they are called at all (`callbacks.per_step`).
            zoo: The folder of the user's files.

        Raises:
            UserCodeError: They are not called, and one has work to do in them.
        """
        needing = [callback for callback in callbacks if _needs_batches(callback)]
        if needing and not is_on:
            name = type(needing[0]).__name__
            raise UserCodeError(
                f"{name} acts at each batch ({' and '.join(_hooks_of(needing[0])) or 'its setting'}"
                "), and on a ring callbacks are called between epochs only.",
                received=f"{name} in create_callbacks",
                cure=_CURE,
            )
        self._callbacks = needing
        self._model, self._optimizer = model, optimizer
        self._zoo = zoo

    def __bool__(self) -> bool:
        """Whether there is anything to call."""
        return bool(self._callbacks)

    def begin(self, batch: int) -> None:
        """Tell of a step that is to come, the number of which counts from 0 in each epoch.

        Raises:
            UserCodeError: A hook raised something, or tried to change something.
        """
        self._call("on_train_batch_begin", batch, {})

    def end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Tell of a step that is done, with the means of the epoch so far.

        Raises:
            UserCodeError: A hook raised something, or tried to change something.
        """
        self._call("on_train_batch_end", batch, dict(logs))

    def _call(self, hook: str, batch: int, logs: dict[str, float]) -> None:
        for callback in self._callbacks:
            name = f"{hook} of {type(callback).__name__}"
            if isinstance(callback, keras.callbacks.ModelCheckpoint):
                # It only writes; but Keras makes variables to save a model, which no scope lets it.
                with user_code(name, root=self._zoo):
                    getattr(callback, hook)(batch, logs)
                continue
            variables = [*self._model.variables, *self._optimizer.variables]
            values = [(each, each.value) for each in variables]
            trained = [each.trainable for each in variables]
            with keras.StatelessScope(state_mapping=values) as scope:
                before = [scope.get_current_value(each) for each in variables]
                with user_code(name, root=self._zoo):
                    getattr(callback, hook)(batch, logs)
            changed = [
                each.path
                for each, value, was_trained in zip(variables, before, trained, strict=True)
                if scope.get_current_value(each) is not value or each.trainable != was_trained
            ]
            if getattr(self._model, "stop_training", False):
                changed.append("stop_training")
            if changed:
                raise UserCodeError(
                    f"{name} changes {changed[0]}, which would be another value on every rank;"
                    " with callbacks.per_step=true it may look only.",
                    cure="Change it in on_epoch_end, which reaches all ranks; or use"
                    " edl_horovod.callbacks.LearningRateScheduler or MaxSteps, which act on every"
                    " step.",
                )


def _needs_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback has something to do at each batch."""
    match callback:
        case keras.callbacks.TerminateOnNaN():
            return False  # Every training does that: a loss that is not finite ends it.
        case keras.callbacks.ModelCheckpoint():
            return bool(callback.save_freq != "epoch")
        case keras.callbacks.TensorBoard():
            # Keras has no public name for whether a profile was asked for.
            is_profiled = bool(getattr(callback, "_should_trace", False))
            is_written = callback.update_freq != "epoch" or callback.write_steps_per_second
            return bool(is_profiled or is_written)
    return bool(_hooks_of(callback))


def _hooks_of(callback: keras.callbacks.Callback) -> list[str]:
    base = keras.callbacks.Callback
    return [
        hook
        for hook in _NAMES
        if getattr(type(callback), hook) is not getattr(base, hook) or hook in vars(callback)
    ]
