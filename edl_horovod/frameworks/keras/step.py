"""One Keras 3 training step on a ring: weighted, all or nothing (D6, D7, D17)."""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.keras.batch_norm import RingStatistics
from edl_horovod.frameworks.keras.callbacks import KerasCallbacks, may_freeze
from edl_horovod.frameworks.keras.collectives import catch_failures
from edl_horovod.frameworks.keras.functional import running, some_examples
from edl_horovod.frameworks.keras.gradients import GradientOptions
from edl_horovod.frameworks.keras.graph import (
    EXAMPLES,
    LOSS,
    LOSS_WEIGHT,
    METRICS,
    WANTS_CHANGE,
    StepGraph,
)
from edl_horovod.frameworks.keras.groups import groups_of
from edl_horovod.frameworks.keras.learning_rate import ScaledLearningRate
from edl_horovod.frameworks.keras.model import KerasModel, by_name
from edl_horovod.frameworks.keras.objective import Objective
from edl_horovod.frameworks.keras.optimizer import Beginning, inner_optimizer, make_optimizer
from edl_horovod.frameworks.keras.ring_sums import RingSums
from edl_horovod.frameworks.keras.trainable import Trainable
from edl_horovod.frameworks.values import Batch, StateGroup, StepSums, Variable
from edl_horovod.models.calling import user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

__all__ = ["KerasStep"]

NO_OPTIONS = GradientOptions()


