"""Training steps with several losses: phases, one after the other, that count as one step.

Each phase is a step of its own over the ring. If one of them fails, the variables get back the
values that they had before the first.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError, UserCodeError
from edl_horovod.frameworks.base import Model, OuterOptimizer, Step
from edl_horovod.frameworks.epoch_callbacks import EpochCallbacks
from edl_horovod.frameworks.step_options import StepOptions
from edl_horovod.frameworks.values import Array, Batch, NoiseKey, StateGroup, StepSums, Variable
from edl_horovod.models.calling import call_declared, declared, user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Phase

CallbacksMaker = Callable[..., EpochCallbacks | None]
Take = Callable[[Batch, NDArray[np.int64]], Batch]
"""Returns a batch of some of the examples, whose indices are given."""


@dataclass(frozen=True)
class PhasePart:
    """What a framework's step needs to train one phase instead of the whole model."""

    phase: Phase
    optimizer: Any
    """The optimizer of the phase, as `create_optimizer` returned it."""
    options: StepOptions
    """The options of its step, whose collectives have names of their own."""


def has_phases(loaded: LoadedSpec) -> bool:
    """Whether a spec trains with phases.

    Raises:
        UserCodeError: It has only one of the two methods that phases need.
    """
    methods = ("create_phases", "create_phase_loss")
    present = [method for method in methods if loaded.overrides_method(method)]
    if len(present) == 1:
        (missing,) = set(methods).difference(present)
        raise UserCodeError(f"{loaded.label} has {present[0]}, but not {missing}.")
    return bool(present)


def parts_of(
    loaded: LoadedSpec, model: Any, config: JobConfig, variables: Sequence[Any]
) -> list[PhasePart]:
    """Create the phases of a training and their optimizers.

    Args:
        loaded: The user's spec, which has phases.
        model: The built model.
        config: The settings of the job.
        variables: The model's variables that can be trained.

    Raises:
        UserCodeError: The phases or the optimizers are not as `ElasticDLSpec` describes them.
        ConfigError: A setting cannot be used with phases.
    """
    unused = {
        "train.class_weight": (config.train.class_weight, "weight the examples"),
        "adversarial.method": (config.adversarial.method, "change the examples"),
    }
    for key, (value, instead) in unused.items():
        if value not in ([], "none"):
            raise ConfigError(
                f"{key} has no effect on the losses of the phases of {loaded.label}.",
                received={key: value},
                hint=f"Leave it out, and {instead} in create_phase_loss.",
            )
    if config.federated.privacy.clip:
        raise ConfigError(
            f"federated.privacy protects steps with one loss, but {loaded.label} has phases.",
            received={"federated.privacy.clip": config.federated.privacy.clip},
            hint="Leave it out, or train a spec without create_phases.",
        )
    with user_code(f"create_phases of {loaded.label}", root=loaded.zoo):
        phases = call_declared(loaded.spec.create_phases, {"model": model})
    _require_phases(phases, loaded.label, {id(variable) for variable in variables})
    optimizers = loaded.optimizer(config.train.learning_rate, model=model)
    names = [phase.name for phase in phases]
    if not isinstance(optimizers, Mapping) or set(optimizers) != set(names):
        is_dict = isinstance(optimizers, Mapping)
        raise UserCodeError(
            f"create_optimizer of {loaded.label} must return a dict with one optimizer for each of"
            f" its phases: {', '.join(names)}.",
            received=", ".join(map(str, optimizers)) if is_dict else type(optimizers).__name__,
        )
    if len({id(optimizer) for optimizer in optimizers.values()}) < len(names):
        raise UserCodeError(
            f"create_optimizer of {loaded.label} returns one optimizer for several phases.",
            hint="Create an optimizer for each phase.",
        )
    options = StepOptions.of(config)
    return [
        PhasePart(phase, optimizers[phase.name], _renamed(options, phase.name)) for phase in phases
    ]


def _renamed(options: StepOptions, name: str) -> StepOptions:
    reduction = options.reduction
    return replace(options, reduction=replace(reduction, name=f"{reduction.name}.{name}"))


