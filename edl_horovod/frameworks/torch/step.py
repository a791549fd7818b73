"""A PyTorch training step on a ring: weighted, all or nothing (D6, D7, D17)."""

import cmath
import contextlib
import logging
import math
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks import values
from edl_horovod.frameworks.phases import PhasePart
from edl_horovod.frameworks.privacy import (
    examples_at_once,
    noise,
    refuse_shared_state,
    refuse_weights,
    require_one_each,
)
from edl_horovod.frameworks.step_options import Reduction, StepOptions
from edl_horovod.frameworks.torch.adversarial import Attack
from edl_horovod.frameworks.torch.batch_norm import (
    KINDS,
    RingStatistics,
    single_values,
    with_ring_statistics,
)
from edl_horovod.frameworks.torch.batches import step_seed
from edl_horovod.frameworks.torch.buffers import BufferSnapshot, TrackedBuffers, unchanged
from edl_horovod.frameworks.torch.callbacks import TorchCallbacks, may_add_groups
from edl_horovod.frameworks.torch.model import TorchModel
from edl_horovod.frameworks.torch.noise import with_noise
from edl_horovod.frameworks.torch.objective import Objective, Outcome
from edl_horovod.frameworks.torch.optimizer import make_optimizer, parse_optimizer
from edl_horovod.frameworks.torch.optimizer_state import OptimizerState, TorchOuterOptimizer
from edl_horovod.frameworks.torch.phases import PhaseLoss, only
from edl_horovod.frameworks.torch.running import ComputeOptions
from edl_horovod.frameworks.torch.structures import (
    describe,
    leaves,
    map_batch,
    repeated_batch,
    slice_batch,
)
from edl_horovod.frameworks.torch.variables import TorchVariable
from edl_horovod.frameworks.values import Array, Batch, NoiseKey, StateGroup, StepSums, Variable
from edl_horovod.models.calling import first_paragraph, user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode, Phase

log = logging.getLogger(__name__)

_INITIAL_LOSS_SCALE, _LOSS_SCALE_GROWTH_STEPS = 2.0**16, 2000


