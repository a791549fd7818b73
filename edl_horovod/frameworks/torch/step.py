"""One PyTorch training step on a ring: weighted, all or nothing (D6, D7, D17)."""

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.torch.batch_norm import (
    KINDS,
    RingStatistics,
    with_ring_statistics,
)
from edl_horovod.frameworks.torch.callbacks import TorchCallbacks, may_add_groups
from edl_horovod.frameworks.torch.gradients import (
    StepOptions,
    StepReducer,
    are_finite,
    clip,
    sparse_parameters,
)
from edl_horovod.frameworks.torch.groups import groups_of
from edl_horovod.frameworks.torch.loss_scale import LossScale
from edl_horovod.frameworks.torch.model import TorchModel
from edl_horovod.frameworks.torch.moving import BufferSnapshot, TrackedBuffers, unchanged
from edl_horovod.frameworks.torch.objective import Objective, Outcome, metric_means
from edl_horovod.frameworks.torch.optimizer import make_optimization
from edl_horovod.frameworks.torch.optimizer_state import OptimizerState
from edl_horovod.frameworks.torch.own_loss import find_module_loss
from edl_horovod.frameworks.torch.random_numbers import RandomNumbers
from edl_horovod.frameworks.torch.running import ComputeOptions
from edl_horovod.frameworks.torch.structures import (
    batch_of,
    described,
    leaves,
    part_of,
    repeated_batch,
)
from edl_horovod.frameworks.torch.variables import TorchVariable
from edl_horovod.frameworks.values import Batch, StateGroup, StepSums, Variable
from edl_horovod.models.calling import user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

__all__ = ["TorchStep"]

log = logging.getLogger(__name__)

# The step's numbers, in this order, then the metrics' sums, and those of the buffers.
EXAMPLES, LOSS, LOSS_WEIGHT, WANTS_CHANGE, CONTRIBUTORS, FIXED = range(6)


