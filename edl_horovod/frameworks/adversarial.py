"""Training on adversarial examples; common to all frameworks.

`fgsm` is the fast gradient sign method of I. Goodfellow, J. Shlens and C. Szegedy, "Explaining and
Harnessing Adversarial Examples", ICLR 2015, section 4. `pgd` is projected gradient descent within a
distance of epsilon in each value, from a random start: A. Madry, A. Makelov, L. Schmidt, D. Tsipras
and A. Vladu, "Towards Deep Learning Models Resistant to Adversarial Attacks", ICLR 2018, section 2.
A rank changes its own examples; the model is in evaluation mode while it does so.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edl_horovod.errors import ConfigError, UserCodeError, did_you_mean
from edl_horovod.frameworks.step_options import StepOptions
from edl_horovod.frameworks.values import Array, Batch, NoiseKey


class BaseAttack(ABC):
    """Changes examples so that their loss rises; a framework adds the gradients.

    Random starts need the number of the step, which is part of the ring's state.
    """

    def __init__(self, options: StepOptions, features: Any, *, seed: int, label: str) -> None:
        """Choose the features to change.

        Args:
            options: The options of the step, which has adversarial examples.
            features: The features of a batch, or what describes them.
            seed: Seed of the random starts.
            label: Names the model in messages.

        Raises:
            ConfigError: adversarial.inputs does not fit the features.
            UserCodeError: No feature can be changed.
        """
        config = options.adversarial
        assert config is not None
        self._starts_at_random = config.method == "pgd"
        self._epsilon = self._step_size = config.epsilon
        self._num_steps = 1
        if config.method == "pgd":
            self._num_steps = config.steps
            self._step_size = config.step_size or 2.5 * config.epsilon / config.steps
        self._lowest, self._highest = config.clip or (-math.inf, math.inf)
        self._num_places = options.reduction.batch_size
        self._num_changed = round(config.ratio * self._num_places)
        """Examples at the first places of a step are changed, up to this number."""
        self._names = self._names_to_change(features, config.inputs, label)
        self.noise = Array(np.array([seed, 0], np.int64))
        """The seed, and the number of completed steps; part of the ring's state."""

    @staticmethod
    @abstractmethod
    def _is_number(feature: Any) -> bool:
        """Whether a feature, or what describes it, has floating-point values."""

    def key(self, batch: Batch) -> NoiseKey:
        """The key of the random numbers of the step that comes next."""
        seed, number = self.noise.numpy().tolist()
        places = batch.places() if batch.places is not None else np.empty(0, np.int64)
        if len(places) != batch.num_examples:  # Records and examples differ: take their order.
            places = np.arange(batch.num_examples) + (places[0] if len(places) else 0)
        return NoiseKey(seed, number, places)

    def end_step(self) -> None:
        """Count a step."""
        seed, number = self.noise.numpy().tolist()
        self.noise.assign([seed, number + 1])

    def _selected(self, features: Any) -> list[Any]:
        """The features of a batch that are changed."""
        return [features] if self._names is None else [features[name] for name in self._names]

    def _merged(self, features: Any, values: Sequence[Any]) -> Any:
        """The features of a batch with these values of the changed ones."""
        if self._names is None:
            return values[0]
        return {**features, **dict(zip(self._names, values, strict=True))}

    def _names_to_change(
        self, features: Any, inputs: Sequence[str], label: str
    ) -> Sequence[str] | None:
        """The names of the features to change; None if there is one without a name."""
        if not isinstance(features, Mapping):
            if inputs:
                raise ConfigError(
                    "adversarial.inputs names features, but those of this model have no names.",
                    received={"adversarial.inputs": inputs},
                    hint="Leave it out.",
                )
            if not self._is_number(features):
                raise UserCodeError(
                    f"The features of {label} are not floating-point numbers, so"
                    " adversarial.method cannot change them.",
                    received=str(features),
                )
            return None
        numbers = [name for name, value in features.items() if self._is_number(value)]
        if not numbers:
            raise UserCodeError(
                f"No feature of {label} has floating-point numbers that adversarial.method can"
                " change.",
                received=", ".join(features),
            )
        for name in inputs:
            if name not in numbers:
                raise ConfigError(
                    "adversarial.inputs must name features of floating-point numbers.",
                    received={"adversarial.inputs": name},
                    hint=f"{did_you_mean(name, numbers)} Such features are {', '.join(numbers)}.",
                )
        return inputs or numbers
