"""The loss of a phase of a Keras model."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.denominators import OverRing, Reductions, RingMean
from edl_horovod.frameworks.keras.functional import (
    num_examples,
    repeated,
    some_examples,
    state_variables,
    traced,
    without_effects,
)
from edl_horovod.frameworks.keras.noise import Noise
from edl_horovod.frameworks.keras.objective import (
    MAX_TRIED_EXAMPLES,
    Outcome,
    any_number,
    sum_over_batch,
)
from edl_horovod.frameworks.values import is_sum_over_batch
from edl_horovod.models.calling import call_declared, logging_warnings, user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Phase


class PhaseObjective:
    """The loss of one phase, with the interface of `Objective` that the step's graph uses."""

    def __init__(
        self, loaded: LoadedSpec, model: keras.Model, phase: Phase, *, num_places: int
    ) -> None:
        """Prepare the loss; nothing is computed.

        Args:
            loaded: The user's spec.
            model: The built model.
            phase: The phase.
            num_places: Records of a full step.
        """
        self._loaded, self._model, self._phase = loaded, model, phase
        self._num_places = num_places
        self._is_mean = False
        self.num_divisors = 1
        """The number of different divisors in the loss, known after it has been traced."""

    def require_mean(self, examples: tuple[Any, ...]) -> None:
        """Reject a loss that is a sum over the batch; only the first call checks this.

        Args:
            examples: The result of `with_noise`, of at least one example.

        Raises:
            UserCodeError: The loss is a sum.
        """
        if self._is_mean:
            return
        few = some_examples(examples, 0, MAX_TRIED_EXAMPLES)

        def value(examples: tuple[Any, ...]) -> tf.Tensor:
            with without_effects(self._model):
                mean = self._loss(examples)
            return mean.total / mean.weight

        with user_code(f"Checking {self._label}", root=self._loaded.zoo):
            trial = traced(value, tf.nest.map_structure(any_number, few))
            values = [float(trial(repeated(few, times))) for times in (1, 2, 3)]
        if is_sum_over_batch(*values):
            raise sum_over_batch(self._label)
        self._is_mean = True

    def of_batch(
        self,
        examples: tuple[Any, ...],
        *,
        non_trainable: Sequence[tf.Tensor] | None = None,
        over_ring: OverRing | None = None,
    ) -> Outcome:
        """Compute the loss of a batch without changing the model; see `Objective.of_batch`."""
        model, variables = self._model, state_variables(self._model)
        with without_effects(model, non_trainable=non_trainable) as scope:
            before = [scope.get_current_value(variable) for variable in variables]
            loss = self._loss(examples, over_ring)
        scope.require_usable(model, self._loaded.label)
        after = [scope.get_current_value(variable) for variable in variables]
        return Outcome(
            loss,
            [],
            [tf.convert_to_tensor(value) for value in after],
            [new is not old for new, old in zip(after, before, strict=True)],
        )

    @property
    def _label(self) -> str:
        return f"the loss of the phase {self._phase.name} of {self._loaded.label}"

    def _loss(self, examples: tuple[Any, ...], over_ring: OverRing | None = None) -> RingMean:
        (features, key), labels, *weights = examples
        reductions = Reductions(num_examples(key), over_ring if self.num_divisors > 1 else None)
        arguments = {
            "phase": self._phase.name,
            "model": self._model,
            "features": features,
            "labels": labels,
            "sample_weight": weights[0] if weights else None,
            "noise": Noise(key, self._num_places),
        }
        with logging_warnings(self._label), reductions.recorded():
            value = tf.convert_to_tensor(
                call_declared(self._loaded.spec.create_phase_loss, arguments)
            )
        if value.shape.rank != 0:
            raise UserCodeError(
                f"create_phase_loss of {self._loaded.label} must return the mean over the batch, a"
                f" scalar, for the phase {self._phase.name}.",
                received={"shape": value.shape},
                hint="Reduce the loss, for instance with keras.ops.mean.",
            )
        mean = reductions.ring_mean(value, ())
        self.num_divisors = max(self.num_divisors, reductions.num_divisors)
        return mean