class TorchStep:
    """The model, its optimizer, and the step that changes them."""

    def __init__(
        self,
        loaded: LoadedSpec,
        example: Batch,
        *,
        compute: ComputeOptions,
        learning_rate: float | None,
        options: StepOptions,
        reducer_of: Callable[[Mapping[str, nn.Parameter], set[str]], StepReducer],
    ) -> None:
        """Build the model and the optimizer.

        Args:
            loaded: The user's spec.
            example: Some examples, which stand for all.
            compute: Where and how the model computes.
            learning_rate: Handed to `create_optimizer`; None leaves its default.
            options: How gradients are made and bounded.
            reducer_of: Makes what adds the gradients of these parameters over a ring, of which
                those of these names have sparse ones.

        Raises:
            UserCodeError: One of the spec's methods raised or returned something unusable.
        """
        self._loaded, self._options = loaded, options
        self._random = RandomNumbers()
        self.model = TorchModel(loaded, example, compute)
        self._runner = self.model.runner
        self._statistics = RingStatistics()
        is_normalised = any(isinstance(each, KINDS) for each in self._runner.module.modules())
        self._sums_norms = is_normalised and options.sums_batch_norm
        # BatchNorm refuses to work on one example alone, which a rank of a ring may well have; and
        # a program for any other number of examples is not one for one.
        self._doubles_one = options.compiles or (is_normalised and not options.sums_batch_norm)
        if self._sums_norms:
            self._runner.module = with_ring_statistics(self._runner.module, self._statistics)
        module = self._runner.module
        self._module_loss = find_module_loss(loaded, module, Mode.TRAINING)
        if options.compiles and self._module_loss is not None:
            raise UserCodeError(
                f"train.compile does not go with a loss that {self._module_loss.name} of {loaded.label}"
                " computes itself: a compiled program does not say what the loss is divided by.",
                received={"train.compile": True},
                cure="Leave train.compile out, or give the spec create_loss(self, outputs,"
                " labels).",
            )
        self._objective = Objective(
            loaded,
            module,
            Mode.TRAINING,
            class_weight=options.class_weight,
            module_loss=self._module_loss,
        )
        self._steps_per_epoch: int | None = None
        self._example = self._runner.batch_to_device(example)
        self._buffers = self._try_training(self._example)
        self._modules = list(module.modules())
        self._optimization = make_optimization(loaded, module, learning_rate)
        self.optimizer = self._optimization.optimizer
        self._callbacks = loaded.callbacks()
        self._trained = self._trained_parameters()
        if options.compiles:
            self._runner.compile()
        self._loss_scale = LossScale() if options.scales_loss else None
        sparse = sparse_parameters(module)
        if sparse and (options.clip_norm or options.clip_value):
            raise _unclipped(loaded, sparse, options)
        with _all_trained(self._trained.values()):
            self._state = OptimizerState(self._optimization, self._trained, sparse, loaded)
            self._reducer = reducer_of(self._trained, sparse)
        self._rate_factor = 1.0
        self._has_come = False

    @property
    def variables(self) -> dict[str, Variable]:
        """All that a step changes, each once, in the same order everywhere."""
        found: dict[str, Variable] = {**self.model_variables, **self._state.variables}
        found["random"] = self._random.variable
        if self._loss_scale is not None:
            found["loss_scale"] = self._loss_scale.variable
        return found

    @property
    def model_variables(self) -> dict[str, Variable]:
        """Those of the model alone."""
        found = self.model.weights
        for name, tensor in self._buffers.tensors.items():
            found.setdefault(name, TorchVariable(name, tensor))
        return found

    @property
    def groups(self) -> list[StateGroup]:
        """What can be sent to a newcomer while steps go on."""
        return groups_of(self.variables, self._trained, self._state, self.optimizer)

    def step(
        self, batch: Batch | None, *, wants_change: bool, is_alone: bool, salt: int
    ) -> StepSums:
        """Run one step over the ring; see `base.Step.step`."""
        self._has_come = False
        snapshot = self._buffers.snapshot()
        try:
            local = np.zeros(self._num_numbers)
            self._forget_gradients()
            self._random.begin_step(salt)
            with self._norms_over_ring(batch, is_alone=is_alone):
                if batch is not None:
                    local = self._sums_of(batch, snapshot, is_alone=is_alone)
                elif not is_alone:
                    if self._sums_norms:
                        self._run_along()
                    elif self._objective.num_divisors:
                        self._sum_divisors([0.0] * self._objective.num_divisors, 0)
                    self._reducer.begin(0.0)
            local[WANTS_CHANGE] = float(wants_change)
            self._buffers.restore(snapshot)
            self._has_come = True
            # All ranks: each does so in every step, with examples or without.
            totals = local if is_alone else self._reducer.finish(local, local[LOSS_WEIGHT])
        except BaseException:
            self._buffers.restore(snapshot)
            self._reducer.abandon()
            self._forget_gradients()
            raise
        count, weight = float(totals[EXAMPLES]), float(totals[LOSS_WEIGHT])
        # Examples of which none counts have no mean, as in PyTorch.
        loss = float(totals[LOSS]) / weight if weight else math.nan
        has_finite_gradients = True
        if math.isfinite(loss):
            has_finite_gradients = self._change(totals)
        self._forget_gradients()
        self._random.end_step()
        metric_sums = totals[self._metrics_at]
        means = metric_means(metric_sums)
        return StepSums(
            num_examples=round(count),
            loss=loss,
            wants_change=bool(totals[WANTS_CHANGE] > 0),
            metrics=dict(zip(self._objective.metric_names, means, strict=True)),
            metric_sums=metric_sums,
            has_finite_gradients=has_finite_gradients,
        )

    def scale_learning_rate(self, factor: float) -> None:
        """Multiply the learning rate of the steps that follow; see `base.Step`."""
        self._rate_factor = factor

    def finalize(self) -> None:
        """The optimizers here average no parameters."""

    def rehearse(self, batch: Batch) -> None:
        """Make the sums of a batch once, so that the first true step is quick."""
        with torch.random.fork_rng(devices=[]), unchanged(self._runner.module):
            self._random.begin_step(0)
            self._forget_gradients()
            self._sums_of(batch, self._buffers.snapshot(), is_alone=True)
        self._forget_gradients()

    def has_come(self) -> bool:
        """Whether this rank's part of the step is done, so that it waits for the others."""
        return self._has_come

    def callbacks(
        self, *, num_epochs: int, steps_per_epoch: int | None, per_step: bool
    ) -> TorchCallbacks | None:
        """Make the user's callbacks; None where there are none, and no schedule by the epoch."""
        self._steps_per_epoch = steps_per_epoch
        schedules = [each for each in self._optimization.schedules if not each.is_per_step]
        if not self._callbacks and not schedules:
            return None
        return TorchCallbacks(
            self._callbacks,
            self._runner.module,
            self.optimizer,
            schedules=schedules,
            metric_names=self._objective.metric_names,
            per_step=per_step,
            require_groups=self._state.require_groups,
            loaded=self._loaded,
        )

    def _try_training(self, example: Batch) -> TrackedBuffers:
        """Run the model in training once: for its buffers, and for loss and metrics."""
        module, loaded = self._runner.module, self._loaded
        doing = (
            f"Running the model of {loaded.label} in training on what create_dataset gives"
            f" ({described(example.features)})"
        )
        several = repeated_batch(example) if example.num_examples == 1 else example
        module.train()
        with user_code(doing, root=loaded.zoo), torch.random.fork_rng(devices=[]):
            buffers = TrackedBuffers(
                module, lambda parts: self._outputs(batch_of(*parts)), several.examples
            )
        module.eval()
        with unchanged(module):
            with user_code(doing, root=loaded.zoo):
                outputs = self._outputs(example)
            self._objective.begin(
                example, outputs, None if self._module_loss is None else self._outputs
            )
        if self._options.num_parts > 1 and self._objective.num_divisors:
            raise UserCodeError(
                f"The loss of {loaded.label} has terms that are divided by different sums, which"
                " are not known when the first part of a batch is computed.",
                received={"train.accumulate_steps": self._options.num_parts},
                cure="Set train.accumulate_steps=1, or return one pair (sum, weight).",
            )
        return buffers

    def _outputs(self, batch: Batch) -> Any:
        with self._objective.recording():
            return self._runner.outputs(batch, self._module_loss, self._number_in_epoch)

    @property
    def _number_in_epoch(self) -> int:
        """The place of this step in its epoch, counted from 0; in the training without epochs."""
        number = self._random.num_steps
        return number % self._steps_per_epoch if self._steps_per_epoch else number

    def _trained_parameters(self) -> dict[str, nn.Parameter]:
        """What the optimizer may ever change, by name, in the model's order.

        What is frozen now, a callback may have trained later.
        """
        held = {id(each) for group in self.optimizer.param_groups for each in group["params"]}
        named = dict(self._runner.module.named_parameters())
        left = [name for name, each in named.items() if each.requires_grad and id(each) not in held]
        may_add = any(map(may_add_groups, self._callbacks))
        if left and not may_add:
            log.warning(
                "the optimizer of %s does not hold %s: they stay as they are",
                self._loaded.label,
                ", ".join(left),
            )
        may_thaw = bool(self._callbacks)
        addable = set()
        if may_add:
            buffers = self._buffers.tensors
            addable = {n for n, p in named.items() if p.is_floating_point() and n not in buffers}
        found = {
            name: each
            for name, each in named.items()
            if name in addable or (id(each) in held and (each.requires_grad or may_thaw))
        }
        if not found:
            raise UserCodeError(
                f"The optimizer of {self._loaded.label} holds no parameter that is to be trained.",
                received=f"{len(held)} parameters, none of them with requires_grad",
                cure="Leave requires_grad of what is to be trained as it is.",
            )
        return found

    @property
    def _num_numbers(self) -> int:
        return int(self._metrics_at.stop) + self._buffers.num_sums

    @property
    def _metrics_at(self) -> slice:
        return slice(FIXED, FIXED + self._objective.num_metric_sums)

    def _forget_gradients(self) -> None:
        for parameter in self._trained.values():
            parameter.grad = None

    def _sums_of(
        self,
        batch: Batch,
        snapshot: BufferSnapshot,
        *,
        is_alone: bool,
    ) -> NDArray[np.float64]:
        """This rank's numbers; its gradients are on their way, or in place where it is alone."""
        self._begin_training()
        batch = self._runner.batch_to_device(batch)
        count = batch.num_examples
        size = -(-count // self._options.num_parts)
        starts = range(0, count, size)
        loss_sum, loss_weight = 0.0, 0.0
        metric_sums = np.zeros(self._objective.num_metric_sums)
        for start in starts:
            loss, weight, sums = self._add_gradients(
                part_of(batch, start, min(start + size, count)),
                is_last=start == starts[-1] and not is_alone,
                is_alone=is_alone,
                divisor=count if len(starts) > 1 else None,
            )
            loss_sum += loss
            loss_weight += weight
            metric_sums += sums
        if is_alone and loss_weight and len(starts) > 1:
            # Only now is known what the sum of all parts is divided by.
            for parameter in self._trained.values():
                if parameter.grad is not None:
                    parameter.grad.mul_(count / loss_weight)
        buffer_sums = [term.cpu().numpy() for term in self._buffers.sums(snapshot, count)]
        numbers = np.array([count, loss_sum, loss_weight, 0.0, 1.0])
        return np.concatenate([numbers, metric_sums, *buffer_sums])

    def _begin_training(self) -> None:
        """Put all of the module into training, as far as it is not."""
        if not all(each.training for each in self._modules):
            self._runner.module.train()

    def _norms_over_ring(
        self, batch: Batch | None, *, is_alone: bool
    ) -> contextlib.AbstractContextManager[None]:
        """Have BatchNorm take the examples of all ranks, where that is wanted."""
        if is_alone or not self._sums_norms:
            return contextlib.nullcontext()
        return self._statistics.over_ring(self._reducer.add, has_examples=batch is not None)

    def _run_along(self) -> None:
        """Make the sums that other ranks make amid their passes, without examples that count."""
        self._begin_training()
        self._add_gradients(self._example, is_last=False, is_alone=False, counts=False)
        self._forget_gradients()

    def _sum_divisors(self, divisors: Iterable[float], num_examples: int) -> NDArray[np.float64]:
        """The ring's sums of what the means in a loss are divided by, and of the examples."""
        values = torch.tensor([*divisors, num_examples], dtype=torch.float64)
        # All ranks: each does in every step of a loss with several divisors, also without examples.
        self._reducer.add(values, "edl.loss.divisors")
        sums: NDArray[np.float64] = values.numpy()
        return sums

    def _divide_by_ring(self, outcome: Outcome, num_examples: int, *, counts: bool) -> float:
        """Have each mean in a loss divided by the ring's divisor.

        The ring weighs a rank's loss by its examples. So each mean is multiplied by what makes its
        sum, divided by the ring's divisor, of that.

        Returns:
            The loss with these divisors, times the number of examples.
        """
        divisors = np.array([mean.counted for mean in outcome.means])
        *totals, all_examples = self._sum_divisors(divisors * counts, num_examples * counts)
        loss = outcome.loss.item()
        known, change = 0.0, 0.0
        for mean, divisor, total in zip(outcome.means, divisors, totals, strict=True):
            # Examples that only stand for others may have a divisor where the ring has none.
            factor = divisor / num_examples * all_examples / total if divisor and total else 0.0
            mean.scale_gradient(factor)
            if divisor and mean.value is not None:
                known += mean.share * mean.value * factor
                change += mean.share * mean.value * (factor - 1)
        # A mean over nothing is not a number, and no part of the ring's loss.
        return num_examples * (known if math.isnan(loss) and not divisors.all() else loss + change)

    def _add_gradients(
        self,
        part: Batch,
        *,
        is_last: bool,
        is_alone: bool,
        divisor: float | None = None,
        counts: bool = True,
    ) -> tuple[float, float, NDArray[np.float64]]:
        """Add those of a part of this rank's examples.

        They are those of the loss over all of the rank's examples, as a plain loop has it: hooks
        of the user look at them.

        Args:
            part: The examples.
            is_last: Whether the gradients go out over the ring as they come.
            is_alone: Whether there is no ring.
            divisor: What gradients are divided by until it is known by what; None for the weight
                of this part, which is all.
            counts: Whether the examples count; else they only stand for others.

        Returns:
            The loss as a sum, what that is divided by, and the sums of the metrics.
        """
        num_examples = part.num_examples
        if num_examples == 1 and self._doubles_one:
            # Twice the same has the same mean, and no variance, as one alone has none.
            part = repeated_batch(part)

        def doing() -> str:
            shown = described(part.features)
            return f"Running the model of {self._loaded.label} for {shown} in training"

        with user_code(doing, root=self._loaded.zoo):
            outputs = self._outputs(part)
        outcome = self._objective.of_batch(part, outputs)
        share = num_examples / part.num_examples
        loss, metric_sums = outcome.loss, np.array(outcome.metric_sums) * share
        value, weight = outcome.loss_sum * share, outcome.loss_weight * share
        if outcome.means and not is_alone:
            value = self._divide_by_ring(outcome, part.num_examples, counts=counts) * share
        if not loss.requires_grad and self._sums_norms:
            # Nothing counts here, but other ranks' losses depend on these examples.
            depending = [leaf for leaf in leaves(outputs) if getattr(leaf, "requires_grad", False)]
            loss = torch.stack([0.0 * leaf.sum() for leaf in depending]).sum()
        # Where nothing counts the gradients are zeros, whatever they are divided by.
        weight_or_1 = weight or 1.0
        divisor = divisor or weight_or_1
        if is_last:
            self._reducer.begin(divisor)
        if loss.requires_grad:
            with user_code(f"The backward pass of {self._loaded.label}", root=self._loaded.zoo):
                self._statistics.weigh(divisor)
                factor = weight_or_1 / divisor * self._factor
                # One part alone is what a plain loop does, to the last bit.
                (loss if factor == 1.0 else loss * factor).backward()
        return value, weight, metric_sums

    @property
    def _factor(self) -> float:
        """What gradients are multiplied by until they are reduced."""
        return 1.0 if self._loss_scale is None else self._loss_scale.factor

    def _change(self, totals: NDArray[np.float64]) -> bool:
        """Update parameters and buffers by the ring's sums, the same on all ranks.

        Returns whether the gradients are finite; else nothing is changed.
        """
        count = float(totals[EXAMPLES])
        for parameter in self._state.waiting:
            parameter.grad = None
        # What the loss does not depend on is not even decayed.
        parameters = [each for each in self._trained.values() if each.grad is not None]
        if not parameters and any(each.requires_grad for each in self._trained.values()):
            raise UserCodeError(
                f"The loss of {self._loaded.label} depends on none of the parameters that are"
                " trained.",
                cure="Compute it of the model's outputs, without .detach(), .item() and no_grad.",
            )
        with torch.no_grad():
            is_held = True
            if self._loss_scale is not None:
                for parameter in parameters:
                    parameter.grad.mul_(1.0 / self._factor)
                is_held = are_finite(parameters)
                if not is_held and self._loss_scale.is_least:
                    return False
                # float16 could not hold them: the step is left out, and the next ones are smaller.
                self._loss_scale.update(is_finite=is_held)
            if is_held:
                clip(parameters, self._options)
                # Only now: a bound of each value makes a large number of an infinite one.
                if not are_finite(parameters):
                    return False
        # Before the optimizer: it goes on from what the forward pass has written into parameters.
        self._buffers.update(
            torch.from_numpy(totals[self._metrics_at.stop :].copy()),
            count,
            float(totals[CONTRIBUTORS]),
        )
        if is_held:
            with (
                torch.no_grad(),
                user_code(f"The optimizer of {self._loaded.label}", root=self._loaded.zoo),
            ):
                self._apply()
        return True

    def _apply(self) -> None:
        with self._multiplied_rate(), torch.enable_grad():
            self._state.begin()
            self.optimizer.step()
        self._state.settle()
        for schedule in self._optimization.schedules:
            if schedule.is_per_step and schedule.is_due(self._number_in_epoch):
                schedule.scheduler.step()

    @contextlib.contextmanager
    def _multiplied_rate(self) -> Iterator[None]:
        if self._rate_factor == 1.0:
            yield
            return
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * self._rate_factor
        yield
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def _unclipped(loaded: LoadedSpec, sparse: set[str], options: StepOptions) -> UserCodeError:
    bounds = {
        "train.clip_norm": options.clip_norm,
        "train.clip_value": options.clip_value,
    }
    return UserCodeError(
        f"PyTorch cannot bound the sparse gradients of {', '.join(sorted(sparse))} of"
        f" {loaded.label}.",
        received={key: limit for key, limit in bounds.items() if limit},
        cure="Leave the bound out, or write sparse=False in the embeddings.",
    )


@contextlib.contextmanager
def _all_trained(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Have them all trained meanwhile, also those that are frozen."""
    frozen = [each for each in parameters if not each.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    yield
    for parameter in frozen:
        parameter.requires_grad_(False)
