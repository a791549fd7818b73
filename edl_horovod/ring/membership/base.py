"""How a rank learns its ring: what the coordinator, horovodrun and mpirun have in common.

The ranks that mpirun started need no more than this: they form one ring for the whole job (D15).
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from edl_horovod.errors import EdlError, JobFailed, MissingDependency, how_to_install
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.horovod import Horovod
from edl_horovod.frameworks.world import World
from edl_horovod.job import outcome
from edl_horovod.job.account import Cause
from edl_horovod.job.outcome import Failure, Success
from edl_horovod.ring.activity import Activity

EXIT_AT_SIGTERM = 143


class Dismissed(Exception):
    """This worker is no longer wanted, or the job is over."""

    def __init__(self, reason: str, *, is_final: bool = True, has_state: bool = False) -> None:
        """Describe the dismissal.

        Args:
            reason: For people.
            is_final: Whether no other process is needed in its place: the job is over, or the
                place is given up.
            has_state: Whether this worker must save the job's state: no ring trains, and the
                coordinator has chosen it among the workers that have the state.
        """
        super().__init__(reason)
        self.is_final = is_final
        self.has_state = has_state


class Membership(ABC):
    """A rank's membership of rings.

    A change of the ring is a state that is asked for before each step, not an event, so it cannot
    be missed (D10).
    """

    def __init__(self, horovod: Horovod) -> None:
        self._horovod = horovod
        self._generation = 0
        """The last ring in which this rank got a place."""
        self.activity = Activity()
        """What this rank is doing, and the account of its time."""

    expect: Callable[[World, int], None] = staticmethod(lambda world, step: None)
    """Called before a ring forms, with this rank's place in it and the step at which it probably
    begins."""

    @abstractmethod
    def join(self, step: int) -> World:
        """Wait for this rank's place in the next ring and form it.

        Args:
            step: Steps of the job in this rank's state; -1 for a newcomer.

        Raises:
            Dismissed: This rank will not get a place again.
            CollectiveFailed: The ring did not form. Report that with `failed`, and join again.
        """

    def formed(self, world: World, *, has_state: bool = True) -> None:
        """Report that this rank is in the ring, and whether it has the ring's state.

        A rank without the state receives it while the ring trains, and then reports again.
        """

    @property
    def own_name(self) -> str:
        """What this rank is called, if the ranks themselves write down who is in their ring."""
        return ""

    def agree(self, generation: int) -> None:
        """Take the number of the ring from its ranks, if they themselves write it down."""
        self._generation = generation

    def can_stream_state(self) -> bool:
        """Whether ranks with the state stay in the ring until the others have received it."""
        return False

    @abstractmethod
    def wants_change(self) -> bool:
        """Whether this rank knows that its ring must be replaced; asked before each step."""

    def failed(self, failure: CollectiveFailed) -> None:
        """Report why the ring broke, before joining the next one."""
        self.activity.leave_trace(str(failure), self._generation)

    def doing(
        self,
        state: str,
        phase: str,
        cause: Cause | None = None,
        is_waiting: Callable[[], bool] | None = None,
    ) -> AbstractContextManager[None]:
        """Record what this rank does within a block, so that a hang can be found.

        After the block it does again what it did before. Costs some microseconds.

        Args:
            state: `works` (the others wait for it), `waits` (in a collective), or `unwatched` (may
                take any time).
            phase: The same for people.
            cause: What the block's time is spent on; None for the same as before.
            is_waiting: Called by another thread at intervals: whether a rank that `works` has
                reached the step's collective and waits there.
        """
        return self.activity.doing(state, phase, cause, is_waiting)

    def progress(self, step: int) -> None:
        """Report how many steps are done; reports within a second of another one are dropped."""

    def finished(self, result: Success) -> None:
        """Report that the job is done; every rank does so."""

    def report_error(self, error: EdlError) -> None:
        """Report that the job cannot continue."""

    def leave_soon(self) -> None:
        """Ask to be left out of the next ring, then end; without a coordinator, end now."""
        os._exit(EXIT_AT_SIGTERM)

    def close(self) -> None:
        """Leave the ring and release everything."""
        self._horovod.leave()


class StaticMembership(Membership):
    """Membership of a ring that does not change: if a rank fails, the job fails."""

    def __init__(self, horovod: Horovod, name: str, result_file: Path) -> None:
        """Start MPI; `join` forms the ring.

        Args:
            horovod: Forms the ring.
            name: Host and slot of this rank.
            result_file: File for the job's outcome.

        Raises:
            MissingDependency: Horovod was built without MPI.
        """
        super().__init__(horovod)
        if not horovod.has_mpi():
            raise MissingDependency(
                "launch=mpi needs a Horovod that was built with MPI, and this one was not.",
                hint=f"Use launch=local; or for MPI, {how_to_install('mpi')} and then"
                " edl setup-horovod",
            )
        # The import starts MPI, so it is not at the top of the module.
        from mpi4py import MPI

        self._mpi = MPI
        self._communicator = MPI.COMM_WORLD
        self._name = name
        self._has_joined = False
        self._result_file = result_file

    @property
    def own_name(self) -> str:
        """Host and slot: mpirun does not say where it started which rank."""
        return self._name

    def join(self, step: int) -> World:
        """Form the one ring."""
        if self._has_joined:
            raise JobFailed(
                f"A rank of a static ring (launch=mpi) was lost after step {step}; such a ring "
                "cannot form again.",
                hint="Start the job again, or use an elastic launch.",
            )
        self._has_joined = True
        return self._horovod.form_inherited(self._communicator)

    def wants_change(self) -> bool:
        """A static ring never changes."""
        return False

    def finished(self, result: Success) -> None:
        """Write the result, on the leader."""
        if self._communicator.Get_rank() == 0:
            outcome.save(self._result_file, result)

    def report_error(self, error: EdlError) -> None:
        """Write the failure, and end the other ranks, which may wait in a collective."""
        outcome.save(self._result_file, Failure.of(error))
        self._communicator.Abort(error.exit_code)

    def close(self) -> None:
        """Leave the ring and end MPI: a rank that ends without that is a failure to mpirun."""
        super().close()
        self._mpi.Finalize()
