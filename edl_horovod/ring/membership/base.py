"""How a rank learns its ring: one interface to the coordinator, horovodrun and MPI."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edl_horovod.errors import EdlError, JobFailed, MissingDependency, how_to_install, kind_of
from edl_horovod.files.whole_file import write_json
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.horovod import Horovod
from edl_horovod.ring.world import World

__all__ = ["Dismissed", "Membership", "StaticMembership"]


EXIT_AT_SIGTERM = 143


class Dismissed(Exception):
    """This worker is no longer wanted, or the job is over."""

    def __init__(self, reason: str, *, is_final: bool = True, has_state: bool = False) -> None:
        """Say why.

        Args:
            reason: For people.
            is_final: Whether another process in its place would be of no use either: the job is
                over, or the place is to be left.
            has_state: Whether it is the one of all workers that has the job's state and must keep
                it, as far as the coordinator knows: no ring trains.
        """
        super().__init__(reason)
        self.is_final = is_final
        self.has_state = has_state


class Membership(ABC):
    """A rank's source of rings. A change is a level, asked each step: none is missed (D10)."""

    def __init__(self, horovod: Horovod) -> None:
        """Take what forms and leaves rings."""
        self._horovod = horovod

    expect: Callable[[World, int], None] = staticmethod(lambda world, step: None)
    """Called with this rank's next place, and with the step that its ring is likely to begin at,
    before the ring is formed."""

    @abstractmethod
    def join(self, step: int) -> World:
        """Wait for this rank's place in the next ring and form it.

        Args:
            step: Steps of the job that this rank has; -1 for a newcomer.

        Raises:
            Dismissed: There will be no place any more.
            CollectiveFailed: The ring could not be formed; report it with `failed` and join again.
        """

    def formed(self, world: World) -> None:
        """Say that this rank is in the ring and has the ring's state."""

    @abstractmethod
    def wants_change(self) -> bool:
        """Whether this rank knows that its ring is to be replaced; asked before each step."""

    @abstractmethod
    def failed(self, failure: CollectiveFailed, step: int) -> None:
        """Say that the ring broke, at which step, before joining the next one."""

    def doing(self, state: str, what: str, *, has_come: Callable[[], bool] | None = None) -> None:
        """Say what this rank does from now on, for who looks for ranks that hang; costs nothing.

        Args:
            state: `works` (the others wait for it), `waits` (in a collective), `joins`, or
            `unwatched` (may take any time).
            what: The same for people.
            has_come: Asked from another thread, now and then, whether a rank that works has come
                to the step's collective and so waits.
        """

    def progress(self, step: int) -> None:
        """Say which step is done; at most about once a second."""

    def finished(self, result: dict[str, Any]) -> None:
        """Say that the job is done; every rank does."""

    def report_error(self, error: EdlError) -> None:
        """Say that the job cannot go on."""

    def leave_soon(self) -> None:
        """Ask to be left out of the next ring, then end; without a coordinator, end now."""
        os._exit(EXIT_AT_SIGTERM)

    def close(self) -> None:
        """Leave the ring and let go of everything."""
        self._horovod.leave()


class StaticMembership(Membership):
    """One ring for the whole job, under mpirun: no changes, and a failure is the job's (D15)."""

    def __init__(self, horovod: Horovod, result: Path) -> None:
        """Take the MPI communicator of all ranks that mpirun started.

        Args:
            horovod: Forms the ring.
            result: File that tells the launcher how the job ended.
        """
        super().__init__(horovod)
        if not horovod.has_mpi():
            raise MissingDependency(
                "launch=mpi needs a Horovod that was built with MPI, and this one was not. Use "
                f"launch=local; or for MPI, {how_to_install('mpi')} and then "
                "python docker/horovod/build_wheel.py --install"
            )
        # The import starts MPI, so it stands where it is wanted and not at the module's head.
        from mpi4py import MPI

        self._mpi = MPI
        self._communicator = MPI.COMM_WORLD
        self._has_joined = False
        self._result = result

    def join(self, step: int) -> World:
        """Form the one ring."""
        if self._has_joined:
            raise JobFailed(
                f"A rank of a static ring (launch=mpi) was lost after step {step}; such a ring "
                "cannot form again. Start the job anew, or use an elastic launch."
            )
        self._has_joined = True
        return self._horovod.form_inherited(self._communicator)

    def wants_change(self) -> bool:
        """Never."""
        return False

    def failed(self, failure: CollectiveFailed, step: int) -> None:
        """Nothing to tell: `join` ends the job."""

    def finished(self, result: dict[str, Any]) -> None:
        """The leader tells the launcher."""
        if self._communicator.Get_rank() == 0:
            write_json(self._result, {"state": "finished", **result})

    def report_error(self, error: EdlError) -> None:
        """Tell the launcher, and end the other ranks, which may wait in a collective."""
        described = {"error": kind_of(error), "message": str(error)}
        write_json(self._result, {"state": "failed", **described})
        self._communicator.Abort(error.exit_code)

    def close(self) -> None:
        """Leave the ring and end MPI: a rank that ends without that is a failure to mpirun."""
        super().close()
        self._mpi.Finalize()
