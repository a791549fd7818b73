"""Callbacks of a PyTorch training, and schedules by the epoch (docs/adr/0005).

The leader runs them between epochs; then the ring's state is synchronised, so what they change in
the model, in the optimizer and in their own numbers reaches every rank.
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
from edl_horovod.frameworks.torch.live import LiveVariable
from edl_horovod.frameworks.torch.objective import metric_means
from edl_horovod.frameworks.torch.optimizer import Schedule
from edl_horovod.frameworks.torch.variables import bytes_of
from edl_horovod.frameworks.values import StepSums, checksum
from edl_horovod.models.calling import names_in
from edl_horovod.models.zoo import LoadedSpec

__all__ = ["TorchCallbacks", "may_add_groups"]

_GIVEN = ("model", "optimizer")
_STEP_HOOKS = ("on_train_batch_begin", "on_train_batch_end")


class TorchCallbacks(EpochCallbacks):
    """See `base.Callbacks`."""

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
        """Call nothing yet.

        Args:
            callbacks: The user's.
            module: What is trained.
            optimizer: Trains it.
            schedules: Those that go on with each epoch.
            metric_names: Of the training's metrics.
            per_step: Whether hooks of single steps are called (`callbacks.per_step`).
            require_groups: Raises an error where the optimizer's groups were changed wrongly.
            loaded: The user's spec.

        Raises:
            UserCodeError: One of them is no callback, or has hooks that are not called.
        """
        self._parameters = list(module.parameters())
        self._trainable = LiveVariable(self._frozen_or_not, self._freeze, np.uint8)
        super().__init__(
            callbacks,
            num_metric_sums=2 * len(metric_names),
            trainable=self._trainable,
            zoo=loaded.zoo,
        )
        for callback in self._callbacks:
            _require_usable(callback, per_step=per_step)
        self._by_step = [each for each in self._callbacks if _step_hooks_of(each)]
        self._module, self._optimizer = module, optimizer
        self._schedules, self._require_groups = list(schedules), require_groups
        self._metric_names = list(metric_names)
        self._has_begun = False

    def before_step(self, step: int, *, batch: int | None) -> None:
        """Set the step's learning rate, on every rank the same; let the leader's callbacks look.

        Raises:
            UserCodeError: A schedule gave no number, or a hook changed something.
        """
        for callback in self._rates:
            rate = self._rate_of(callback, step)
            for group in self._optimizer.param_groups:
                group["lr"] = rate
        if batch is not None and self._by_step:
            self._look("on_train_batch_begin", batch)

    def after_step(self, sums: StepSums, *, batch: int | None) -> None:
        """Add a step's numbers, the same on all ranks; let the leader's callbacks look."""
        self._add(sums)
        if batch is not None and self._by_step:
            self._look("on_train_batch_end", batch, self._means())

    def begin_epoch(self, epoch: int) -> None:
        """Tell them of an epoch's begin; only the leader does, and then the ring syncs."""
        with self._live():
            self._call("on_epoch_begin", epoch)

    def end_epoch(self, epoch: int, evaluation: Mapping[str, float]) -> None:
        """Tell them of an epoch's end; only the leader does, and then the ring syncs."""
        logs = self._means() | {f"val_{name}": value for name, value in evaluation.items()}
        with self._live():
            for schedule in self._schedules:
                if schedule.is_due(epoch):
                    self._go_on(schedule, logs)
            self._call("on_epoch_end", epoch, logs)
            is_over = any(callback.stop_training for callback in self._callbacks)
            self._stopped.assign(int(is_over))
        self._forget_sums()

    def end(self) -> None:
        """Tell them of the training's end; only the leader does, before the model is written."""
        with self._live():
            self._call("on_train_end")

    def _means(self) -> dict[str, float]:
        """Loss and metrics over the epoch so far."""
        count, loss_sum, *sums = self._sums.numpy()
        if not count:
            return {}
        means = [float(loss_sum / count), *metric_means(np.array(sums))]
        return dict(zip(["loss", *self._metric_names], means, strict=True))

    def _go_on(self, schedule: Schedule, logs: Mapping[str, float]) -> None:
        if not schedule.is_plateau:
            schedule.scheduler.step()
            return
        monitor = schedule.monitor or ("val_loss" if "val_loss" in logs else "loss")
        if monitor not in logs:
            raise UserCodeError(
                "ReduceLROnPlateau watches a number that this training does not have.",
                received={"monitor": monitor},
                cure=f"It has {', '.join(logs)}; those with val_ need validation_data.",
            )
        schedule.scheduler.step(logs[monitor])

    @contextlib.contextmanager
    def _live(self) -> Iterator[None]:
        """The callbacks between epochs: what they note then is for all ranks."""
        self._make_ready()
        yield
        self._require_groups()
        self._save()

    def _make_ready(self) -> None:
        """Have the callbacks know the model and, whoever ran them last, their numbers."""
        if not self._has_begun:
            self._has_begun = True
            trained = self._trainable.numpy()
            for callback in self._callbacks:
                callback.model, callback.optimizer = self._module, self._optimizer
            self._call("on_train_begin")
            if self._loaded_text != self._text:
                # What they froze at the begin, they may have freed since then.
                self._trainable.assign(trained)
        self._load()

    def _look(self, hook: str, *arguments: Any) -> None:
        """Call a hook that may look only, and see that it does no more."""
        self._make_ready()
        before = self._versions()
        self._call(hook, *arguments, only=self._by_step)
        if self._versions() != before or any(each.stop_training for each in self._by_step):
            raise UserCodeError(
                f"{hook} of {' or '.join(type(each).__name__ for each in self._by_step)} changes"
                " the model, the optimizer or stop_training, which would be another value on every"
                " rank; with callbacks.per_step=true it may look only.",
                cure="Change it in on_epoch_end, which reaches all ranks; or use"
                " edl_horovod.callbacks.LearningRateScheduler or MaxSteps, which act on every"
                " step.",
            )

    def _versions(self) -> list[Any]:
        """What differs as soon as a tensor or a setting has been written to."""
        tensors = [*self._parameters, *self._module.buffers()]
        rates = [group["lr"] for group in self._optimizer.param_groups]
        # What is written by way of `.data` has no new version.
        seen = [
            (tensor._version, tensor.requires_grad, checksum(bytes_of(tensor).cpu().numpy()))
            for tensor in tensors
            if tensor.layout is torch.strided
        ]
        return [*seen, *rates]

    def _numbers(self, callback: Any) -> dict[str, Any]:
        """The attributes of a callback that are plain and its own, by name."""
        return {
            name: value
            for name, value in vars(callback).items()
            if name not in _GIVEN and not name.startswith("_") and is_plain(value)
        }

    def _frozen_or_not(self) -> list[int]:
        return [int(parameter.requires_grad) for parameter in self._parameters]

    def _freeze(self, flags: NDArray[Any]) -> None:
        for parameter, is_trained in zip(self._parameters, flags.tolist(), strict=True):
            if parameter.requires_grad != bool(is_trained):
                parameter.requires_grad_(bool(is_trained))


