"""What every rank of a ring must agree on: variables and how far they are (D7)."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edl_horovod.frameworks.base import Collectives, Variable

__all__ = ["NEVER", "Counters", "Durable", "RingState"]

NEVER = -1


@dataclass
class Counters:
    """How far a rank is; a task adds its own numbers.

    Compared in the order of the fields, they say which of two ranks is the more advanced.
    """

    step: int = NEVER
    """Steps of the job that are done; -1 before the first sync."""


class Durable(Protocol):
    """Where a state is kept that outlives all ranks."""

    def newest_step(self) -> int:
        """Step of the newest state there; -1 for none."""

    def load(self, after: int) -> Mapping[str, int] | None:
        """Give the variables the newest good state, if its step is after this one.

        Returns:
            Its counters, by name; None where there is none.
        """


class RingState:
    """A job's variables and counters, which all ranks of its ring have alike.

    Variables change only after a step's collectives have succeeded on this rank, and then all of
    them at once. So a rank's state is always that of a whole step, and a failed step leaves nothing
    to undo. What is not listed here is lost when a rank is replaced.
    """

    def __init__(
        self,
        variables: Mapping[str, Variable],
        counters: Counters,
        collectives: Collectives,
        *,
        durable: Durable | None = None,
    ) -> None:
        """Start as a rank that knows nothing yet.

        Args:
            variables: All that changes while the job runs; same names, order, shapes and types on
                all ranks.
            counters: How far this rank is; the task counts in them, and a sync sets them.
            collectives: Of the ring.
            durable: Holds the state of a job all of whose ranks were lost; None if nothing does.
        """
        self.variables = dict(variables)
        self.counters = counters
        self._collectives = collectives
        self._durable = durable

    @property
    def step(self) -> int:
        """Steps of the job that are done; -1 before the first sync."""
        return self.counters.step

    def digest(self) -> str:
        """A digest of all variables; the same on ranks whose variables are bit-identical."""
        total = hashlib.blake2b(digest_size=16)
        for variable in self.variables.values():
            total.update(np.ascontiguousarray(variable.numpy()).data)
        return total.hexdigest()

    def commit(self) -> None:
        """Mark a step as done."""
        self.counters.step += 1

    def recover(self) -> None:
        """Take up what is saved durably, where that is ahead of this rank.

        Raises:
            ConfigError: What is saved is of another data set or plan.
            DataError: What is saved is of another model.
        """
        saved = self._durable.load(after=self.step) if self._durable is not None else None
        if saved is not None:
            self._set_counters({name: saved.get(name, NEVER) for name in vars(self.counters)})

    def begin_alone(self) -> None:
        """Do what `sync` does, in a ring of one."""
        self.recover()
        self._begin()

    def sync(self) -> None:
        """Give all ranks the state of the most advanced one; a completed step is never rolled back.

        All ranks call it at the same points: once after each forming of the ring, and where the
        leader alone went on between two steps.

        Raises:
            CollectiveFailed: A member was lost meanwhile; form the ring again.
        """
        counters, saved_steps = self._gather()
        # The same rows on all ranks, so all go this way or none. It is for a ring whose members
        # waited outside while those who trained, and saved, were lost.
        if saved_steps.max() > counters[:, 0].max():
            self.recover()
            counters, _ = self._gather()
        rows = counters.tolist()
        root = max(range(len(rows)), key=lambda rank: (*rows[rank], -rank))
        self._collectives.broadcast(list(self.variables.values()), root, "edl.sync")
        self._set_counters(dict(zip(vars(self.counters), rows[root], strict=True)))
        self._begin()

    def _gather(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The counters of all ranks, one row each, and the newest saved step that each sees."""
        newest = self._durable.newest_step() if self._durable is not None else NEVER
        row = [*vars(self.counters).values(), newest]
        rows = self._collectives.gather_rows(row, "edl.sync.steps")
        return rows[:, :-1], rows[:, -1]

    def _set_counters(self, values: Mapping[str, int]) -> None:
        for name, value in values.items():
            setattr(self.counters, name, value)

    def _begin(self) -> None:
        self.counters.step = max(self.counters.step, 0)
