"""Loss scaling: a factor with which gradients fit in float16, the same on all ranks.

Overflows are detected in the reduced gradients, which are the same on all ranks; so all ranks skip
the same steps and continue with the same factor.
"""

import numpy as np

from edl_horovod.frameworks.values import Array

__all__ = ["LossScale"]

_INITIAL_FACTOR, _GROWTH_STEPS = 2.0**16, 2000


class LossScale:
    """Halves the factor after a gradient that is not finite; doubles it after many finite steps."""

    def __init__(self) -> None:
        """Start with the same factor as `torch.amp.GradScaler`."""
        self.variable = Array(np.array([_INITIAL_FACTOR, 0.0]))
        """The factor, and the number of steps since it changed; part of the ring's state."""

    @property
    def factor(self) -> float:
        """The current factor."""
        return float(self.variable.numpy()[0])

    @property
    def is_least(self) -> bool:
        """Whether the factor is at its minimum."""
        return self.factor <= 1.0

    def update(self, *, is_finite: bool) -> None:
        """Update the factor after a step."""
        factor, num_steps = self.variable.numpy().tolist()
        if not is_finite:
            self.variable.assign([max(1.0, factor / 2), 0.0])
        elif num_steps + 1 == _GROWTH_STEPS:
            self.variable.assign([factor * 2, 0.0])
        else:
            self.variable.assign([factor, num_steps + 1])
