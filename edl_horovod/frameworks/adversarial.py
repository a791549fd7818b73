"""Training on adversarial examples; common to all frameworks.

`fgsm` is the fast gradient sign method of I. Goodfellow, J. Shlens and C. Szegedy, "Explaining and
Harnessing Adversarial Examples", ICLR 2015, section 4. `pgd` is projected gradient descent within a
distance of epsilon in each value, from a random start: A. Madry, A. Makelov, L. Schmidt, D. Tsipras
and A. Vladu, "Towards Deep Learning Models Resistant to Adversarial Attacks", ICLR 2018, section 2.
A rank changes its own examples; the model is in evaluation mode while it does so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.config.schema import AdversarialConfig
from edl_horovod.errors import ConfigError, UserCodeError, did_you_mean
from edl_horovod.frameworks.values import Array, Batch, NoiseKey


@dataclass(frozen=True)
class Plan:
    """How examples are changed."""

    epsilon: float
    num_steps: int
    step_size: float
    starts_at_random: bool
    bounds: tuple[float, float]
    num_changed: int
    """Examples at the first places of a step are changed, up to this number."""

    @classmethod
    def of(cls, config: AdversarialConfig, num_places: int) -> "Plan":
        """Take the plan from the settings; `num_places` is the number of records of a step."""
        is_pgd = config.method == "pgd"
        lowest, highest = config.clip or (-np.inf, np.inf)
        usual_size = 2.5 * config.epsilon / config.steps if is_pgd else config.epsilon
        return cls(
            epsilon=config.epsilon,
            num_steps=config.steps if is_pgd else 1,
            step_size=(config.step_size if is_pgd else 0.0) or usual_size,
            starts_at_random=is_pgd,
            bounds=(lowest, highest),
            num_changed=round(config.ratio * num_places),
        )


def names_to_change(
    features: Any, config: AdversarialConfig, is_number: Callable[[Any], bool], label: str
) -> Sequence[str] | None:
    """Return the names of the features that are changed; None if there is one without a name.

    Args:
        features: The features of a batch, or what describes them.
        config: The settings.
        is_number: Whether a feature has floating-point values.
        label: Names the model in messages.

    Raises:
        ConfigError: adversarial.inputs does not fit the features.
        UserCodeError: No feature can be changed.
    """
    if not isinstance(features, Mapping):
        if config.inputs:
            raise ConfigError(
                "adversarial.inputs names features, but those of this model have no names.",
                received={"adversarial.inputs": config.inputs},
                hint="Leave it out.",
            )
        if not is_number(features):
            raise UserCodeError(
                f"The features of {label} are not floating-point numbers, so adversarial.method"
                " cannot change them.",
                received=str(features),
            )
        return None
    for name in config.inputs:
        if name not in features or not is_number(features[name]):
            numbers = [key for key, value in features.items() if is_number(value)]
            raise ConfigError(
                "adversarial.inputs must name features of floating-point numbers.",
                received={"adversarial.inputs": name},
                hint=f"{did_you_mean(name, numbers)} Such features are {', '.join(numbers)}.",
            )
    names = config.inputs or [name for name, value in features.items() if is_number(value)]
    if not names:
        raise UserCodeError(
            f"No feature of {label} has floating-point numbers that adversarial.method can change.",
            received=", ".join(features),
        )
    return names


class StepNoise:
    """Gives each step its random numbers; the count of steps is part of the ring's state."""

    def __init__(self, seed: int) -> None:
        self.variable = Array(np.array([seed, 0], np.int64))

    def key(self, batch: Batch) -> NoiseKey:
        """The key of the examples of the step that comes next."""
        seed, number = self.variable.numpy().tolist()
        return NoiseKey(seed, number, places_of(batch))

    def end_step(self) -> None:
        """Count a step."""
        seed, number = self.variable.numpy().tolist()
        self.variable.assign([seed, number + 1])


def places_of(batch: Batch) -> NDArray[np.int64]:
    """The place of each example in its step, in order where records and examples differ."""
    places = batch.places() if batch.places is not None else np.empty(0, np.int64)
    in_order = np.arange(batch.num_examples) + (places[0] if len(places) else 0)
    return places if len(places) == batch.num_examples else in_order