def may_add_groups(callback: Any) -> bool:
    """Whether a callback's own code calls `add_param_group` of the optimizer.

    What it may add needs room in the ring's state from the start, and only then gets it.
    """
    functions = [each for _, each in inspect.getmembers(type(callback), inspect.isfunction)]
    return any("add_param_group" in names_in(each) for each in functions)


def _require_usable(callback: Any, *, per_step: bool) -> None:
    name = type(callback).__name__
    if not isinstance(callback, Callback):
        raise UserCodeError(
            "A callback of a PyTorch model must be an edl_horovod.callbacks.Callback.",
            received=name,
            cure="Extend that class.",
        )
    if hooks := [] if per_step else _step_hooks_of(callback):
        raise UserCodeError(
            f"{name} acts at each step ({' and '.join(hooks)}), and on a ring callbacks are called"
            " between epochs only.",
            received=f"{name} in create_callbacks",
            cure="If it only looks (logging, profiling), set callbacks.per_step=true: then it is"
            " called on the leader. What changes something by the step is"
            " edl_horovod.callbacks.LearningRateScheduler or MaxSteps.",
        )


def _step_hooks_of(callback: Callback) -> list[str]:
    kind = type(callback)
    return [hook for hook in _STEP_HOOKS if getattr(kind, hook) is not getattr(Callback, hook)]
