"""One Keras 3 training step on a ring: weighted, all or nothing (D6, D7, D17)."""

import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.keras.adversarial import Attack
from edl_horovod.frameworks.keras.callbacks import KerasCallbacks, Trainable, may_freeze
from edl_horovod.frameworks.keras.collectives import catch_failures
from edl_horovod.frameworks.keras.functional import running, some_examples
from edl_horovod.frameworks.keras.graph import StepGraph
from edl_horovod.frameworks.keras.model import KerasModel, by_name
from edl_horovod.frameworks.keras.noise import with_noise, with_noise_spec
from edl_horovod.frameworks.keras.objective import Objective
from edl_horovod.frameworks.keras.optimizer import (
    KerasOuterOptimizer,
    ScaledLearningRate,
    groups_of,
    inner_optimizer,
    make_optimizer,
    require_optimizer,
    resetter_of,
    scaling_loss,
    slots_of,
    state_of,
)
from edl_horovod.frameworks.keras.phases import PhaseObjective
from edl_horovod.frameworks.keras.ring_sums import RingSums
from edl_horovod.frameworks.phases import PhasePart
from edl_horovod.frameworks.privacy import (
    refuse_loss_scale,
    refuse_shared_state,
    refuse_weights,
    require_one_each,
)
from edl_horovod.frameworks.step_options import StepOptions
from edl_horovod.frameworks.values import Batch, StateGroup, StepSums, Variable
from edl_horovod.models.calling import user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

NO_OPTIONS = StepOptions()


@dataclass(frozen=True)
class SharedModel:
    """A built model, and its sums over the ring; the steps of several phases share them."""

    model: KerasModel
    ring_sums: RingSums
    trainable: Trainable

    @classmethod
    def build(
        cls, loaded: LoadedSpec, element_spec: tuple[Any, ...], options: StepOptions
    ) -> "SharedModel":
        """Build the user's model.

        Raises:
            UserCodeError: As for `KerasModel`.
        """
        model = KerasModel(loaded, element_spec[0])
        ring_sums = RingSums(model.keras, sums_all=options.sums_batch_norm)
        return cls(model, ring_sums, Trainable(model.keras))


