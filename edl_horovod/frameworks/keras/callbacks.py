"""Keras callbacks on a ring: the leader runs them, and their changes reach every rank.

After the leader has run them the ring's state is synchronized, so a callback may change any
variable of the model or the optimizer, such as the learning rate, and which layers are trained. The
callbacks' attributes (such as the number of epochs without improvement) are part of that state as
JSON, so that a new leader continues where the lost one stopped.

Between two steps the ring does not synchronize, so a change could not reach every rank. The hooks
for each batch therefore run in a scope in which each variable reads as its current value and cannot
change.
"""

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike, NDArray

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.epoch_callbacks import EpochCallbacks
from edl_horovod.frameworks.values import Array

_KEEPS_WEIGHTS = "keeps weights in one process only, which the ring may lose"
_TEST_HOOKS = ("on_test_begin", "on_test_end", "on_test_batch_begin", "on_test_batch_end")

_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_BATCH_HINT = (
    "If it only reads (logging, time stamps, profiling), set callbacks.per_step=true to call it on"
    " the leader. To change something at each step, use edl_horovod.callbacks.LearningRateScheduler"
    " or MaxSteps."
)


class Trainable(Array):
    """A variable of the ring's state with 1 for each trainable layer and variable, else 0.

    A callback may change this on the leader between epochs (`layer.trainable = True`). As part of
    the state, the change reaches all ranks, joining ranks and checkpoints.
    """

    def __init__(self, model: keras.Model) -> None:
        """Read the current value from a built model."""
        # Keras has no public API for nested layers. Setting a layer's flag sets those of its inner
        # layers, too, so outer layers come first.
        layers = {id(layer): layer for layer in model._flatten_layers()}.values()
        self._layers = sorted(layers, key=lambda layer: -len(layer._flatten_layers()))
        self._model = model
        super().__init__(self._read())

    def assign(self, value: ArrayLike) -> None:
        """Set which layers and variables are trained; `numpy()` is a new array if that changes."""
        flags = np.asarray(value, np.bool_).tolist()
        for part, is_trained in zip((*self._layers, *self._model.variables), flags, strict=True):
            part.trainable = is_trained
        self._set(value)

    def refresh(self) -> bool:
        """Read the current value from the model; return whether it has changed."""
        return self._set(self._read())

    def trainable_if_unfrozen(self) -> list[keras.Variable]:
        """List the variables that are trained if a callback unfreezes all layers."""
        for layer in self._layers:
            layer.trainable = True
        variables = list(self._model.trainable_variables)
        self.assign(self.numpy())
        return variables

    def _set(self, value: ArrayLike) -> bool:
        has_changed = not np.array_equal(value, self.numpy())
        if has_changed:
            super().assign(value)
        return has_changed

    def _read(self) -> NDArray[np.uint8]:
        parts = (*self._layers, *self._model.variables)
        return np.array([bool(part.trainable) for part in parts], np.uint8)