def _require_phases(phases: Any, label: str, variable_ids: set[int]) -> None:
    """Check what `create_phases` returned."""
    subject = f"create_phases of {label}"
    is_list = isinstance(phases, list | tuple)
    if not is_list or not phases or not all(isinstance(phase, Phase) for phase in phases):
        raise UserCodeError(
            f"{subject} must return a list of edl_horovod.Phase.",
            received=", ".join(type(phase).__name__ for phase in phases) or "none"
            if is_list
            else type(phases).__name__,
        )
    used: dict[int, str] = {}
    for phase in phases:
        if not isinstance(phase.name, str) or not phase.name.isidentifier():
            raise UserCodeError(
                f"{subject}: the name of a phase must be a Python identifier.",
                received=repr(phase.name),
            )
        if [other.name for other in phases].count(phase.name) > 1:
            raise UserCodeError(f"{subject} returns two phases of one name.", received=phase.name)
        counts = {"repeats": phase.repeats, "every": phase.every}
        for key, count in counts.items():
            if type(count) is not int or count < 1:
                raise UserCodeError(
                    f"{subject}: {key} of the phase {phase.name} must be a whole number from 1 on.",
                    received=repr(count),
                )
        if phase.records not in ("same", "new"):
            raise UserCodeError(
                f"{subject}: records of the phase {phase.name} must be 'same' or 'new'.",
                received=repr(phase.records),
            )
        if not phase.variables:
            raise UserCodeError(
                f"{subject}: the phase {phase.name} has no variables.",
                hint="Pass the trainable variables of the part of the model that it trains. A part"
                " has variables once it is built.",
            )
        for variable in phase.variables:
            if id(variable) not in variable_ids:
                raise UserCodeError(
                    f"{subject}: a variable of the phase {phase.name} is not a trainable variable"
                    " of the model.",
                    received=str(getattr(variable, "path", type(variable).__name__)),
                    hint="Make its layer an attribute of the model that create_model returns.",
                )
            if id(variable) in used:
                raise UserCodeError(
                    f"{subject}: a variable is in the phases {used[id(variable)]} and {phase.name}."
                    if used[id(variable)] != phase.name
                    else f"{subject}: a variable is twice in the phase {phase.name}.",
                    received=str(getattr(variable, "path", type(variable).__name__)),
                )
            used[id(variable)] = phase.name
    if all(phase.every > 1 for phase in phases):
        raise UserCodeError(
            f"{subject}: one of the phases must run in every step.",
            received=", ".join(f"{phase.name} every {phase.every} steps" for phase in phases),
            hint="Set every=1 for it.",
        )


