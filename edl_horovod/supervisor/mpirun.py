"""The command of a static ring: `mpirun` and a worker for each rank."""

from collections.abc import Mapping

from edl_horovod.supervisor.plan import Command

__all__ = ["STATIC_RING", "mpirun"]

STATIC_RING = {
    "EDL_MEMBERSHIP": "static",
    "HOROVOD_CONTROLLER": "mpi",
    "HOROVOD_CPU_OPERATIONS": "mpi",
}
"""What tells a worker that `mpirun` deals the ranks, once and for all."""


def mpirun(
    worker: tuple[str, ...],
    *,
    num_ranks: int,
    variables: Mapping[str, str],
    flags: tuple[str, ...] = (),
    program: str = "mpirun",
) -> Command:
    """The command that starts all ranks."""
    argv = (program, "-np", str(num_ranks), *flags, *worker)
    return Command(argv=argv, environment={**variables, **STATIC_RING})