class KerasCallbacks(EpochCallbacks):
    """Calls the user's Keras callbacks on the leader."""

    def __init__(
        self,
        callbacks: Sequence[Any],
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer | Mapping[str, keras.optimizers.Optimizer],
        *,
        num_epochs: int,
        steps_per_epoch: int | None,
        per_step: bool,
        **common: Any,
    ) -> None:
        """Check the callbacks. While one runs, `model.optimizer` is `optimizer`.

        Args:
            callbacks: The user's callbacks.
            model: The model that is trained.
            optimizer: The optimizer that trains it; those of phases by name, not in a dict, which
                Keras would replace by a copy.
            num_epochs: Passed to the callbacks.
            steps_per_epoch: Passed to the callbacks; None if it depends on the size of the ring.
            per_step: Whether Keras' hooks for each batch are called (`callbacks.per_step`).
            **common: Arguments of `EpochCallbacks`.

        Raises:
            UserCodeError: A callback cannot work on a ring.
        """
        super().__init__(callbacks, **common)
        for callback in self._callbacks:
            _require_usable(callback)
        self._step_callbacks = [
            callback for callback in self._callbacks if _acts_per_batch(callback)
        ]
        if self._step_callbacks and not per_step:
            name = type(self._step_callbacks[0]).__name__
            hooks = " and ".join(_defined(self._step_callbacks[0], _BATCH_HOOKS)) or "by a setting"
            raise UserCodeError(
                f"{name} acts at each batch ({hooks}), but on a ring callbacks are only called"
                " between epochs.",
                received=f"{name} in create_callbacks",
                hint=_BATCH_HINT,
            )
        self._model, self._optimizer = model, optimizer
        if isinstance(optimizer, Mapping):
            self._optimizers = list(optimizer.values())
            self._require_no_rates("pass a schedule of keras.optimizers.schedules to each")
        else:
            self._optimizers = [optimizer]
        self._model.stop_training = False
        self._params = {"epochs": num_epochs, "steps": steps_per_epoch, "verbose": 0}

    @contextlib.contextmanager
    def _prepared(self) -> Iterator[None]:
        # The model is saved with its compiled optimizer, if any, so restore that.
        compiled_optimizer = getattr(self._model, "optimizer", None)
        self._model.optimizer = self._optimizer
        try:
            with super()._prepared():
                yield
            if self._model.optimizer is not self._optimizer:
                raise UserCodeError(
                    "A callback replaced the model's optimizer or compiled the model, but the"
                    " ring's state holds the slots of the first optimizer.",
                    received=type(self._model.optimizer).__name__,
                    hint="Set self.model.optimizer.learning_rate, or layer.trainable for"
                    " fine-tuning, which resets the optimizer's state.",
                )
        finally:
            self._model.optimizer = compiled_optimizer

    def _attach(self, callback: Any, *, is_first: bool) -> None:
        if isinstance(callback, keras.callbacks.CSVLogger) and not is_first:
            callback.append = True  # An earlier leader wrote the existing file.
        callback.set_params(self._params)
        callback.set_model(self._model)

    def _set_learning_rate(self, rate: float) -> None:
        (optimizer,) = self._optimizers
        optimizer.learning_rate = rate

    def _wants_stop(self) -> bool:
        return bool(self._model.stop_training)

    def _no_logs(self) -> tuple[dict[str, float], ...]:
        return ({},)

    def _call_read_only(self, hook: str, *arguments: Any) -> None:
        for callback in self._step_callbacks:
            if isinstance(callback, keras.callbacks.ModelCheckpoint):
                # It only writes. Saving a model creates variables, which would fail in a scope.
                self._call(hook, *arguments, only=[callback])
                continue
            variables = [*self._model.variables]
            for optimizer in self._optimizers:
                variables += optimizer.variables
            values = [(variable, variable.value) for variable in variables]
            with keras.StatelessScope(state_mapping=values) as scope:
                before = [(scope.get_current_value(v), v.trainable) for v in variables]
                self._call(hook, *arguments, only=[callback])
            changed = [
                variable.path
                for variable, (value, is_trained) in zip(variables, before, strict=True)
                if scope.get_current_value(variable) is not value
                or variable.trainable != is_trained
            ]
            if self._wants_stop():
                changed.append("stop_training")
            if changed:
                raise UserCodeError(
                    f"{hook} of {type(callback).__name__} changes {changed[0]}, but on the leader"
                    " only, so the ranks would differ; with callbacks.per_step=true it may only"
                    " read.",
                    hint="Change it in on_epoch_end, whose changes reach all ranks; or use"
                    " edl_horovod.callbacks.LearningRateScheduler or MaxSteps, which act at every"
                    " step.",
                )

    def _attributes(self, callback: Any) -> dict[str, Any]:
        """Collect a callback's attributes by name, without its constructor's settings.

        Settings of Keras' callbacks are equal on all ranks, but a few callbacks change a setting
        in place (the sign of `min_delta`), so copying them to a new leader would be wrong. Their
        private attributes are about files and profiles of the process.
        """
        if isinstance(callback, keras.callbacks.CSVLogger):
            return {}  # Its file holds its state.
        of_keras = [kind for kind in type(callback).__mro__ if kind.__module__.startswith("keras.")]
        settings = {name for kind in of_keras for name in inspect.signature(kind).parameters}
        is_own = of_keras == [keras.callbacks.Callback]
        return {
            name: value
            for name, value in vars(callback).items()
            if name not in settings | {"params", "_model"} and (is_own or not name.startswith("_"))
        }


def may_freeze(callback: Any) -> bool:
    """Whether a callback may change which variables are trained.

    Callbacks of Keras and of this package do not, except `LambdaCallback`.
    """
    callback_class = type(callback)
    is_built_in = callback_class.__module__.partition(".")[0] in ("keras", "edl_horovod")
    return not is_built_in or callback_class is keras.callbacks.LambdaCallback


def _require_usable(callback: Any) -> None:
    """Reject a callback that cannot work on a ring."""
    name = type(callback).__name__
    if not isinstance(callback, keras.callbacks.Callback):
        raise UserCodeError(
            "A callback must be an instance of keras.callbacks.Callback.",
            received=name,
            hint="Derive it from keras.callbacks.Callback.",
        )
    is_built_in = type(callback).__module__.startswith("keras.")
    is_built_in &= type(callback) is not keras.callbacks.LambdaCallback
    problem, hint = "", ""
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        problem, hint = _KEEPS_WEIGHTS, "Remove it and set checkpoint.* and resume=auto."
    elif getattr(callback, "restore_best_weights", False):
        keys = "train.early_stopping.metric and train.early_stopping.restore_best=true"
        problem, hint = _KEEPS_WEIGHTS, f"Remove it and set {keys}."
    elif isinstance(callback, keras.callbacks.SwapEMAWeights):
        problem = (
            "changes weights around an evaluation, but callbacks are not called for evaluations"
        )
        hint = "Remove it: with use_ema=True the trained model gets the averaged weights."
    elif hooks := _defined(callback, () if is_built_in else _TEST_HOOKS):
        problem = f"has {' and '.join(hooks)}, but callbacks are not called for evaluations"
        hint = "Read the values of an evaluation in the logs of on_epoch_end, as val_..."
    if problem:
        raise UserCodeError(f"{name} {problem}.", received=f"{name} in create_callbacks", hint=hint)


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
    return bool(_defined(callback, _BATCH_HOOKS))


def _defined(callback: keras.callbacks.Callback, hooks: Sequence[str]) -> list[str]:
    """Return those of the hooks that a callback defines, in its class or itself."""
    base = keras.callbacks.Callback
    return [
        hook
        for hook in hooks
        if getattr(type(callback), hook) is not getattr(base, hook) or hook in vars(callback)
    ]
