"""Run the callbacks' hooks for each batch on the leader; they may read but not change anything.

Between two steps the ring does not synchronize, so a change could not reach every rank. The hooks
therefore run in a scope in which each variable reads as its current value and cannot change.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import keras

from edl_horovod.errors import UserCodeError
from edl_horovod.models.calling import user_code

__all__ = ["BatchHooks"]

_NAMES = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_HINT = (
    "If it only reads (logging, time stamps, profiling), set callbacks.per_step=true to call it on"
    " the leader. To change something at each step, use edl_horovod.callbacks.LearningRateScheduler"
    " or MaxSteps."
)


class BatchHooks:
    """Calls those hooks of a training's callbacks that Keras calls for each batch."""

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        *,
        is_on: bool,
        zoo: Path,
    ) -> None:
        """Select the callbacks that have such hooks.

        Args:
            callbacks: The user's callbacks.
            model: The model that is trained.
            optimizer: The optimizer that trains it.
            is_on: Whether the hooks are called at all (`callbacks.per_step`).
            zoo: The folder of the user's files.

        Raises:
            UserCodeError: A callback has such hooks, but they are not called.
        """
        selected = [callback for callback in callbacks if _acts_per_batch(callback)]
        if selected and not is_on:
            name = type(selected[0]).__name__
            hooks = " and ".join(_hooks_of(selected[0])) or "by a setting"
            raise UserCodeError(
                f"{name} acts at each batch ({hooks}), but on a ring callbacks are only called"
                " between epochs.",
                received=f"{name} in create_callbacks",
                hint=_HINT,
            )
        self._callbacks = selected
        self._model, self._optimizer = model, optimizer
        self._zoo = zoo

    def __bool__(self) -> bool:
        """Whether there is anything to call."""
        return bool(self._callbacks)

    def begin(self, batch: int) -> None:
        """Call on_train_batch_begin before a step; `batch` counts from 0 in each epoch.

        Raises:
            UserCodeError: A hook raised an exception or tried to change something.
        """
        self._call("on_train_batch_begin", batch, {})

    def end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Call on_train_batch_end after a step, with the means of the epoch so far.

        Raises:
            UserCodeError: A hook raised an exception or tried to change something.
        """
        self._call("on_train_batch_end", batch, dict(logs))

    def _call(self, hook: str, batch: int, logs: dict[str, float]) -> None:
        for callback in self._callbacks:
            name = f"{hook} of {type(callback).__name__}"
            if isinstance(callback, keras.callbacks.ModelCheckpoint):
                # It only writes. Saving a model creates variables, which would fail in a scope.
                with user_code(name, root=self._zoo):
                    getattr(callback, hook)(batch, logs)
                continue
            variables = [*self._model.variables, *self._optimizer.variables]
            values = [(variable, variable.value) for variable in variables]
            were_trainable = [variable.trainable for variable in variables]
            with keras.StatelessScope(state_mapping=values) as scope:
                before = [scope.get_current_value(variable) for variable in variables]
                with user_code(name, root=self._zoo):
                    getattr(callback, hook)(batch, logs)
            changed = [
                variable.path
                for variable, value, was_trainable in zip(
                    variables, before, were_trainable, strict=True
                )
                if scope.get_current_value(variable) is not value
                or variable.trainable != was_trainable
            ]
            if getattr(self._model, "stop_training", False):
                changed.append("stop_training")
            if changed:
                raise UserCodeError(
                    f"{name} changes {changed[0]}, but on the leader only, so the ranks would"
                    " differ; with callbacks.per_step=true it may only read.",
                    hint="Change it in on_epoch_end, whose changes reach all ranks; or use"
                    " edl_horovod.callbacks.LearningRateScheduler or MaxSteps, which act at every"
                    " step.",
                )


def _acts_per_batch(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback has work to do at each batch."""
    match callback:
        case keras.callbacks.TerminateOnNaN():
            return False  # Every training ends at a non-finite loss.
        case keras.callbacks.ModelCheckpoint():
            return bool(callback.save_freq != "epoch")
        case keras.callbacks.TensorBoard():
            # Keras has no public attribute for whether profiling is enabled.
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