class KerasStep:
    """The model, its optimizer, and the step that changes them."""

    def __init__(
        self,
        loaded: LoadedSpec,
        element_spec: tuple[Any, ...],
        *,
        learning_rate: float | None,
        gradients: GradientOptions = NO_OPTIONS,
        scales_learning_rate: bool = False,
        class_weight: Sequence[float] = (),
    ) -> None:
        """Build the model and the optimizer, and trace the step alone and in a ring.

        Args:
            loaded: The user's spec.
            element_spec: `tf.TypeSpec`s of a batch's features, labels, and weights if any.
            learning_rate: Handed to `create_optimizer`; None leaves its default.
            gradients: How they are made and bounded.
            scales_learning_rate: Whether `scale_learning_rate` will be called.
            class_weight: Weights of examples by their class, from 0 on; none for the same of all.

        Raises:
            UserCodeError: One of the spec's methods raised or returned something unusable.
        """
        self._loaded = loaded
        self._element_spec, self._options = element_spec, gradients
        self.model = KerasModel(loaded, element_spec[0])
        self._ring_sums = RingSums()
        self._statistics = RingStatistics(
            self.model.keras, self._ring_sums, sums_all=gradients.sums_batch_norm
        )
        if self._statistics and gradients.num_parts > 1:
            raise UserCodeError(
                f"{loaded.label} has BatchNormalization layers with synchronized=True, which needs"
                " train.accumulate_steps=1: parts of a step have no statistics in common.",
                received={"train.accumulate_steps": gradients.num_parts},
                cure="Leave out one of them.",
            )
        self._objective = Objective(
            loaded, self.model.keras, element_spec, Mode.TRAINING, class_weight=class_weight
        )
        self.optimizer = make_optimizer(
            loaded, self.model.keras, learning_rate, scales_loss=gradients.scales_loss
        )
        self._rate: ScaledLearningRate | None = None
        if scales_learning_rate:
            self._rate = ScaledLearningRate(self.optimizer, label=loaded.label)
        self._callbacks = loaded.callbacks()
        self._trainable = Trainable(self.model.keras)
        self._trained = list(self.model.keras.trainable_variables)
        self._beginning: Beginning | None = None
        self._build_optimizer()
        self._has_come = tf.Variable(False, trainable=False)
        self._zero = tf.constant(0.0)
        self._trace()

    @property
    def variables(self) -> dict[str, Variable]:
        """All variables of model and optimizer, each once, in the same order everywhere."""
        return by_name([*self.model.keras.variables, *self.optimizer.variables])

    @property
    def model_variables(self) -> dict[str, Variable]:
        """Those of the model alone."""
        return by_name(self.model.keras.variables)

    @property
    def groups(self) -> list[StateGroup]:
        """What can be sent to a newcomer while steps go on."""
        return groups_of(self.variables, self.model.keras, self.optimizer, self._trained)

    def step(
        self, batch: Batch | None, *, wants_change: bool, is_alone: bool, salt: int
    ) -> StepSums:
        """Run one step over the ring; see `base.Step.step`.

        Every rank calls this for every step, also one without examples: the step's
        collectives are inside.
        """
        if self._trainable.numpy() is not self._traced_for:
            # All ranks: it is a part of the ring's state.
            self._trace()
        flag = tf.constant(float(wants_change))
        # Not in the step itself: what the user computes there may run, and hang, before anything
        # that does not depend on it, and this rank would look as if it waited for the others.
        self._has_come.assign(False)
        if batch is None:
            with catch_failures():
                values = self._graph.empty_steps[not is_alone](flag, self._zero).numpy().tolist()
        else:
            self._objective.require_mean(batch.examples)
            with running("The training step", self._loaded, batch.examples), catch_failures():
                run = self._graph.steps[not is_alone]
                salted = tf.constant(salt, tf.uint32)
                values = run(flag, batch.examples, salted, self._zero).numpy().tolist()
        count, weight = values[EXAMPLES], values[LOSS_WEIGHT]
        after_sums = METRICS + self._graph.num_metric_sums
        *metrics, are_good = values[after_sums:]
        return StepSums(
            num_examples=round(count),
            # Where nothing counts, a masked loss is 0 in Keras.
            loss=values[LOSS] / (weight or 1.0) if count else float("nan"),
            wants_change=values[WANTS_CHANGE] > 0,
            metrics=dict(zip(self._graph.metric_names, metrics, strict=True)),
            metric_sums=np.array(values[METRICS:after_sums]),
            has_finite_gradients=bool(are_good),
        )

    def scale_learning_rate(self, factor: float) -> None:
        """Multiply the learning rate of the steps that follow; see `base.Step`."""
        assert self._rate is not None, "a step that was made without it"
        self._rate.scale(factor)

    def finalize(self) -> None:
        """Take the optimizer's moving averages, if it keeps some, as `fit` does at its end."""
        self.optimizer.finalize_variable_values(self._trained)

    def rehearse(self, batch: Batch) -> None:
        """Run all kinds of step without any effect, so that the first true ones are quick.

        TensorFlow optimises a function's graph, and makes its kernels, when it runs the first time.
        """
        self._objective.require_mean(batch.examples)
        flag, salt = tf.constant(0.0), tf.constant(0, tf.uint32)
        none = some_examples(batch.examples, 0, 0)
        # What is wrong with the step is wrong with its first true run, too.
        with contextlib.suppress(tf.errors.OpError):
            # Without an example nothing is changed.
            self._graph.steps[False](flag, none, salt, self._zero)
        # There is no ring yet, so the collective fails, and that before anything is changed.
        with contextlib.suppress(tf.errors.OpError, CollectiveFailed), catch_failures():
            self._graph.steps[True](flag, batch.examples, salt, self._zero)
        # What a newcomer does while it is given the state, and the others wait for.
        with contextlib.suppress(tf.errors.OpError, CollectiveFailed), catch_failures():
            self._graph.empty_steps[True](flag, self._zero)

    def has_come(self) -> bool:
        """Whether this rank's part of the step is done, so that it waits for the others."""
        return bool(self._has_come.numpy())

    def callbacks(
        self, *, num_epochs: int, steps_per_epoch: int | None, per_step: bool
    ) -> KerasCallbacks | None:
        """Make the user's callbacks; None where there are none."""
        if not self._callbacks:
            return None
        return KerasCallbacks(
            self._callbacks,
            self.model.keras,
            self.optimizer,
            metrics=self._graph,
            trainable=self._trainable,
            begin_anew=self._begin_anew,
            num_epochs=num_epochs,
            steps_per_epoch=steps_per_epoch,
            per_step=per_step,
            zoo=self._loaded.zoo,
        )

    def _build_optimizer(self) -> None:
        """Give it slots for all that is trained, and that callbacks may have trained later.

        So the ring's state has the same variables as long as the job lives. An optimizer that
        averages variables would change those, too, that are not trained; one that was loaded with
        its state has its slots.
        """
        is_fit = not self.optimizer.built and not inner_optimizer(self.optimizer).use_ema
        if is_fit and any(map(may_freeze, self._callbacks)):
            self._trained = self._trainable.ever()
        is_loaded = self.optimizer.built
        with user_code(f"Building the optimizer of {self._loaded.label}", root=self._loaded.zoo):
            self.optimizer.build(self._trained)
        if not is_loaded:
            self._beginning = Beginning(self.optimizer, self._trained)

    def _trace(self) -> None:
        """Trace the step for what is trained now."""
        loaded, model = self._loaded, self.model.keras
        self._traced_for = self._trainable.numpy()
        known = {id(variable) for variable in self._trained}
        if new := [each.path for each in model.trainable_variables if id(each) not in known]:
            raise UserCodeError(
                f"A callback of {loaded.label} made {', '.join(new)} trainable, which"
                f" its optimizer {type(self.optimizer).__name__} was not made for.",
                cure="Have it trainable when the training begins and freeze it in the callback, use"
                " an optimizer without use_ema, or train in two jobs.",
            )
        doing = f"Building the training step of {loaded.label} for {self._element_spec}"
        with user_code(doing, root=loaded.zoo):
            self._graph = StepGraph(
                model,
                self._objective,
                self.optimizer,
                self._element_spec,
                options=self._options,
                ring_sums=self._ring_sums,
                is_synchronised=bool(self._statistics),
                rate=self._rate,
                has_come=self._has_come,
            )

    def _begin_anew(self) -> None:
        """Have the optimizer forget what it kept, as after compiling anew, but its learning rate.

        The leader does, and then the ring takes its state.
        """
        assert self._beginning is not None, "an optimizer without slots for other variables"
        self._beginning.restore()
