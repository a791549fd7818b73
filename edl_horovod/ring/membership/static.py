"""Membership of the ranks that mpirun started: one ring for the whole job (D15)."""

from pathlib import Path

from edl_horovod.errors import EdlError, JobFailed, MissingDependency, how_to_install
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.horovod import Horovod
from edl_horovod.frameworks.world import World
from edl_horovod.job import outcome
from edl_horovod.job.outcome import Failure, Success
from edl_horovod.ring.membership.base import Membership

__all__ = ["StaticMembership"]


class StaticMembership(Membership):
    """Membership of a ring that does not change: if a rank fails, the job fails."""

    def __init__(self, horovod: Horovod, result_file: Path) -> None:
        """Start MPI; `join` forms the ring.

        Args:
            horovod: Forms the ring.
            result_file: File for the job's outcome.

        Raises:
            MissingDependency: Horovod was built without MPI.
        """
        super().__init__(horovod)
        if not horovod.has_mpi():
            raise MissingDependency(
                "launch=mpi needs a Horovod that was built with MPI, and this one was not.",
                hint=f"Use launch=local; or for MPI, {how_to_install('mpi')} and then "
                "python docker/horovod/build_wheel.py --install",
            )
        # The import starts MPI, so it is not at the top of the module.
        from mpi4py import MPI

        self._mpi = MPI
        self._communicator = MPI.COMM_WORLD
        self._has_joined = False
        self._result_file = result_file

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

    def failed(self, failure: CollectiveFailed, step: int) -> None:
        """Do nothing: `join` ends the job."""

    def finished(self, result: Success) -> None:
        """Let the leader write the result."""
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