class KerasStep:
    """The model, its optimizer, and the step that trains the model."""

    def __init__(
        self,
        loaded: LoadedSpec,
        element_spec: tuple[Any, ...],
        *,
        learning_rate: float | None,
        options: StepOptions = NO_OPTIONS,
        scales_learning_rate: bool = False,
        shared: SharedModel | None = None,
        part: PhasePart | None = None,
        seed: int = 0,
    ) -> None:
        """Build the model and the optimizer, and trace what the step does with the model.

        Args:
            loaded: The user's spec.
            element_spec: `tf.TypeSpec`s of a batch's features, labels, and weights if any.
            learning_rate: Passed to `create_optimizer`; None keeps its default.
            options: How gradients are computed, clipped and reduced.
            scales_learning_rate: Whether `scale_learning_rate` will be called.
            shared: The model, if it exists already.
            part: The phase that this step trains; None for the whole model.
            seed: Seed of the random numbers of adversarial examples.

        Raises:
            UserCodeError: One of the spec's methods raised or returned something unusable.
        """
        self.loaded = loaded
        if options.privacy is not None and len(element_spec) > 2:
            raise refuse_weights(loaded.label)
        self._options, self._phase = options, part.phase if part is not None else None
        self._attack: Attack | None = None
        if options.adversarial is not None:
            self._attack = Attack(options, element_spec[0], seed=seed, label=loaded.label)
        has_noise = part is not None or self._attack is not None
        self._element_spec = with_noise_spec(element_spec) if has_noise else element_spec
        self.shared = shared or SharedModel.build(loaded, element_spec, options)
        self.model, self._ring_sums = self.shared.model, self.shared.ring_sums
        if self._ring_sums.has_layers and options.num_parts > 1:
            raise UserCodeError(
                f"{loaded.label} has BatchNormalization layers with synchronized=True, which needs"
                " train.accumulate_steps=1: the parts of a step cannot share batch statistics.",
                received={"train.accumulate_steps": options.num_parts},
                hint="Set train.accumulate_steps=1 or remove synchronized=True.",
            )
        self._objective: Objective | PhaseObjective
        if part is None:
            self._objective = Objective(
                loaded,
                self.model.keras,
                element_spec,
                Mode.TRAINING,
                class_weight=options.class_weight,
            )
            optimizer = make_optimizer(loaded, self.model.keras, learning_rate)
        else:
            self._objective = PhaseObjective(
                loaded, self.model.keras, part.phase, num_places=options.reduction.batch_size
            )
            optimizer = require_optimizer(part.optimizer, f"create_optimizer of {loaded.label}")
        # As `compile` does it, for a policy that the user's file sets.
        is_float16 = self.model.keras.dtype_policy.name == "mixed_float16"
        scales_loss = options.scales_loss or is_float16
        self.optimizer = scaling_loss(optimizer) if scales_loss else optimizer
        if options.privacy is not None and inner_optimizer(self.optimizer) is not self.optimizer:
            raise refuse_loss_scale(loaded.label)
        self._rate: ScaledLearningRate | None = None
        if scales_learning_rate:
            self._rate = ScaledLearningRate(self.optimizer, label=loaded.label)
        self.user_callbacks = loaded.callbacks()
        self._trainable = self.shared.trainable
        self._trained = self._in_phase(self.model.keras.trainable_variables)
        if any(getattr(variable, "overwrite_with_gradient", False) for variable in self._trained):
            raise UserCodeError(
                f"The model of {loaded.label} has layers of float8, whose gradients are new values:"
                " a ring cannot add them up.",
                hint="Train it in bfloat16 (train.precision=mixed_bfloat16), and quantize the"
                " trained model.",
            )
        self._reset_optimizer: Callable[[], None] | None = None
        self._build_optimizer()
        self._anchors: dict[int, tf.Variable] = {}
        """Weights at a round's begin, for FedProx, by the id of their variables."""
        if options.proximal_mu:
            self._anchors = {
                id(variable): tf.Variable(variable.value, trainable=False)
                for variable in self._trained
            }
        self._computed_at = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        """When this rank had computed its part of the present step, in seconds since the epoch; 0
        if it has not."""
        self._zero = tf.constant(0.0)
        self._trace()
        self._others = self._graph.other_variables

    @property
    def variables(self) -> dict[str, Variable]:
        """All variables of the training, in the same order on all ranks."""
        variables = by_name([*self.model.keras.variables, *self.optimizer.variables])
        variables |= self._others
        return variables if self._attack is None else {**variables, "noise": self._attack.noise}

    @property
    def model_variables(self) -> dict[str, Variable]:
        """The variables of the model."""
        return by_name(self.model.keras.variables)

    @property
    def trained(self) -> list[str]:
        """The names of the model's variables that the optimizer changes."""
        names = {id(value): name for name, value in self.model_variables.items()}
        return [names[id(variable.value)] for variable in self._trained]

    @property
    def slots(self) -> list[str]:
        """The names of the variables that the optimizer keeps for these."""
        names = {id(value): name for name, value in self.variables.items()}
        kinds = slots_of(inner_optimizer(self.optimizer), self._trained)
        return [names[id(slot.value)] for kind in kinds for _, slot in kind]

    def optimizer_state(self) -> list[str]:
        """The names of the variables that have their first values in a new optimizer.

        Raises:
            UserCodeError: As for `state_of`.
        """
        names = {id(value): name for name, value in self.variables.items()}
        inner = inner_optimizer(self.optimizer)
        state = state_of(inner, self._trained, label=self.loaded.label)
        return [names[id(variable.value)] for variable in state]

    @property
    def groups(self) -> list[StateGroup]:
        """Variables that a joining rank can receive group by group while steps continue."""
        return groups_of(self.variables, self.model.keras, self.optimizer, self._trained)

    def step(
        self, batch: Batch | None, *, wants_change: bool, is_alone: bool, salt: int
    ) -> StepSums:
        """Run one step over the ring and update the variables if its loss is finite.

        Every rank must call this for every step, even without examples, because it runs the
        step's collectives.
        """
        if self._trainable.numpy() is not self._traced_for:
            # All ranks trace together, because `trainable` is part of the ring's state.
            self._trace()
        flag = tf.constant(float(wants_change))
        # Outside of the graph: there, user code that hangs could run before this op, and this rank
        # would look as if it were waiting for the others.
        self._computed_at.assign(0.0)
        if batch is None:
            run = self._empty_step(in_ring=not is_alone)
            with catch_failures():
                values = run(flag, self._zero).numpy().tolist()
        else:
            if self._options.privacy is not None:
                require_one_each(batch, self.loaded.label)
            self._require_mean(batch)
            examples = self._examples(batch)
            run = self._full_step(in_ring=not is_alone)
            with running("The training step", self.loaded, examples), catch_failures():
                salt_tensor = tf.constant(salt, tf.uint32)
                values = run(flag, examples, salt_tensor, self._zero).numpy().tolist()
        if self._attack is not None:
            self._attack.end_step()
        return self._graph.results(values)

    def outer_optimizer(self, learning_rate: float, momentum: float) -> KerasOuterOptimizer:
        """Create the optimizer of local rounds; see `base.Step`."""
        optimizer = self.loaded.outer_optimizer(self.model.keras)
        if optimizer is None:
            optimizer = keras.optimizers.SGD(learning_rate, momentum, nesterov=momentum > 0)
        label = f"create_outer_optimizer of {self.loaded.label}"
        return KerasOuterOptimizer(
            require_optimizer(optimizer, label), dict(zip(self.trained, self._trained, strict=True))
        )

    def begin_round(self) -> None:
        """Let the following steps pull towards the present weights; see `base.Step`."""
        if self._anchors:
            for variable in self._trained:
                self._anchors[id(variable)].assign(variable.value)

    def scale_learning_rate(self, factor: float) -> None:
        """Multiply the learning rate of the following steps by `factor`."""
        assert self._rate is not None, "the step was built without scales_learning_rate"
        self._rate.scale(factor)

    def finalize(self) -> None:
        """Set the weights to the optimizer's moving averages, if it keeps any, as `fit` does."""
        self.optimizer.finalize_variable_values(self._trained)

    def rehearse(self, batch: Batch) -> None:
        """Run each traced step once without any effect, so that the first real step is fast.

        TensorFlow optimizes a function's graph and creates its kernels at the first run.
        """
        self._require_mean(batch)
        examples = self._examples(batch)
        flag, salt = tf.constant(0.0), tf.constant(0, tf.uint32)
        no_examples = some_examples(examples, 0, 0)
        alone, in_ring = self._full_step(in_ring=False), self._full_step(in_ring=True)
        joining = self._empty_step(in_ring=True)
        # An error of the step will be raised by its first real run, too.
        with contextlib.suppress(tf.errors.OpError):
            # A step without examples changes nothing.
            alone(flag, no_examples, salt, self._zero)
        # The collective fails, as no ring exists yet, before any variable changes.
        with contextlib.suppress(tf.errors.OpError, CollectiveFailed), catch_failures():
            in_ring(flag, examples, salt, self._zero)
        # The step of a joining rank that receives the state; the other ranks wait for it.
        with contextlib.suppress(tf.errors.OpError, CollectiveFailed), catch_failures():
            joining(flag, self._zero)

    def is_waiting(self) -> bool:
        """Whether this rank has computed its part and waits for the others. Thread-safe."""
        return bool(self._computed_at.numpy())

    def waited_seconds(self) -> float:
        """How long this rank has waited for the others in a step that has just failed."""
        computed_at = float(self._computed_at.numpy())
        return max(0.0, time.time() - computed_at) if computed_at else 0.0

    def callbacks(
        self, *, num_epochs: int, steps_per_epoch: int | None, per_step: bool
    ) -> KerasCallbacks | None:
        """Build the user's callbacks; None if there are none."""
        return make_callbacks(
            [self],
            self.optimizer,
            num_epochs=num_epochs,
            steps_per_epoch=steps_per_epoch,
            per_step=per_step,
            num_metric_sums=self._graph.num_metric_sums,
            metric_values=lambda sums, count: self._graph.metric_values(sums, count),
        )

    def _examples(self, batch: Batch) -> tuple[Any, ...]:
        if self._attack is not None:
            return with_noise(replace(batch, noise=self._attack.key(batch)))
        return batch.examples if self._phase is None else with_noise(batch)

    def _require_mean(self, batch: Batch) -> None:
        self._objective.require_mean(batch.examples if self._attack else self._examples(batch))

    def _in_phase(self, variables: Sequence[keras.Variable]) -> list[keras.Variable]:
        """Those of the variables that this step trains."""
        if self._phase is None:
            return list(variables)
        ids = {id(variable) for variable in self._phase.variables}
        return [variable for variable in variables if id(variable) in ids]

    def _build_optimizer(self) -> None:
        """Build slots for all variables that are trained now or that callbacks may unfreeze.

        This keeps the variables of the ring's state the same for the whole job. An optimizer with
        `use_ema` gets slots for the trained variables only, because it would overwrite frozen ones
        with their averages. An optimizer that was loaded with its state already has slots.
        """
        can_add_slots = not self.optimizer.built and not inner_optimizer(self.optimizer).use_ema
        if can_add_slots and any(map(may_freeze, self.user_callbacks)):
            self._trained = self._in_phase(self._trainable.trainable_if_unfrozen())
        is_loaded = self.optimizer.built
        with user_code(f"Building the optimizer of {self.loaded.label}", root=self.loaded.zoo):
            self.optimizer.build(self._trained)
        if not is_loaded:
            self._reset_optimizer = resetter_of(self.optimizer, self._trained)

    def _full_step(self, *, in_ring: bool) -> Any:
        """The function of a step with examples, which is traced when it is needed first."""
        if in_ring not in self._graph.steps:
            with self._building():
                self._graph.trace_step(in_ring=in_ring)
        return self._graph.steps[in_ring]

    def _empty_step(self, *, in_ring: bool) -> Any:
        """The same of a step without examples."""
        if in_ring not in self._graph.empty_steps:
            with self._building():
                self._graph.trace_empty_step(in_ring=in_ring)
        return self._graph.empty_steps[in_ring]

    def _building(self) -> AbstractContextManager[None]:
        doing = f"Building the training step of {self.loaded.label} for {self._element_spec}"
        return user_code(doing, root=self.loaded.zoo)

    def _trace(self) -> None:
        """Trace the step for the currently trainable variables."""
        loaded, model = self.loaded, self.model.keras
        self._traced_for = self._trainable.numpy()
        trained_ids = {id(variable) for variable in self._trained}
        added = [
            variable.path
            for variable in self._in_phase(model.trainable_variables)
            if id(variable) not in trained_ids
        ]
        if added:
            raise UserCodeError(
                f"A callback of {loaded.label} made {', '.join(added)} trainable, which"
                f" its optimizer {type(self.optimizer).__name__} was not built for.",
                hint="Make it trainable before the training and freeze it in the callback, use"
                " an optimizer without use_ema, or train in two jobs.",
            )
        with self._building():
            self._graph = StepGraph(
                model,
                self._in_phase(model.trainable_variables),
                self._objective,
                self.optimizer,
                self._element_spec,
                options=self._options,
                ring_sums=self._ring_sums,
                rate=self._rate,
                computed_at=self._computed_at,
                attack=self._attack,
                anchors=self._anchors,
            )
        if self._options.privacy is not None and (names := self._graph.statistics):
            raise refuse_shared_state(names, loaded.label)

    def reset_optimizer(self) -> None:
        """Reset the optimizer, except its learning rate."""
        assert self._reset_optimizer is not None, "the optimizer was loaded with its state"
        self._reset_optimizer()


def make_callbacks(
    steps: Sequence[KerasStep], optimizer: Any, **arguments: Any
) -> KerasCallbacks | None:
    """Create the user's callbacks of a training; None if there are none.

    Args:
        steps: The step, or the steps of its phases.
        optimizer: What callbacks find as `model.optimizer`.
        **arguments: Other arguments of `KerasCallbacks`.
    """
    callbacks, shared, loaded = steps[0].user_callbacks, steps[0].shared, steps[0].loaded
    if not callbacks:
        return None

    def settle() -> None:
        # Only the leader calls this, as compiling again would do; the ring then synchronizes.
        if shared.trainable.refresh():
            for step in steps:
                step.reset_optimizer()

    return KerasCallbacks(
        callbacks,
        shared.model.keras,
        optimizer,
        trainable=shared.trainable,
        settle=settle,
        zoo=loaded.zoo,
        **arguments,
    )
