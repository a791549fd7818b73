"""Callbacks of a PyTorch training, and learning-rate schedules per epoch (docs/adr/0005).

The leader calls them between epochs; then the ring's state is synchronised, so their changes to the
model, the optimizer and their own attributes reach every rank.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edl_horovod.callbacks import Callback
from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.epoch_callbacks import EpochCallbacks, is_plain
from edl_horovod.frameworks.torch.objective import metric_means
from edl_horovod.frameworks.torch.optimizer import Schedule
from edl_horovod.frameworks.torch.variables import LiveVariable, bytes_of
from edl_horovod.frameworks.values import StepSums, checksum
from edl_horovod.models.calling import referenced_names
from edl_horovod.models.zoo import LoadedSpec

__all__ = ["TorchCallbacks", "may_add_groups"]

_FRAMEWORK_ATTRIBUTES = ("model", "optimizer")
_STEP_HOOKS = ("on_train_batch_begin", "on_train_batch_end")


class TorchCallbacks(EpochCallbacks):
    """Implements `base.Callbacks` for PyTorch."""

    def __init__(
        self,
        callbacks: Sequence[Any],
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        schedules: Sequence[Schedule],
        metric_names: Sequence[str],
        per_step: bool,
        require_groups: Callable[[], None],
        loaded: LoadedSpec,
    ) -> None:
        """Check the callbacks; no hook is called yet.

        Args:
            callbacks: All callbacks that the user's spec returned.
            module: The module that is trained.
            optimizer: The optimizer of the training.
            schedules: The schedules that advance once per epoch.
            metric_names: Names of the training's metrics, in the order of their sums.
            per_step: Whether hooks of single steps are called (`callbacks.per_step`).
            require_groups: Raises an error if the optimizer's groups were changed in an
                unsupported way.
            loaded: The user's spec.

        Raises:
            UserCodeError: A callback has a wrong type, or hooks that would never be called.
        """
        self._parameters = list(module.parameters())
        self._trainable = LiveVariable(self._trainable_values, self._set_trainable, np.uint8)
        super().__init__(
            callbacks,
            num_metric_sums=2 * len(metric_names),
            trainable=self._trainable,
            zoo=loaded.zoo,
        )
        for callback in self._callbacks:
            _require_usable(callback, per_step=per_step)
        self._step_callbacks = [
            callback for callback in self._callbacks if _step_hooks_of(callback)
        ]
        self._module, self._optimizer = module, optimizer
        self._schedules, self._require_groups = list(schedules), require_groups
        self._metric_names = list(metric_names)
        self._is_prepared = False

    def before_step(self, step: int, *, batch: int | None) -> None:
        """Set the step's learning rate on every rank; on the leader, call the hooks of steps.

        Raises:
            UserCodeError: A schedule did not return a number, or a hook changed something.
        """
        for callback in self._rates:
            rate = self._rate_of(callback, step)
            for group in self._optimizer.param_groups:
                group["lr"] = rate
        if batch is not None and self._step_callbacks:
            self._call_read_only("on_train_batch_begin", batch)

    def after_step(self, sums: StepSums, *, batch: int | None) -> None:
        """Add a step's sums on every rank; on the leader, call the hooks of steps."""
        self._add(sums)
        if batch is not None and self._step_callbacks:
            self._call_read_only("on_train_batch_end", batch, self._means())

    def begin_epoch(self, epoch: int) -> None:
        """Call the hooks of an epoch's begin, only on the leader; then the ring is synced."""
        with self._loaded_callbacks():
            self._call("on_epoch_begin", epoch)

    def end_epoch(self, epoch: int, evaluation: Mapping[str, float]) -> None:
        """Call the hooks of an epoch's end, only on the leader; then the ring is synced."""
        logs = self._means() | {f"val_{name}": value for name, value in evaluation.items()}
        with self._loaded_callbacks():
            for schedule in self._schedules:
                if schedule.is_due(epoch):
                    self._advance(schedule, logs)
            self._call("on_epoch_end", epoch, logs)
            is_over = any(callback.stop_training for callback in self._callbacks)
            self._stopped.assign(int(is_over))
        self._forget_sums()

    def end(self) -> None:
        """Call the hooks of the training's end, on the leader, before it writes the model."""
        with self._loaded_callbacks():
            self._call("on_train_end")

    def _means(self) -> dict[str, float]:
        """Return loss and metrics over the epoch so far."""
        count, loss_sum, *sums = self._sums.numpy()
        if not count:
            return {}
        means = [float(loss_sum / count), *metric_means(np.array(sums))]
        return dict(zip(["loss", *self._metric_names], means, strict=True))

    def _advance(self, schedule: Schedule, logs: Mapping[str, float]) -> None:
        if not schedule.is_plateau:
            schedule.scheduler.step()
            return
        monitor = schedule.monitor or ("val_loss" if "val_loss" in logs else "loss")
        if monitor not in logs:
            raise UserCodeError(
                "ReduceLROnPlateau monitors a value that this training does not have.",
                received={"monitor": monitor},
                hint=f"Use one of {', '.join(logs)}; values with val_ need validation_data.",
            )
        schedule.scheduler.step(logs[monitor])

    @contextlib.contextmanager
    def _loaded_callbacks(self) -> Iterator[None]:
        """Run hooks between epochs: load the callbacks' attributes before, and save them after."""
        self._prepare()
        yield
        self._require_groups()
        self._save()

    def _prepare(self) -> None:
        """Prepare the callbacks on this rank, which may have become the leader just now."""
        if not self._is_prepared:
            self._is_prepared = True
            flags = self._trainable.numpy()
            for callback in self._callbacks:
                callback.model, callback.optimizer = self._module, self._optimizer
            self._call("on_train_begin")
            if self._loaded_text != self._text:
                # The ring's state is newer than what on_train_begin has set: keep its flags.
                self._trainable.assign(flags)
        self._load()

    def _call_read_only(self, hook: str, *arguments: Any) -> None:
        """Call a read-only hook, and check that it changed nothing."""
        self._prepare()
        before = self._versions()
        self._call(hook, *arguments, only=self._step_callbacks)
        if self._versions() != before or any(
            callback.stop_training for callback in self._step_callbacks
        ):
            names = " or ".join(type(callback).__name__ for callback in self._step_callbacks)
            raise UserCodeError(
                f"{hook} of {names} changes the model, the optimizer or stop_training. The change"
                " would not reach the other ranks; with callbacks.per_step=true hooks of steps are"
                " read-only.",
                hint="Change it in on_epoch_end, which reaches all ranks; or use"
                " edl_horovod.callbacks.LearningRateScheduler or MaxSteps, which act on every"
                " step.",
            )

    def _versions(self) -> list[Any]:
        """Return values that change if any tensor or learning rate is written to."""
        tensors = [*self._parameters, *self._module.buffers()]
        rates = [group["lr"] for group in self._optimizer.param_groups]
        # The checksum detects writes through `.data`, which do not change the version.
        tensor_versions = [
            (tensor._version, tensor.requires_grad, checksum(bytes_of(tensor).cpu().numpy()))
            for tensor in tensors
            if tensor.layout is torch.strided
        ]
        return [*tensor_versions, *rates]

    def _numbers(self, callback: Any) -> dict[str, Any]:
        """The attributes of a callback that are plain and not set by this class, by name."""
        return {
            name: value
            for name, value in vars(callback).items()
            if name not in _FRAMEWORK_ATTRIBUTES and not name.startswith("_") and is_plain(value)
        }

    def _trainable_values(self) -> list[int]:
        return [int(parameter.requires_grad) for parameter in self._parameters]

    def _set_trainable(self, flags: NDArray[Any]) -> None:
        for parameter, is_trained in zip(self._parameters, flags.tolist(), strict=True):
            if parameter.requires_grad != bool(is_trained):
                parameter.requires_grad_(bool(is_trained))