class StepReducer(Protocol):
    """Sums the gradients of a step over the ring, while the backward pass computes others."""

    def begin(self, weight: float) -> None:
        """Prepare for the last backward pass of a step.

        Args:
            weight: Factor that turns this rank's mean gradients into sums; 0 if it has no
                examples.
        """

    def finish(self, small: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
        """Wait for the reduction of all gradients; returns the ring's sums of `small`.

        The `grad` of each parameter is then the weighted mean over the ranks, where a rank without
        a gradient counts as zero; it is None if no rank has a gradient.

        Args:
            small: The step's numbers, with the same length on all ranks.
            weight: Weight of this rank in the mean.

        Raises:
            CollectiveFailed: A member was lost.
        """

    def add(self, values: torch.Tensor, name: str) -> None:
        """Replace values by the ring's sums during a forward or backward pass, and wait for them.

        If a member is lost, the values do not change, and `finish` raises CollectiveFailed.
        """

    def spans(self, since: float) -> list[tuple[str, float, float]]:
        """The names, begins and ends of this step's sums, in seconds from a time on."""

    def abandon(self) -> None:
        """Discard the current step."""


ReducerMaker = Callable[[Mapping[str, nn.Parameter], Reduction, set[str]], StepReducer]


@dataclass(frozen=True)
class SharedModel:
    """A built model, and its statistics over the ring; the steps of several phases share them."""

    model: TorchModel
    statistics: RingStatistics
    has_norms: bool
    """Whether the module has BatchNorm layers."""

    @classmethod
    def build(
        cls, loaded: LoadedSpec, example: Batch, compute: ComputeOptions, options: StepOptions
    ) -> "SharedModel":
        """Build the user's model.

        Raises:
            UserCodeError: As for `TorchModel`.
        """
        model, statistics = TorchModel(loaded, example, compute), RingStatistics()
        runner = model.runner
        has_norms = any(isinstance(layer, KINDS) for layer in runner.module.modules())
        if has_norms and options.sums_batch_norm:
            runner.module = with_ring_statistics(runner.module, statistics)
        return cls(model, statistics, has_norms)


class TorchStep:
    """Implements `base.Step`: the model, its optimizer, and the step that changes them."""

    def __init__(
        self,
        loaded: LoadedSpec,
        example: Batch,
        *,
        compute: ComputeOptions,
        learning_rate: float | None,
        options: StepOptions,
        make_reducer: ReducerMaker,
        shared: SharedModel | None = None,
        part: PhasePart | None = None,
        seed: int = 0,
    ) -> None:
        """Build the model and the optimizer.

        Args:
            loaded: The user's spec.
            example: Sample examples.
            compute: The device and the precision.
            learning_rate: Passed to `create_optimizer`; None for its default.
            options: Options for computing, clipping and reducing gradients.
            make_reducer: Creates the reducer from the trained parameters by name, how gradients are
                reduced, and the names of those with sparse gradients.
            shared: The model, if it exists already.
            part: The phase that this step trains; None for the whole model.
            seed: Seed of the random numbers of adversarial examples.

        Raises:
            UserCodeError: One of the spec's methods raised or returned something unusable.
        """
        self.loaded, self._options, self._part = loaded, options, part
        self._random_numbers = _RandomNumbers("" if part is None else part.phase.name)
        self.shared = shared or SharedModel.build(loaded, example, compute, options)
        self.model, self._statistics = self.shared.model, self.shared.statistics
        self._runner = self.model.runner
        has_norms = self.shared.has_norms
        if options.privacy is not None:
            _require_private(self._runner.module, example, loaded.label)
        self._reduces_norms = has_norms and options.sums_batch_norm
        module = self._runner.module
        own_norms = has_norms and not options.sums_batch_norm
        self._norms = [
            layer for layer in module.modules() if own_norms and isinstance(layer, KINDS)
        ]
        phase_loss = None
        if part is not None:
            num_places = options.reduction.batch_size
            phase_loss = PhaseLoss(loaded, part.phase, num_places=num_places)
            places = np.arange(example.num_examples)
            example = with_noise(replace(example, noise=NoiseKey(0, 0, places)))
        self._attack: Attack | None = None
        if options.adversarial is not None:
            self._attack = Attack(options, example.features, seed=seed, label=loaded.label)
        self._objective = Objective(
            loaded,
            module,
            Mode.TRAINING,
            class_weight=options.class_weight,
            phase_loss=phase_loss,
        )
        if options.compiles and (module_loss := self._objective.module_loss) is not None:
            raise UserCodeError(
                f"train.compile cannot be used with a loss that {module_loss.name} of"
                f" {loaded.label} itself computes: the divisor of the loss cannot be read from a"
                " compiled program.",
                received={"train.compile": True},
                hint="Leave train.compile out, or give the spec create_loss(self, outputs,"
                " labels).",
            )
        self._steps_per_epoch: int | None = None
        self._example = self._runner.batch_to_device(example)
        self._buffers = self._try_training(self._example)
        if options.privacy is not None and self._buffers.tensors:
            raise refuse_shared_state(list(self._buffers.tensors), loaded.label)
        self._training_layers = self._runner.training_layers
        if part is None:
            self.optimizer, self.schedules = make_optimizer(loaded, module, learning_rate)
        else:
            name = f"create_optimizer of {loaded.label} (phase {part.phase.name})"
            self.optimizer, self.schedules = parse_optimizer(part.optimizer, module, name)
            _require_variables(self.optimizer, part.phase, name)
        self.user_callbacks = loaded.callbacks()
        self._trained = self._trained_parameters()
        trained_ids = set(map(id, self._trained.values()))
        groups = self.optimizer.param_groups
        held = [parameter for group in groups for parameter in group["params"]]
        self._frozen = [parameter for parameter in held if id(parameter) not in trained_ids]
        """Parameters of the optimizer that were frozen at the start, without callbacks."""
        if options.compiles:
            self._runner.compile()
        self._loss_scale = _LossScale() if options.scales_loss else None
        sparse = sparse_parameters(module)
        limits = {"train.clip_norm": options.clip_norm, "train.clip_value": options.clip_value}
        limits["federated.proximal_mu"] = options.proximal_mu
        if options.privacy is not None:
            limits["federated.privacy.clip"] = options.privacy.clip
        if sparse and any(limits.values()):
            raise UserCodeError(
                f"PyTorch cannot clip the sparse gradients of {', '.join(sorted(sparse))} of"
                f" {loaded.label}, or add terms to them.",
                received={key: limit for key, limit in limits.items() if limit},
                hint="Leave out the limit, or set sparse=False in the embeddings.",
            )
        self._private: _ClippedGradients | None = None
        if options.privacy is not None:
            self._private = _ClippedGradients(
                module, self._loss_of_one, options.privacy.clip, label=loaded.label
            )
        self._anchors: dict[str, torch.Tensor] = {}
        """Weights at a round's begin, by name, for FedProx."""
        with _unfrozen(self._trained.values()):
            self._state = OptimizerState(
                self.optimizer, self.schedules, self._trained, sparse, loaded
            )
            self._reducer = make_reducer(self._trained, options.reduction, sparse)
        self._rate_factor = 1.0
        self._computed_at: float | None = None
        """When this rank had computed its part of the present step; None if it has not."""

    @property
    def variables(self) -> dict[str, Variable]:
        """All variables that a step changes, by name, in the same order on all ranks."""
        variables: dict[str, Variable] = {**self.model_variables, **self._state.variables}
        variables["random"] = self._random_numbers.variable
        if self._loss_scale is not None:
            variables["loss_scale"] = self._loss_scale.variable
        if self._attack is not None:
            variables["noise"] = self._attack.noise
        return variables

    @property
    def model_variables(self) -> dict[str, Variable]:
        """The model's variables among them."""
        variables: dict[str, Variable] = {**self.model.weights}
        for name, tensor in self._buffers.tensors.items():
            variables.setdefault(name, TorchVariable(name, tensor))
        return variables

    @property
    def trained(self) -> list[str]:
        """The names of the model's variables that the optimizer changes."""
        ids = set(map(id, self._trained.values()))
        named = dict(self._runner.module.named_parameters())
        return [name for name, parameter in named.items() if id(parameter) in ids]

    @property
    def slots(self) -> list[str]:
        """The names of the variables that the optimizer keeps for these."""
        return self._state.slots

    def optimizer_state(self) -> list[str]:
        """The names of the variables that have their first values in a new optimizer."""
        return self._state.resettable

    @property
    def groups(self) -> list[StateGroup]:
        """Groups of variables that can be sent to a joining rank while steps go on."""
        return self._state.groups(self.variables, self.model_variables)

    def step(
        self, batch: Batch | None, *, wants_change: bool, is_alone: bool, salt: int
    ) -> StepSums:
        """Run one step over the ring; see `base.Step.step`."""
        if batch is not None and self._private is not None:
            require_one_each(batch, self.loaded.label)
        batch = batch and self._with_noise(batch)
        variables = None if self._part is None else self._part.phase.variables
        with only(variables, self._runner.module):
            sums = self._step(batch, wants_change=wants_change, is_alone=is_alone, salt=salt)
        if self._attack is not None:
            self._attack.end_step()
        return sums

    def _with_noise(self, batch: Batch) -> Batch:
        if self._attack is not None:
            batch = replace(batch, noise=self._attack.key(batch))
        return batch if batch.noise is None else with_noise(batch)

    def _step(
        self, batch: Batch | None, *, wants_change: bool, is_alone: bool, salt: int
    ) -> StepSums:
        self._computed_at = None
        snapshot = self._buffers.snapshot()
        try:
            local = np.zeros(self._num_numbers)
            self._clear_gradients()
            self._random_numbers.begin_step(salt)
            with self._norms_over(batch, is_alone=is_alone):
                if batch is not None:
                    local = self._sums_of(batch, snapshot, is_alone=is_alone)
                elif not is_alone:
                    if self._reduces_norms:
                        # For the sums of the other ranks' passes; these examples do not count.
                        self._begin_training()
                        self._add_gradients(
                            self._with_noise(self._example),
                            is_last=False,
                            is_alone=False,
                            counts=False,
                        )
                        self._clear_gradients()
                    elif self._objective.num_divisors:
                        self._sum_divisors([0.0] * self._objective.num_divisors, 0)
                    self._reducer.begin(0.0)
            local[values.WANTS_CHANGE] = float(wants_change)
            if not is_alone:
                self._buffers.restore(snapshot)
            computed_at = self._computed_at = time.monotonic()
            # All ranks reach this in every step, with or without examples.
            totals = local if is_alone else self._reducer.finish(local, local[values.LOSS_WEIGHT])
            summed_at = time.monotonic()
        except BaseException:
            self._buffers.restore(snapshot)
            self._reducer.abandon()
            self._clear_gradients()
            raise
        weight = float(totals[values.LOSS_WEIGHT])
        # If no example counts, the mean is NaN, as in PyTorch.
        loss = float(totals[values.LOSS]) / weight if weight else math.nan
        # A rank alone has its own buffers instead of means, and keeps them only if it applies them.
        own_buffers = snapshot if is_alone else None
        is_applied = math.isfinite(loss) and self._apply_sums(totals, own_buffers)
        has_finite_gradients = is_applied or not math.isfinite(loss)
        if is_alone and not is_applied:
            self._buffers.restore(snapshot)
        self._clear_gradients()
        self._random_numbers.end_step()
        is_timed = self._options.reduction.is_timed and not is_alone
        metric_sums = totals[self._metrics_at]
        return StepSums.of(
            totals,
            loss=loss,
            metrics=self._objective.metric_values(metric_sums),
            metric_sums=metric_sums,
            has_finite_gradients=has_finite_gradients,
            exchange_seconds=summed_at - computed_at,
            apply_seconds=time.monotonic() - summed_at,
            reductions=self._reducer.spans(computed_at) if is_timed else (),
        )

    def outer_optimizer(self, learning_rate: float, momentum: float) -> TorchOuterOptimizer:
        """Create the optimizer of local rounds; see `base.Step`."""
        trained = {name: self._trained[name] for name in self.trained}
        returned = self.loaded.outer_optimizer(self._runner.module)
        if returned is None:
            parameters = trained.values()
            is_nesterov = momentum > 0
            returned = torch.optim.SGD(parameters, learning_rate, momentum, nesterov=is_nesterov)
        name = f"create_outer_optimizer of {self.loaded.label}"
        optimizer, schedules = parse_optimizer(returned, self._runner.module, name)
        with _unfrozen(trained.values()):
            state = OptimizerState(optimizer, schedules, trained, (), self.loaded)
        return TorchOuterOptimizer(optimizer, trained, state)

    def begin_round(self) -> None:
        """Let the following steps pull towards the present weights; see `base.Step`."""
        if self._options.proximal_mu:
            self._anchors = {name: p.detach().clone() for name, p in self._trained.items()}

    def scale_learning_rate(self, factor: float) -> None:
        """Multiply the learning rate of the steps that follow; see `base.Step`."""
        self._rate_factor = factor

    def finalize(self) -> None:
        """Do nothing: no optimizer here averages parameters."""

    def rehearse(self, batch: Batch) -> None:
        """Compute the sums of a batch once, so that the first real step is fast."""
        batch = self._with_noise(batch)
        with torch.random.fork_rng(devices=[]), unchanged(self._runner.module):
            self._random_numbers.begin_step(0)
            self._clear_gradients()
            self._sums_of(batch, self._buffers.snapshot(), is_alone=True)
        self._clear_gradients()

    def is_waiting(self) -> bool:
        """Whether this rank has computed its part and waits for the others. Thread-safe."""
        return self._computed_at is not None

    def waited_seconds(self) -> float:
        """How long this rank has waited for the others in a step that has just failed."""
        return 0.0 if self._computed_at is None else time.monotonic() - self._computed_at

    def callbacks(
        self, *, num_epochs: int, steps_per_epoch: int | None, per_step: bool
    ) -> TorchCallbacks | None:
        """Create the user's callbacks; None if there are none and no schedule advances per epoch.

        Args:
            num_epochs: Not used.
            steps_per_epoch: None if it depends on the ring. The steps that follow use it, too.
            per_step: Whether hooks of single steps are called (`callbacks.per_step`).
        """
        return make_callbacks(
            [self],
            self.optimizer,
            steps_per_epoch=steps_per_epoch,
            per_step=per_step,
            num_metric_sums=self._objective.num_metric_sums,
            metric_values=lambda sums, _count: self._objective.metric_values(sums),
        )

    def begin_epochs_of(self, steps_per_epoch: int | None) -> None:
        """Set the number of steps in an epoch; None if it depends on the ring."""
        self._steps_per_epoch = steps_per_epoch

    def require_groups(self) -> None:
        """Refuse changes of the optimizer's groups that cannot be copied to other ranks."""
        self._state.require_groups()

    def _try_training(self, example: Batch) -> TrackedBuffers:
        """Run trial passes in training mode, to find the buffers, and to prepare the objective."""
        module, loaded = self._runner.module, self.loaded
        doing = (
            f"Running the model of {loaded.label} in training on the features from create_dataset"
            f" ({describe(example.features)})"
        )
        trial_batch = repeated_batch(example) if example.num_examples == 1 else example
        self._runner.train()
        with user_code(doing, root=loaded.zoo), torch.random.fork_rng(devices=[]):
            buffers = TrackedBuffers(module, self._outputs, trial_batch)
        module.eval()
        with unchanged(module):
            with user_code(doing, root=loaded.zoo):
                outputs = self._outputs(example)
            self._objective.begin(example, outputs, self._outputs)
        if self._options.num_parts > 1 and self._objective.num_divisors:
            raise UserCodeError(
                f"The loss of {loaded.label} has terms that are divided by different sums, which"
                " are not yet known when the first part of a batch is computed.",
                received={"train.accumulate_steps": self._options.num_parts},
                hint="Set train.accumulate_steps=1, or return one pair (sum, weight).",
            )
        return buffers

    def _outputs(self, batch: Batch) -> Any:
        return self._objective.outputs(self._runner, batch, self._number_in_epoch)

    @property
    def _number_in_epoch(self) -> int:
        """The index of this step in its epoch, or in the training if its epochs vary in length."""
        number = int(self._random_numbers.variable.numpy()[1])
        return number % self._steps_per_epoch if self._steps_per_epoch else number

    def _trained_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that the optimizer may ever change, by name, in the model's order.

        With callbacks, that includes frozen parameters, which a callback may unfreeze later.
        """
        groups = self.optimizer.param_groups
        held = {id(parameter) for group in groups for parameter in group["params"]}
        named = dict(self._runner.module.named_parameters())
        others = {name: parameter for name, parameter in named.items() if id(parameter) not in held}
        omitted = [name for name, parameter in others.items() if parameter.requires_grad]
        may_add = any(map(may_add_groups, self.user_callbacks))
        if omitted and not may_add and self._part is None:
            log.warning(
                "the optimizer of %s does not contain %s, which will not be trained",
                self.loaded.label,
                ", ".join(omitted),
            )
        buffers = self._buffers.tensors

        def may_change(name: str, parameter: nn.Parameter) -> bool:
            if name not in others:
                return bool(parameter.requires_grad or self.user_callbacks)
            return bool(may_add and parameter.is_floating_point() and name not in buffers)

        trained = dict(item for item in named.items() if may_change(*item))
        if not trained:
            raise UserCodeError(
                f"The optimizer of {self.loaded.label} does not contain any trainable parameter.",
                received=f"{len(held)} parameters, none of them with requires_grad",
                hint="Do not set requires_grad to False for parameters that should be trained.",
            )
        return trained

    @property
    def _num_numbers(self) -> int:
        return int(self._metrics_at.stop) + self._buffers.num_sums

    @property
    def _metrics_at(self) -> slice:
        return slice(values.METRICS, values.METRICS + self._objective.num_metric_sums)

    def _clear_gradients(self) -> None:
        for parameter in self._trained.values():
            parameter.grad = None

    def _sums_of(
        self, batch: Batch, snapshot: BufferSnapshot, *, is_alone: bool
    ) -> NDArray[np.float64]:
        """Compute this rank's numbers.

        Its gradients are then being reduced, or in the parameters if the rank is alone.
        """
        self._begin_training()
        batch = self._runner.batch_to_device(batch)
        count = batch.num_examples
        size = -(-count // self._options.num_parts)
        starts = range(0, count, size)
        sums = np.zeros(2 + self._objective.num_metric_sums)
        for start in starts:
            end = min(start + size, count)
            with self._for_one_example() if end - start == 1 else contextlib.nullcontext():
                sums += self._add_gradients(
                    slice_batch(batch, start, end),
                    is_last=start == starts[-1] and not is_alone,
                    is_alone=is_alone,
                    divisor=count if len(starts) > 1 else None,
                )
        loss_sum, loss_weight, *metric_sums = sums
        if self._private is not None:
            self._hide_gradients()
        elif is_alone and loss_weight and len(starts) > 1:
            # The divisor of the sum of all parts is known only now.
            for parameter in self._trained.values():
                if parameter.grad is not None:
                    parameter.grad.mul_(count / loss_weight)
        self._buffers.require_others_unchanged(snapshot)
        self._require_frozen()
        numbers = [count, loss_sum, loss_weight, 0.0, 1.0, *metric_sums]
        if is_alone:
            return np.array(numbers)
        return np.concatenate([numbers, self._buffers.sums(snapshot, count)])

    @contextlib.contextmanager
    def _for_one_example(self) -> Iterator[None]:
        """Return a context for a single example, as a rank may be left with one.

        BatchNorm of single values fails without it, and a program compiled for any larger number
        of examples is not valid.
        """
        with self._runner.not_compiled(), single_values(self._norms):
            yield

    def _require_frozen(self) -> None:
        """Refuse gradients that would not be reduced, but which the optimizer would apply."""
        if all(parameter.grad is None for parameter in self._frozen):
            return
        named = self._runner.module.named_parameters()
        name_of = {id(parameter): name for name, parameter in named}
        names = [name_of[id(p)] for p in self._frozen if p.grad is not None]
        raise UserCodeError(
            f"{self.loaded.label} has unfrozen parameters in a step, but a ring trains only those"
            " that are not frozen at the start.",
            received=", ".join(names),
            hint="Unfreeze them in on_epoch_end of an edl_horovod.callbacks.Callback from"
            " create_callbacks, which reaches all ranks.",
        )

    def _begin_training(self) -> None:
        """Switch the module to training mode after an evaluation."""
        if not all(layer.training for layer in self._training_layers):
            self._runner.train()

    def _norms_over(self, batch: Batch | None, *, is_alone: bool) -> AbstractContextManager[None]:
        """Return a context in which BatchNorm uses all ranks' examples, if the option is set."""
        if is_alone or not self._reduces_norms:
            return contextlib.nullcontext()
        return self._statistics.over_ring(self._reducer.add, has_examples=batch is not None)

    def _sum_divisors(self, divisors: Iterable[float], num_examples: int) -> NDArray[np.float64]:
        """Return the ring's sums of the divisors of the means in a loss, and of the examples."""
        row = torch.tensor([*divisors, num_examples], dtype=torch.float64)
        # All ranks reach this in every step of a loss with several divisors, even without examples.
        self._reducer.add(row, "edl.loss.divisors")
        sums: NDArray[np.float64] = row.numpy()
        return sums

    def _divide_by_ring(self, outcome: Outcome, num_examples: int, *, counts: bool) -> float:
        """Replace the divisor of each mean in a loss by the ring's divisor.

        The ring weights the loss of a rank by its number of examples. So the factor of each mean is
        (divisor / num_examples) * (all_examples / total divisor).

        Returns:
            The loss with these divisors, multiplied by the number of examples.
        """
        divisors = np.array([mean.counted for mean in outcome.loss_terms])
        *totals, all_examples = self._sum_divisors(divisors * counts, num_examples * counts)
        loss = outcome.loss.item()
        known, change = 0.0, 0.0
        for mean, divisor, total in zip(outcome.loss_terms, divisors, totals, strict=True):
            # Examples that do not count have a divisor even if the ring's total is 0.
            factor = divisor / num_examples * all_examples / total if divisor and total else 0.0
            mean.scale_gradient(factor)
            if divisor and mean.value is not None:
                known += mean.share * mean.value * factor
                change += mean.share * mean.value * (factor - 1)
        # An empty mean is NaN; it is left out of the ring's loss.
        return num_examples * (known if math.isnan(loss) and not divisors.all() else loss + change)

    def _add_gradients(
        self,
        part: Batch,
        *,
        is_last: bool,
        is_alone: bool,
        divisor: float | None = None,
        counts: bool = True,
    ) -> NDArray[np.float64]:
        """Add the gradients of a part of this rank's examples.

        They are scaled for the mean over all of the rank's examples, as in a plain training
        loop, because the user's hooks read them.

        Args:
            part: The examples.
            is_last: Whether the gradients are reduced as soon as they are computed.
            is_alone: Whether there is no ring.
            divisor: Preliminary divisor of the gradients; None for the weight of this part, if it
                is the only one.
            counts: Whether the examples count; otherwise their gradients are discarded.

        Returns:
            The loss as a sum, its divisor, and the sums of the metrics, in one row.
        """
        if self._attack is not None:
            self._runner.module.eval()
            part = self._attack(part, self._loss_to_raise)
            self._begin_training()
        if self._private is not None:
            return self._add_clipped_gradients(part, self._private)
        with self._training_on(part):
            outputs = self._outputs(part)
        outcome = self._objective.of_batch(part, outputs)
        loss, value, weight = outcome.loss, None, outcome.loss_weight
        if outcome.loss_terms and not is_alone:
            value = self._divide_by_ring(outcome, part.num_examples, counts=counts)
        if not loss.requires_grad and self._reduces_norms:
            # No example counts here, but other ranks' losses depend on these examples.
            depending = [leaf for leaf in leaves(outputs) if getattr(leaf, "requires_grad", False)]
            loss = torch.stack([0.0 * leaf.sum() for leaf in depending]).sum()
        # If no example counts, the gradients are zeros, so any divisor is correct.
        weight_or_1 = weight or 1.0
        divisor = divisor or weight_or_1
        if is_last:
            self._reducer.begin(divisor)
        if loss.requires_grad:
            with user_code(f"The backward pass of {self.loaded.label}", root=self.loaded.zoo):
                self._statistics.weight = divisor
                factor = weight_or_1 / divisor * self._gradient_factor
                # Without a factor, a single part gives the same bits as a plain training loop.
                (loss if factor == 1.0 else loss * factor).backward()
        if value is None:
            # Not before the backward pass: a GPU would be idle until that begins.
            value = outcome.loss_sum
        return np.array([value, weight, *outcome.metric_sums])

    def _training_on(self, part: Batch) -> AbstractContextManager[None]:
        """Return a context for the user's code that runs on examples in training."""

        def doing() -> str:
            shown = describe(part.features)
            return f"Running the model of {self.loaded.label} for {shown} in training"

        return user_code(doing, root=self.loaded.zoo)

    def _add_clipped_gradients(
        self, part: Batch, private: "_ClippedGradients"
    ) -> NDArray[np.float64]:
        """Add the clipped gradients of single examples; see `_add_gradients`."""
        with torch.set_grad_enabled(self._objective.needs_graph):
            with self._training_on(part):
                outputs = self._outputs(part)
            outcome = self._objective.of_batch(part, outputs)
        private.add(part, {n: p for n, p in self._trained.items() if p.requires_grad})
        return np.array([outcome.loss_sum, outcome.loss_weight, *outcome.metric_sums])

    def _hide_gradients(self) -> None:
        """Turn the sums of clipped gradients into means with noise."""
        privacy = self._options.privacy
        assert privacy is not None
        for parameter in self._trained.values():
            if (total := parameter.grad) is not None:
                drawn = torch.from_numpy(noise(total.shape, privacy.noise * privacy.clip))
                # Not by the number of examples, which depends on the records.
                total.add_(drawn.to(total)).div_(self._options.reduction.batch_size)

    def _loss_of_one(self, example: Batch) -> torch.Tensor:
        return self._objective.loss_of_one(example, self._outputs(example))

    def _loss_to_raise(self, part: Batch) -> torch.Tensor:
        """Compute the loss in evaluation mode, for adversarial examples."""
        with user_code(f"Attacking the model of {self.loaded.label}", root=self.loaded.zoo):
            outputs = self._outputs(part)
        return self._objective.loss_of(part, outputs)

    @property
    def _gradient_factor(self) -> float:
        """The factor of the gradients until they are reduced."""
        return 1.0 if self._loss_scale is None else self._loss_scale.factor

    def _apply_sums(self, totals: NDArray[np.float64], own_buffers: BufferSnapshot | None) -> bool:
        """Update parameters and buffers by the ring's sums, which are the same on all ranks.

        Args:
            totals: The sums.
            own_buffers: The buffers before the forward pass if they have changed since, as those
                of a rank alone; None if they have been restored.

        Returns:
            Whether the gradients are finite; if they are not, nothing is changed.
        """
        count = float(totals[values.EXAMPLES])
        for parameter in self._state.waiting:
            parameter.grad = None
        # Parameters without a gradient are not passed on, so that they are not decayed, either.
        trained = self._trained.values()
        parameters = [parameter for parameter in trained if parameter.grad is not None]
        if not parameters and any(parameter.requires_grad for parameter in trained):
            raise UserCodeError(
                f"The loss of {self.loaded.label} does not depend on any trained parameter.",
                hint="Compute it from the model's outputs without .detach(), .item() and no_grad.",
            )
        with torch.no_grad():
            is_representable = True
            if self._loss_scale is not None:
                for parameter in parameters:
                    parameter.grad.mul_(1.0 / self._gradient_factor)
                is_representable = _are_finite(parameters)
                if not is_representable and self._loss_scale.factor <= 1.0:
                    return False
                # The gradients overflowed float16: skip the step, and reduce the factor.
                self._loss_scale.update(is_finite=is_representable)
            if is_representable:
                for name, anchor in self._anchors.items():
                    parameter = self._trained[name]
                    if parameter.grad is not None:
                        parameter.grad.add_(parameter - anchor, alpha=self._options.proximal_mu)
                if self._options.clip_value:
                    nn.utils.clip_grad_value_(parameters, self._options.clip_value)
                if self._options.clip_norm:
                    nn.utils.clip_grad_norm_(parameters, self._options.clip_norm)
                # Checked after clipping, which replaces infinite values by the limit.
                if not _are_finite(parameters):
                    return False
        # Before the optimizer, which must start from values that the forward pass has written
        # into parameters.
        if own_buffers is not None:
            self._buffers.keep(own_buffers)
        else:
            self._buffers.update(
                torch.from_numpy(totals[self._metrics_at.stop :].copy()),
                count,
                float(totals[values.CONTRIBUTORS]),
            )
        if is_representable:
            doing = f"The optimizer of {self.loaded.label}"
            with torch.no_grad(), user_code(doing, root=self.loaded.zoo):
                self._run_optimizer()
        return True

    def _run_optimizer(self) -> None:
        with self._scaled_learning_rate(), torch.enable_grad():
            self._state.begin()
            self.optimizer.step()
        self._state.settle()
        for schedule in self.schedules:
            if schedule.is_per_step and schedule.is_due(self._number_in_epoch):
                schedule.scheduler.step()

    @contextlib.contextmanager
    def _scaled_learning_rate(self) -> Iterator[None]:
        if self._rate_factor == 1.0:
            yield
            return
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * self._rate_factor
        yield
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def make_callbacks(
    steps: Sequence[TorchStep],
    optimizer: Any,
    *,
    steps_per_epoch: int | None,
    num_epochs: int = 0,
    **arguments: Any,
) -> TorchCallbacks | None:
    """Create the user's callbacks; None if there are none and no schedule advances per epoch.

    Args:
        steps: The step, or the steps of its phases.
        optimizer: What callbacks find as `optimizer`.
        steps_per_epoch: None if it depends on the ring.
        num_epochs: Not used.
        **arguments: Other arguments of `TorchCallbacks`.
    """
    for step in steps:
        step.begin_epochs_of(steps_per_epoch)
    schedules = [part for step in steps for part in step.schedules if not part.is_per_step]
    callbacks, loaded = steps[0].user_callbacks, steps[0].loaded
    if not callbacks and not schedules:
        return None

    def settle() -> None:
        for step in steps:
            step.require_groups()

    return TorchCallbacks(
        callbacks,
        steps[0].model.runner.module,
        optimizer,
        schedules=schedules,
        settle=settle,
        zoo=loaded.zoo,
        **arguments,
    )


class _ClippedGradients(nn.Module):  # type: ignore[misc]  # Its types are not seen by mypy.
    """Adds up the gradients of single examples, each of which is clipped to a norm.

    `torch.func` computes each example by itself, so that no other can change its gradient, also in
    a model or loss that mixes the examples of a batch.
    """

    def __init__(
        self,
        module: nn.Module,
        loss_of: Callable[[Batch], torch.Tensor],
        clip: float,
        *,
        label: str,
    ) -> None:
        """Prepare.

        Args:
            module: The module.
            loss_of: Runs the module for a batch of one example, and returns the loss.
            clip: The largest norm.
            label: The spec.
        """
        super().__init__()
        self.module = module
        self._loss_of, self._clip, self._label = loss_of, clip, label

    def forward(self, example: Batch) -> torch.Tensor:
        """Compute the loss of an example, with the parameters of `functional_call`."""
        return self._loss_of(example)

    def add(self, batch: Batch, trained: Mapping[str, nn.Parameter]) -> None:
        """Add to the `grad` of the parameters.

        Args:
            batch: Features and labels of at least one example.
            trained: The parameters by name.

        Raises:
            UserCodeError: `torch.func` cannot compute the gradients of single examples.
        """
        parameters = {f"module.{name}": value.detach() for name, value in trained.items()}

        def loss(values: dict[str, torch.Tensor], tensors: list[torch.Tensor]) -> torch.Tensor:
            rest = iter(tensors)
            example = map_batch(lambda _: next(rest)[None], batch, 1)
            returned: torch.Tensor = torch.func.functional_call(self, values, (example,))
            return returned

        of_each = torch.func.vmap(torch.func.grad(loss), (None, 0), randomness="different")
        size = examples_at_once(sum(value.nbytes for value in parameters.values()))
        for first in range(0, batch.num_examples, size):
            part = slice_batch(batch, first, min(first + size, batch.num_examples))
            tensors = list(leaves((part.features, part.labels)))
            try:
                gradients = of_each(parameters, tensors)
            except (RuntimeError, NotImplementedError) as error:
                raise UserCodeError(
                    f"PyTorch cannot compute the gradients of single examples of {self._label} by"
                    " torch.func, which federated.privacy needs.",
                    received=first_paragraph(error),
                    hint="Replace the layer or the part of the loss that the message names; Python"
                    " cannot read values of tensors there, as by .item().",
                ) from error
            self._add_clipped(gradients, trained)

    def _add_clipped(
        self, gradients: Mapping[str, torch.Tensor], trained: Mapping[str, nn.Parameter]
    ) -> None:
        rows = [gradient.reshape(len(gradient), -1) for gradient in gradients.values()]
        of_variables = [torch.linalg.vector_norm(row, dim=1).double() for row in rows]
        norms = torch.linalg.vector_norm(torch.stack(of_variables), dim=0)
        factors = self._clip / norms.clamp(min=self._clip)
        for name, parameter in trained.items():
            by_example = gradients[f"module.{name}"]
            total = torch.tensordot(factors.to(by_example.dtype), by_example, 1)
            parameter.grad = total if parameter.grad is None else parameter.grad + total


def _require_private(module: nn.Module, example: Batch, label: str) -> None:
    """Check that a model and examples can be trained with `federated.privacy`."""
    if example.weights is not None:
        raise refuse_weights(label)
    norms = [name for name, layer in module.named_modules() if isinstance(layer, KINDS)]
    if norms:
        raise refuse_shared_state(norms, label)


def _require_variables(optimizer: torch.optim.Optimizer, phase: Phase, name: str) -> None:
    """Check that the optimizer of a phase holds the variables of the phase."""
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if set(map(id, held)) != set(map(id, phase.variables)):
        raise UserCodeError(
            f"{name} must return an optimizer for the variables of the phase.",
            received=f"{len(held)} parameters; the phase has {len(phase.variables)}",
            hint="Pass the same parameters to Phase and to the optimizer.",
        )


@contextlib.contextmanager
def _unfrozen(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Unfreeze all parameters inside the context."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    yield
    for parameter in frozen:
        parameter.requires_grad_(False)


def _are_finite(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether all gradients are finite numbers."""
    gradients = [grad for parameter in parameters if (grad := parameter.grad) is not None]
    terms = [grad._values() if grad.is_sparse else grad for grad in gradients]
    if not terms:
        return True
    # A sum takes a tenth of the time of `isfinite`. It overflows only for large gradients, which
    # are then checked element by element. On a GPU a norm of all needs a few launches.
    if terms[0].device.type == "cpu":
        total = sum([term.sum().item() for term in terms])
    else:
        total = nn.utils.get_total_norm(terms).item()
    return cmath.isfinite(total) or all(bool(torch.isfinite(term).all()) for term in terms)


def sparse_parameters(module: nn.Module) -> set[str]:
    """Return the names of the weights of a module's embeddings with `sparse=True`."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    layers = [part for part in module.modules() if isinstance(part, kinds) and part.sparse]
    sparse_ids = {id(layer.weight) for layer in layers}
    return {name for name, parameter in module.named_parameters() if id(parameter) in sparse_ids}


class _LossScale:
    """Halves the factor after a gradient that is not finite; doubles it after many finite steps.

    Overflows of float16 are detected in the reduced gradients, which are the same on all ranks; so
    all ranks skip the same steps and continue with the same factor.
    """

    def __init__(self) -> None:
        """Start with the same factor as `torch.amp.GradScaler`."""
        self.variable = Array(np.array([_INITIAL_LOSS_SCALE, 0.0]))
        """The factor, and the number of steps since it changed; part of the ring's state."""

    @property
    def factor(self) -> float:
        """The current factor."""
        return float(self.variable.numpy()[0])

    def update(self, *, is_finite: bool) -> None:
        """Update the factor after a step."""
        factor, num_steps = self.variable.numpy().tolist()
        if not is_finite:
            self.variable.assign([max(1.0, factor / 2), 0.0])
        elif num_steps + 1 == _LOSS_SCALE_GROWTH_STEPS:
            self.variable.assign([factor * 2, 0.0])
        else:
            self.variable.assign([factor, num_steps + 1])


class _RandomNumbers:
    """Seeds PyTorch's generators, so that a resumed training draws the same random numbers."""

    def __init__(self, phase: str) -> None:
        """Take the seed that was set in PyTorch before the user's code ran.

        Args:
            phase: Makes the numbers of each phase different; empty without phases.
        """
        seed = torch.initial_seed() % (1 << 63)
        if phase:
            seed = step_seed(seed, 0, zlib.crc32(phase.encode()))
        self.variable = Array(np.array([seed, 0], np.int64))
        """The seed, and the number of completed steps; part of the ring's state."""

    def begin_step(self, salt: int) -> None:
        """Seed PyTorch's generators for a step.

        Args:
            salt: Part of the seed, different on each rank.
        """
        seed, step = self.variable.numpy().tolist()
        number = step_seed(seed, step, salt)
        # `torch.manual_seed` would be slow: it also queries unused devices, and formats a traceback
        # in each call.
        torch.default_generator.manual_seed(number)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(number)

    def end_step(self) -> None:
        """Count the step as completed."""
        seed, step = self.variable.numpy().tolist()
        self.variable.assign([seed, step + 1])
