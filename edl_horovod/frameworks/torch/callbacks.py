"""Callbacks of a PyTorch training, and learning-rate schedules per epoch (docs/adr/0005).

The leader calls them between epochs; then the ring's state is synchronised, so their changes to the
model, the optimizer and their own attributes reach every rank.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edl_horovod.callbacks import Callback
from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.epoch_callbacks import EpochCallbacks
from edl_horovod.frameworks.torch.optimizer import Schedule
from edl_horovod.frameworks.torch.variables import LiveVariable, bytes_of
from edl_horovod.frameworks.values import checksum
from edl_horovod.models.calling import referenced_names

_FRAMEWORK_ATTRIBUTES = ("model", "optimizer")
_STEP_HOOKS = ("on_train_batch_begin", "on_train_batch_end")


class TorchCallbacks(EpochCallbacks):
    """The callbacks of a PyTorch training."""

    def __init__(
        self,
        callbacks: Sequence[Any],
        module: nn.Module,
        optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer],
        *,
        schedules: Sequence[Schedule],
        per_step: bool,
        **common: Any,
    ) -> None:
        """Check the callbacks; no hook is called yet.

        Args:
            callbacks: All callbacks that the user's spec returned.
            module: The module that is trained.
            optimizer: The optimizer of the training; those of phases by name.
            schedules: The schedules that advance once per epoch.
            per_step: Whether hooks of single steps are called (`callbacks.per_step`).
            **common: Arguments of `EpochCallbacks`.

        Raises:
            UserCodeError: A callback has a wrong type, or hooks that would never be called.
        """
        self._parameters = list(module.parameters())
        trainable = LiveVariable(self._trainable_values, self._set_trainable, np.uint8)
        super().__init__(callbacks, trainable=trainable, **common)
        for callback in self._callbacks:
            _require_usable(callback, per_step=per_step)
        self._step_callbacks = list(filter(_step_hooks_of, self._callbacks))
        self._module, self._optimizer, self._schedules = module, optimizer, list(schedules)
        if isinstance(optimizer, Mapping):
            self._optimizers = list(optimizer.values())
            self._require_no_rates("pass a scheduler beside each optimizer")
        else:
            self._optimizers = [optimizer]

    def _attach(self, callback: Any, *, is_first: bool) -> None:
        callback.model, callback.optimizer = self._module, self._optimizer

    def _set_learning_rate(self, rate: float) -> None:
        (optimizer,) = self._optimizers
        for group in optimizer.param_groups:
            group["lr"] = rate

    def _wants_stop(self) -> bool:
        return any(callback.stop_training for callback in self._callbacks)

    def _advance_schedules(self, epoch: int, logs: Mapping[str, float]) -> None:
        for schedule in self._schedules:
            if schedule.is_due(epoch) and not schedule.is_plateau:
                schedule.scheduler.step()
            elif schedule.is_due(epoch):
                monitor = schedule.monitor or ("val_loss" if "val_loss" in logs else "loss")
                if monitor not in logs:
                    raise UserCodeError(
                        "ReduceLROnPlateau monitors a value that this training does not have.",
                        received={"monitor": monitor},
                        hint=f"Use one of {', '.join(logs)}; values with val_ need"
                        " validation_data.",
                    )
                schedule.scheduler.step(logs[monitor])

    def _call_read_only(self, hook: str, *arguments: Any) -> None:
        before = self._versions()
        self._call(hook, *arguments, only=self._step_callbacks)
        wants_stop = any(callback.stop_training for callback in self._step_callbacks)
        if wants_stop or self._versions() != before:
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
        rates = [group["lr"] for optimizer in self._optimizers for group in optimizer.param_groups]
        # The checksum detects writes through `.data`, which do not change the version.
        tensor_versions = [
            (tensor._version, tensor.requires_grad, checksum(bytes_of(tensor).cpu().numpy()))
            for tensor in tensors
            if tensor.layout is torch.strided
        ]
        return [*tensor_versions, *rates]

    def _attributes(self, callback: Any) -> dict[str, Any]:
        attributes = vars(callback).items()
        return {name: value for name, value in attributes if name not in _FRAMEWORK_ATTRIBUTES}

    def _trainable_values(self) -> list[int]:
        return [int(parameter.requires_grad) for parameter in self._parameters]

    def _set_trainable(self, flags: NDArray[Any]) -> None:
        for parameter, is_trained in zip(self._parameters, flags.tolist(), strict=True):
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