def may_add_groups(callback: Any) -> bool:
    """Whether a callback's code calls `add_param_group` of the optimizer.

    Parameters that it may add are part of the ring's state from the start.
    """
    functions = [function for _, function in inspect.getmembers(type(callback), inspect.isfunction)]
    return any("add_param_group" in referenced_names(function) for function in functions)


def _require_usable(callback: Any, *, per_step: bool) -> None:
    name = type(callback).__name__
    if not isinstance(callback, Callback):
        raise UserCodeError(
            "A callback of a PyTorch model must be an edl_horovod.callbacks.Callback.",
            received=name,
            hint="Extend that class.",
        )
    if hooks := [] if per_step else _step_hooks_of(callback):
        raise UserCodeError(
            f"{name} has hooks of single steps ({' and '.join(hooks)}), but callbacks are called"
            " only between epochs.",
            received=f"{name} in create_callbacks",
            hint="If the hooks change nothing (logging, profiling), set callbacks.per_step=true:"
            " then they are called on the leader. To change the learning rate or to stop at a step,"
            " use edl_horovod.callbacks.LearningRateScheduler or MaxSteps.",
        )


def _step_hooks_of(callback: Callback) -> list[str]:
    kind = type(callback)
    return [hook for hook in _STEP_HOOKS if getattr(kind, hook) is not getattr(Callback, hook)]
