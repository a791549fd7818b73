"""The linear scaling rule: a batch n times as large takes a learning rate n times as high.

Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, sections 2.1 (the
rule) and 2.2 (gradual warm-up). The spec's learning rate is that of one rank's batch, so a ring of
n ranks takes n times as much; that is what users of plain Horovod write as `lr * hvd.size()`.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from edl_horovod.frameworks.base import Step
from edl_horovod.frameworks.values import Array, Variable

__all__ = ["ConstantLearningRate", "LearningRateRule"]


class ConstantLearningRate:
    """Stands for the rule where the batch does not grow with the ring: the rate is the spec's."""

    variables: Mapping[str, Variable] = MappingProxyType({})

    def enter(self, size: int, step: int) -> None:
        """Do nothing."""

    def apply(self, step: Step, number: int) -> None:
        """Do nothing."""


class LearningRateRule:
    """The factor of the learning rate, the same on all ranks: it is in the ring's state.

    After the ring has grown the factor goes up in equal parts over some steps, as large steps from
    the start would throw the weights about; after it has shrunk it goes down at once.
    """

    def __init__(self, *, warmup_steps: int) -> None:
        """Begin with the learning rate of one rank."""
        self._warmup_steps = warmup_steps
        # The factor when the ring was last changed, the step at which it was, and its size since.
        self._state = Array(np.array([1.0, 0.0, 1.0]))

    @property
    def variables(self) -> Mapping[str, Variable]:
        """What the ring's state must hold, by name."""
        return {"learning_rate_rule": self._state}

    def enter(self, size: int, step: int) -> None:
        """Go on with a ring; all ranks do, before the step."""
        if size != self._state.numpy()[2]:
            self._state.assign([min(self.factor(step), float(size)), float(step), float(size)])

    def apply(self, step: Step, number: int) -> None:
        """Give a step, which is about to run, the factor of its number."""
        step.scale_learning_rate(self.factor(number))

    def factor(self, step: int) -> float:
        """The factor of a step since the last change."""
        before, since, size = self._state.numpy().tolist()
        if step >= since + self._warmup_steps:
            return float(size)
        return float(before + (size - before) * (step - since) / self._warmup_steps)
