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
    """The command that starts all ranks.

    Args:
        worker: The command of one rank.
        num_ranks: The number of ranks.
        variables: Further variables of `mpirun`'s environment.
        flags: Further flags.
        program: Path of `mpirun`.
    """
    argv = (program, "-np", str(num_ranks), *flags, *worker)
    return Command(argv=argv, environment={**variables, **STATIC_RING})
