"""A factor of the loss with which float16 can hold its gradients, the same on all ranks.

What float16 could not hold shows in the ring's sums, which all ranks have alike; so all of them
leave the same step out and go on with the same factor.
"""

import numpy as np

from edl_horovod.frameworks.values import Array

__all__ = ["LossScale"]

_FIRST, _GROWTH_STEPS = 2.0**16, 2000


class LossScale:
    """It halves where a gradient is not finite, and doubles after many steps in which all were."""

    def __init__(self) -> None:
        """Begin as `torch.amp.GradScaler` does."""
        self.variable = Array(np.array([_FIRST, 0.0]))
        """The factor, and the steps since it changed; for the ring's state."""

    @property
    def factor(self) -> float:
        """The present factor."""
        return float(self.variable.numpy()[0])

    @property
    def is_least(self) -> bool:
        """Whether it cannot be halved once more."""
        return self.factor <= 1.0

    def note(self, *, is_finite: bool) -> None:
        """Take note of a step's gradients."""
        factor, num_steps = self.variable.numpy().tolist()
        if not is_finite:
            self.variable.assign([max(1.0, factor / 2), 0.0])
        elif num_steps + 1 == _GROWTH_STEPS:
            self.variable.assign([factor * 2, 0.0])
        else:
            self.variable.assign([factor, num_steps + 1])
