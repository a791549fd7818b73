"""What every rank of a ring must agree on: variables and how far they are (D7)."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edl_horovod.frameworks.base import Collectives, Variable
from edl_horovod.frameworks.world import World

__all__ = ["NEVER", "Counters", "Durable", "RingState", "StateLost"]

NEVER = -1
_TORN = -2
"""In place of the steps of a rank whose variables are partly its own and partly another's."""


class StateLost(Exception):
    """No rank of the ring has a whole state, not even the one that a job begins with."""


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
        self._is_saved = False
        """Whether the variables are just as they were read from where states are kept durably."""

    @property
    def step(self) -> int:
        """Steps of the job that are done; -1 before the first sync, less where one was broken."""
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
        self._is_saved = False

    def recover(self) -> None:
        """Take up what is saved durably, where that is ahead of this rank.

        Raises:
            ConfigError: What is saved is of another data set or plan.
            DataError: What is saved is of another model.
        """
        after = max(NEVER, self.step)
        saved = self._durable.load(after=after) if self._durable is not None else None
        if saved is not None:
            self._set_counters({name: saved.get(name, NEVER) for name in vars(self.counters)})
            self._is_saved = True

    def begin_alone(self) -> None:
        """Do what `sync` does, in a ring of one."""
        self.recover()
        self._require_whole(self.step)
        self._begin()

    def sync(self, world: World) -> None:
        """Give all ranks the state of the most advanced one; a completed step is never rolled back.

        All ranks call it at the same points: once after each forming of the ring, and where the
        leader alone went on between two steps.

        Variables are copied one after the other, so that no rank needs room for a second state, and
        what is equal already is not copied. The source's state stays whole whatever happens, and so
        does one that might be the last: of a rank which has done steps that are not saved, or the
        one that a job begins with. Such a rank takes all that has come at once. Any other has no
        state until the end.

        Raises:
            CollectiveFailed: A member was lost meanwhile; form the ring again.
        """
        rows, saved_steps = self._gather()
        # The same rows on all ranks, so all go this way or none. It is for a ring whose members
        # waited outside while those who trained, and saved, were lost.
        if saved_steps.max() > max(row[0] for row in rows):
            self.recover()
            rows, _ = self._gather()
        root = max(range(len(rows)), key=lambda rank: (*rows[rank], -rank))
        self._require_whole(rows[root][0])
        variables = list(self.variables.values())
        if all(row[0] == rows[root][0] for row in rows):
            variables = self._differing(variables, root)
        is_behind = rows[world.rank] != rows[root]
        has_own = self.step > NEVER and not self._is_saved
        if is_behind and not has_own:
            self._set_counters({**dict.fromkeys(vars(self.counters), NEVER), "step": _TORN})
        # What a job begins with is whole, too, although no step is done.
        is_first = rows[root][0] == NEVER
        may_be_last = is_first or (is_behind and has_own)
        if variables:
            self._copy(variables, root, at_once=may_be_last and world.rank != root)
        self._set_counters(dict(zip(vars(self.counters), rows[root], strict=True)))
        self._is_saved = self._is_saved and not is_behind
        self._begin()

    def _require_whole(self, step: int) -> None:
        if step <= _TORN:
            raise StateLost("the ring's state was lost while it was copied, and nothing is saved")

    def _differing(self, variables: Sequence[Variable], root: int) -> list[Variable]:
        """Those of which some rank has another value than the root, the same on all ranks.

        Ranks that did the same steps have the same bits if they compute alike. They need not: a sum
        over a tensor depends on the number of threads, and some functions on the processor.
        """
        if not variables:
            return []
        sums = [self._collectives.checksum(variable) for variable in variables]
        table = self._collectives.gather_rows(sums, "edl.sync.checksums")
        differs = (table != table[root]).any(axis=0).tolist()
        return [each for each, is_other in zip(variables, differs, strict=True) if is_other]

    def _copy(self, variables: Sequence[Variable], root: int, *, at_once: bool) -> None:
        """Take variables from the root; `at_once` changes none of them before all have come."""
        taking = self._collectives.blank_like(variables) if at_once else variables
        self._collectives.broadcast(taking, root, "edl.sync")
        if at_once:
            for variable, taken in zip(variables, taking, strict=True):
                variable.assign(taken.numpy())

    def _gather(self) -> tuple[list[list[int]], NDArray[np.int64]]:
        """The counters of all ranks, one row each, and the newest saved step that each sees."""
        newest = self._durable.newest_step() if self._durable is not None else NEVER
        row = [*vars(self.counters).values(), newest]
        rows = self._collectives.gather_rows(row, "edl.sync.steps")
        return rows[:, :-1].tolist(), rows[:, -1]

    def _set_counters(self, values: Mapping[str, int]) -> None:
        for name, value in values.items():
            setattr(self.counters, name, value)

    def _begin(self) -> None:
        self.counters.step = max(self.counters.step, 0)
