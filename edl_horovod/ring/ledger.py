"""Writes a rank's ledger (`debug.ledger`): which of its records went into which step."""

import time
from collections.abc import Callable

from edl_horovod.frameworks.base import Collectives
from edl_horovod.frameworks.values import StepSums
from edl_horovod.frameworks.world import World
from edl_horovod.ledger import LedgerFile
from edl_horovod.ledger.files import Begin, Done, Give, Leave
from edl_horovod.records.plan import Ids
from edl_horovod.ring.state import NEVER, RingState


class RingLedger:
    """Writes entries about a rank's rings and steps; without a file, that of a job without one."""

    def __init__(self, file: LedgerFile | None, collectives: Collectives) -> None:
        self._file = file
        self._collectives = collectives
        self._ring = 0
        self._own_step = NEVER

    def in_ring(
        self, world: World, state: RingState, work: Callable[[], bool | None], *, records: int
    ) -> bool | None:
        """Do work between the entries of a ring's begin and end; all ranks call it.

        For the ledger, a ring is only the ranks that have the state: the others give no records.

        Args:
            world: The ring.
            state: The ring's state.
            work: Does the work until other ranks have the state, too; returns whether the job is
                done.
            records: Number of records in the steps that are done, over all epochs.

        Raises:
            CollectiveFailed: A member was lost.
        """
        if self._file is None:
            return work()
        self._ring = self._agree(world)
        part = world.among(state.holders(world))
        if part is None:
            return work()
        self._file.write(
            Begin(
                ring=self._ring,
                generation=part.generation,
                rank=part.rank,
                size=part.size,
                step=state.step,
                own_step=self._own_step,
                digest=state.digest(),
                records=records,
            )
        )
        is_over: bool | None = False
        try:
            is_over = work()
        finally:
            self._own_step = state.step
            step, digest = state.step, state.digest()
            self._file.write(
                Leave(ring=self._ring, step=step, digest=digest, is_over=bool(is_over))
            )
        return is_over

    def give(self, step: int, ids: Ids) -> None:
        """Write the records that this rank gives to a step; called before the step's collective."""
        if self._file is not None:
            self._file.write(Give(ring=self._ring, step=step, ids=ids))

    def done(self, step: int, sums: StepSums) -> None:
        """Write that a step is done."""
        if self._file is not None:
            done = Done(ring=self._ring, step=step, examples=sums.num_examples, loss=sums.loss)
            self._file.write(done)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _agree(self, world: World) -> int:
        """Agree on a number for this ring: larger than any before, unlike the generation.

        Generations begin at 1 again at each launch of the job.
        """
        rows = [[time.time_ns(), self._ring]]
        if not world.is_alone:
            # All ranks call it: each has just formed the ring, or seen another get the whole state.
            rows = self._collectives.gather_rows(rows[0], "edl.ledger").tolist()
        return max(rows[0][0], *(latest + 1 for _, latest in rows))