class PhasedStep:
    """Implements `base.Step` by the steps of phases, which share a model."""

    def __init__(
        self,
        loaded: LoadedSpec,
        steps: Sequence[tuple[Phase, Step]],
        *,
        seed: int,
        take: Take,
        make_callbacks: CallbacksMaker,
    ) -> None:
        """Combine the steps.

        Args:
            loaded: The user's spec.
            steps: Each phase and the step that trains its variables.
            seed: Seed of the noise.
            take: Takes some examples out of a batch of the framework.
            make_callbacks: Creates the callbacks from the arguments of `Step.callbacks`, and
                `num_metric_sums` and `metric_values`.
        """
        self._loaded, self._steps = loaded, list(steps)
        self._take, self._make_callbacks = take, make_callbacks
        takes = declared(loaded.spec.create_phase_loss)
        self._takes_noise = takes.takes_any or "noise" in takes.names
        self._divides = any(phase.records == "new" for phase, _ in steps)
        self._passes = sum(phase.repeats for phase, _ in steps)
        self._counter = Array(np.array([seed, 0], np.int64))
        """The seed, and the number of completed steps; part of the ring's state."""
        self._running = self._steps[0][1]
        self._variables: dict[str, Variable] = {**self.model_variables}
        for phase, step in self._steps:
            self._variables |= {
                self._name_of(name, phase): variable
                for name, variable in step.variables.items()
                if name not in self.model_variables
            }
        self._variables["phases"] = self._counter

    @property
    def model(self) -> Model:
        """The model that is trained."""
        return self._steps[0][1].model

    @property
    def model_variables(self) -> Mapping[str, Variable]:
        """The model's variables."""
        return self._steps[0][1].model_variables

    @property
    def variables(self) -> dict[str, Variable]:
        """The model's variables, those of the phases' optimizers, and the number of steps."""
        return self._variables

    @property
    def trained(self) -> list[str]:
        """The names of the variables of all phases."""
        return [name for _, step in self._steps for name in step.trained]

    @property
    def slots(self) -> list[str]:
        """The names of what the optimizers of all phases keep for each of these variables."""
        return [f"{phase.name}/{name}" for phase, step in self._steps for name in step.slots]

    def optimizer_state(self) -> list[str]:
        """The names of the variables that have their first values in new optimizers."""
        return [
            self._name_of(name, phase)
            for phase, step in self._steps
            for name in step.optimizer_state()
        ]

    @property
    def groups(self) -> Sequence[StateGroup]:
        """Groups of variables that can be sent to a joining rank while steps go on.

        Each phase has groups of the variables that it trains. Those of the others, which it leaves
        alone, and those that no phase trains, are groups of their own there.
        """
        all_trained, groups = set(self.trained), {}
        for phase, step in self._steps:
            of_phase, trained = step.groups, set(step.trained)
            if not of_phase:
                return ()  # It is not known what the updates of this phase depend on.
            for group in of_phase:
                if trained.intersection(group.names) or not all_trained.intersection(group.names):
                    names = tuple(self._name_of(name, phase) for name in group.names)
                    groups[names] = replace(group, names=names)
        return list(groups.values())

    def _name_of(self, name: str, phase: Phase) -> str:
        """The name here of a variable of a phase's step."""
        return name if name in self.model_variables else f"{phase.name}/{name}"

    def step(
        self, batch: Batch | None, *, wants_change: bool, is_alone: bool, salt: int
    ) -> StepSums:
        """Run the phases that are due; either all of them take effect or none."""
        seed, number = self._counter.numpy().tolist()
        if batch is not None:
            places = self._places(batch)
            batch = replace(batch, places=lambda: places)
        passes = [
            (phase, step, repeat)
            for phase, step in self._steps
            for repeat in range(phase.repeats if number % phase.every == 0 else 0)
        ]
        before: list[tuple[Variable, Any]] = []
        if len(passes) > 1:  # A single pass takes effect or not by itself.
            before = [(part, np.array(part.numpy())) for part in self._variables.values()]
        results: dict[str, StepSums] = {}
        of_passes: list[StepSums] = []
        try:
            for pass_number, (phase, step, repeat) in enumerate(passes, number * self._passes):
                self._running = step
                part = self._part(batch, phase, repeat)
                if part is not None:
                    part = replace(part, noise=NoiseKey(seed, pass_number, self._places(part)))
                sums = step.step(part, wants_change=wants_change, is_alone=is_alone, salt=salt)
                of_passes.append(sums)
                is_rest = phase.records == "new" and phase.name in results
                results[phase.name] = _added(results[phase.name], sums) if is_rest else sums
                if not sums.is_finite:
                    _restore(before)
                    return self._combined(results, of_passes)
        except BaseException:
            _restore(before)
            raise
        self._counter.assign([seed, number + 1])
        return self._combined(results, of_passes)

    def outer_optimizer(self, learning_rate: float, momentum: float) -> OuterOptimizer:
        """Refuse: each phase would need an outer optimizer of its own.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            f"An outer optimizer (train.local.method=diloco, federated.rounds) cannot train the"
            f" phases of {self._loaded.label}.",
            hint="Set train.local.method=average, or leave federated.rounds out.",
        )

    def begin_round(self) -> None:
        """Begin a round in each phase."""
        for _, step in self._steps:
            step.begin_round()

    def scale_learning_rate(self, factor: float) -> None:
        """Multiply the learning rate of each phase."""
        for _, step in self._steps:
            step.scale_learning_rate(factor)

    def finalize(self) -> None:
        """Set the variables of each phase to their final values."""
        for _, step in self._steps:
            step.finalize()

    def rehearse(self, batch: Batch) -> None:
        """Rehearse each phase."""
        places = self._places(batch)
        for _, step in self._steps:
            step.rehearse(replace(batch, noise=NoiseKey(0, 0, places)))

    def is_waiting(self) -> bool:
        """Whether this rank has computed its part of a phase and waits for the others."""
        return self._running.is_waiting()

    def waited_seconds(self) -> float:
        """How long this rank has waited for the others in a phase that has just failed."""
        return self._running.waited_seconds()

    def callbacks(
        self, *, num_epochs: int, steps_per_epoch: int | None, per_step: bool
    ) -> EpochCallbacks | None:
        """Create the user's callbacks; None if there are none."""
        return self._make_callbacks(
            num_epochs=num_epochs,
            steps_per_epoch=steps_per_epoch,
            per_step=per_step,
            num_metric_sums=2 * len(self._steps),
            metric_values=lambda sums, _count: self._metric_values(sums),
        )

    def _places(self, batch: Batch) -> NDArray[np.int64]:
        """The place of each example's record in the step; zeros if nothing depends on it."""
        zeros = np.zeros(batch.num_examples, np.int64)
        if not (self._takes_noise or self._divides) or batch.places is None:
            return zeros
        places = batch.places()
        if len(places) != batch.num_examples:
            raise UserCodeError(
                f"The phases of {self._loaded.label} have noise or records='new', which belong to"
                " records, but create_dataset does not make exactly one example from each record.",
                received=f"{len(places)} records, {batch.num_examples} examples",
                hint="Filter and expand records when you prepare the data, or do without both;"
                " random numbers that the loss draws itself depend on the number of ranks.",
            )
        return places

    def _part(self, batch: Batch | None, phase: Phase, repeat: int) -> Batch | None:
        """The examples of one repeat of a phase; None if this rank has none of them.

        Neighbouring places go to different repeats, so that each rank has examples in each of them.
        """
        if batch is None or phase.records == "same":
            return batch
        places = self._places(batch)
        rows = np.flatnonzero(places % phase.repeats == repeat)
        if len(rows) == 0:
            return None
        return replace(self._take(batch, rows), places=lambda: places[rows])

    def _combined(self, results: Mapping[str, StepSums], of_passes: Sequence[StepSums]) -> StepSums:
        """The results of a step from those of its phases, and the times of all passes."""
        last = list(results.values())[-1]
        pairs = []
        for phase, _ in self._steps:
            sums = results.get(phase.name)
            count = sums.num_examples if sums is not None else 0
            pairs += [count * sums.loss if sums is not None and count else 0.0, float(count)]
        metric_sums = np.array(pairs)
        return StepSums(
            num_examples=last.num_examples,
            loss=sum(sums.loss for sums in results.values()),
            wants_change=last.wants_change,
            metrics={f"{name}_loss": sums.loss for name, sums in results.items()},
            metric_sums=metric_sums,
            has_finite_gradients=all(sums.has_finite_gradients for sums in results.values()),
            exchange_seconds=sum(sums.exchange_seconds for sums in of_passes),
            apply_seconds=sum(sums.apply_seconds for sums in of_passes),
        )

    def _metric_values(self, sums: Any) -> dict[str, float]:
        totals = zip(self._steps, sums[::2], sums[1::2], strict=True)
        return {
            f"{phase.name}_loss": float(total / count) if count else math.nan
            for (phase, _), total, count in totals
        }


def _added(some: StepSums, others: StepSums) -> StepSums:
    """The results of a phase over two parts of a step's examples."""
    parts = [sums for sums in (some, others) if sums.num_examples]
    count = sum(sums.num_examples for sums in parts)
    total = sum(sums.num_examples * sums.loss for sums in parts)
    return replace(
        others,
        num_examples=count,
        loss=total / count if count else math.nan,
        has_finite_gradients=some.has_finite_gradients and others.has_finite_gradients,
    )


def _restore(values: Sequence[tuple[Variable, Any]]) -> None:
    """Set variables to values that were read before."""
    for variable, value in values:
        variable.assign(value)
