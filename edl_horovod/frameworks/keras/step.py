"""One Keras 3 training step on a ring: weighted, all or nothing (D6, D7, D17)."""

import contextlib
from typing import Any

import numpy as np
import tensorflow as tf

from edl_horovod.frameworks.base import CollectiveFailed, Variable
from edl_horovod.frameworks.keras.callbacks import KerasCallbacks
from edl_horovod.frameworks.keras.collectives import catch_failures
from edl_horovod.frameworks.keras.functional import running
from edl_horovod.frameworks.keras.gradients import GradientOptions
from edl_horovod.frameworks.keras.graph import (
    EXAMPLES,
    LOSS,
    METRICS,
    WANTS_CHANGE,
    StepGraph,
)
from edl_horovod.frameworks.keras.groups import groups_of
from edl_horovod.frameworks.keras.learning_rate import ScaledLearningRate
from edl_horovod.frameworks.keras.model import KerasModel, by_name
from edl_horovod.frameworks.keras.objective import Objective
from edl_horovod.frameworks.keras.optimizer import make_optimizer
from edl_horovod.frameworks.values import Batch, StateGroup, StepSums
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
        element_spec: tuple[Any, Any],
        *,
        learning_rate: float | None,
        gradients: GradientOptions = NO_OPTIONS,
        scales_learning_rate: bool = False,
    ) -> None:
        """Build the model and the optimizer, and trace the step alone and in a ring.

        Args:
            loaded: The user's spec.
            element_spec: `tf.TypeSpec`s of a batch's features and labels.
            learning_rate: Handed to `create_optimizer`; None leaves its default.
            gradients: How they are made and bounded.
            scales_learning_rate: Whether `scale_learning_rate` will be called.

        Raises:
            UserCodeError: One of the spec's methods raised or returned something unusable.
        """
        self._loaded = loaded
        self.model = KerasModel(loaded, element_spec[0])
        objective = Objective(loaded, self.model.keras, element_spec, Mode.TRAINING)
        self.optimizer = make_optimizer(
            loaded, self.model.keras, learning_rate, scales_loss=gradients.scales_loss
        )
        self._rate: ScaledLearningRate | None = None
        if scales_learning_rate:
            self._rate = ScaledLearningRate(self.optimizer, label=loaded.label)
        self.optimizer.build(self.model.keras.trainable_variables)
        self._has_come = tf.Variable(False, trainable=False)
        self._zero = tf.constant(0.0)
        doing = f"Building the training step of {loaded.label} for {element_spec}"
        with user_code(doing, root=loaded.zoo):
            self._graph = StepGraph(
                self.model.keras,
                objective,
                self.optimizer,
                element_spec,
                options=gradients,
                rate=self._rate,
                has_come=self._has_come,
            )

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
        return groups_of(self.variables, self.model.keras, self.optimizer)

    def step(
        self, batch: Batch | None, *, wants_change: bool, is_alone: bool, salt: int
    ) -> StepSums:
        """Run one step over the ring; see `base.Step.step`.

        Every rank calls this for every step, also one without examples: the step's
        collectives are inside.
        """
        flag = tf.constant(float(wants_change))
        # Not in the step itself: what the user computes there may run, and hang, before anything
        # that does not depend on it, and this rank would look as if it waited for the others.
        self._has_come.assign(False)
        if batch is None:
            with catch_failures():
                values = self._graph.empty_steps[not is_alone](flag, self._zero).numpy().tolist()
        else:
            parts = batch.features, batch.labels
            with running("The training step", self._loaded, *parts), catch_failures():
                run = self._graph.steps[not is_alone]
                salted = tf.constant(salt, tf.uint32)
                values = run(flag, *parts, salted, self._zero).numpy().tolist()
        count = values[EXAMPLES]
        after_sums = METRICS + self._graph.num_metric_sums
        return StepSums(
            num_examples=round(count),
            loss=values[LOSS] / count if count else float("nan"),
            wants_change=values[WANTS_CHANGE] > 0,
            metrics=dict(zip(self._graph.metric_names, values[after_sums:], strict=True)),
            metric_sums=np.array(values[METRICS:after_sums]),
        )

    def scale_learning_rate(self, factor: float) -> None:
        """Multiply the learning rate of the steps that follow; see `base.Step`."""
        assert self._rate is not None, "a step that was made without it"
        self._rate.scale(factor)

    def finalize(self) -> None:
        """Take the optimizer's moving averages, if it keeps some, as `fit` does at its end."""
        self.optimizer.finalize_variable_values(self.model.keras.trainable_variables)

    def rehearse(self, batch: Batch) -> None:
        """Run both kinds of step without any effect, so that the first true ones are quick.

        TensorFlow optimises a function's graph, and makes its kernels, when it runs the first time.
        """
        flag, salt = tf.constant(0.0), tf.constant(0, tf.uint32)
        none = tf.nest.map_structure(lambda part: part[:0], (batch.features, batch.labels))
        # What is wrong with the step is wrong with its first true run, too.
        with contextlib.suppress(tf.errors.OpError):
            # Without an example nothing is changed.
            self._graph.steps[False](flag, *none, salt, self._zero)
        # There is no ring yet, so the collective fails, and that before anything is changed.
        with contextlib.suppress(tf.errors.OpError, CollectiveFailed), catch_failures():
            self._graph.steps[True](flag, batch.features, batch.labels, salt, self._zero)

    def has_come(self) -> bool:
        """Whether this rank's part of the step is done, so that it waits for the others."""
        return bool(self._has_come.numpy())

    def callbacks(self, *, num_epochs: int, steps_per_epoch: int | None) -> KerasCallbacks | None:
        """Make the user's callbacks; None where there are none."""
        callbacks = self._loaded.callbacks()
        if not callbacks:
            return None
        return KerasCallbacks(
            callbacks,
            self.model.keras,
            self.optimizer,
            metrics=self._graph,
            num_epochs=num_epochs,
            steps_per_epoch=steps_per_epoch,
            zoo=self._loaded.zoo,
        )
