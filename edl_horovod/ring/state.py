"""What every rank of a ring must agree on: variables and the step number (D7)."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from horovod.common.elastic import State

from edl_horovod.frameworks.keras.collectives import allgather_rows, broadcast_values

__all__ = ["Durable", "RingState"]

NEVER = -1
COUNTERS = ("step", "evaluated_step", "calls")
"""In this order they say which of two ranks is the more advanced."""


class Durable(Protocol):
    """Where a state is kept that outlives all ranks."""

    def newest_step(self) -> int:
        """Step of the newest state there; -1 for none."""

    def load(self, after: int) -> Mapping[str, int] | None:
        """Give the variables the newest good state, if its step is after this one.

        Returns:
            Its counters, by name; None where there is none.
        """


class RingState(State):  # type: ignore[misc]  # Horovod ships no types.
    """Variables and counters, with Horovod's commit / restore / sync.

    Variables change only after a step's one collective has succeeded on this rank, and then all of
    them at once. So a rank's state is always that of a whole step: `commit` has nothing to copy and
    `restore` nothing to put back. What is not listed here is lost when a rank is replaced.
    """

    def __init__(self, variables: Sequence[tf.Variable], *, durable: Durable | None = None) -> None:
        """Start as a rank that knows nothing yet.

        Args:
            variables: All that changes while the job runs; same order, shapes and types on all
            ranks.
            durable: Holds the state of a job all of whose ranks were lost; None if nothing does.
        """
        super().__init__(bcast_object=None, get_rank=None)
        self._variables = list(variables)
        self._durable = durable
        self.step = NEVER
        """Steps of the job that are done; -1 before the first sync."""
        self.evaluated_step = NEVER
        """Step at which the last evaluation was made; -1 for none."""
        self.calls = NEVER
        """How far the user's callbacks were called; see `TrainWork`."""

    @property
    def counters(self) -> dict[str, int]:
        """All numbers of the state, by name."""
        return {name: getattr(self, name) for name in COUNTERS}

    def digest(self) -> str:
        """Of all variables; the same on ranks whose variables are bit-identical."""
        total = hashlib.blake2b(digest_size=16)
        for variable in self._variables:
            total.update(np.ascontiguousarray(variable.numpy()).data)
        return total.hexdigest()

    def commit(self) -> None:
        """Mark a step as done. Membership travels in the step's collective, not here."""
        self.step += 1

    def save(self) -> None:
        """Keep what a failed step could touch: nothing (see the class)."""

    def restore(self) -> None:
        """Undo what a failed step touched: nothing (see the class)."""

    def recover(self) -> None:
        """Take up what is saved durably, where that is ahead of this rank.

        Raises:
            ConfigError: What is saved is of another data set or plan.
            DataError: What is saved is of another model.
        """
        saved = self._durable.load(after=self.step) if self._durable is not None else None
        if saved is not None:
            self._set_counters([saved.get(name, NEVER) for name in COUNTERS])

    def begin_alone(self) -> None:
        """What `sync` is for a ring of one."""
        self.recover()
        self.step = max(self.step, 0)

    def sync(self) -> None:
        """Give all ranks the state of the most advanced one; a completed step is never rolled back.

        All ranks call it at the same points: once after each forming of the ring, and where the
        leader alone went on between two steps.

        Raises:
            CollectiveFailed: A member was lost meanwhile; form the ring again.
        """
        rows = self._gather()
        # The same rows on all ranks, so all go this way or none. It is for a ring whose members
        # waited outside while those who trained, and saved, were lost.
        if rows[:, -1].max() > rows[:, 0].max():
            self.recover()
            rows = self._gather()
        root = max(range(len(rows)), key=lambda rank: (*rows[rank, :-1].tolist(), -rank))
        values = [tf.convert_to_tensor(variable) for variable in self._variables]
        for variable, value in zip(
            self._variables, broadcast_values(values, root, "edl.sync"), strict=True
        ):
            variable.assign(value)
        self._set_counters(rows[root, :-1].tolist())
        self.step = max(self.step, 0)

    def _gather(self) -> np.ndarray:
        newest = self._durable.newest_step() if self._durable is not None else NEVER
        return allgather_rows([*self.counters.values(), newest], "edl.sync.steps")

    def _set_counters(self, values: Sequence[int]) -> None:
        for name, value in zip(COUNTERS, values, strict=True):
            setattr(self, name, value)

    def on_hosts_updated(self, timestamp: Any, update_res: Any) -> None:
        """Horovod's own notification; `ring.membership` listens to it instead."""
