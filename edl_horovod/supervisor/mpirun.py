"""The command of a static ring, mpirun, and the places of programs of this environment."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from edl_horovod.supervisor.plan import Command

__all__ = ["STATIC_RING", "locate", "mpirun"]

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


def locate(name: str) -> str:
    """The path of a program: beside the running Python, else on PATH; its bare name if nowhere.

    An environment need not be activated to be used, so its programs need not be on PATH.
    """
    beside = str(Path(sys.executable).parent)
    return shutil.which(name, path=beside) or shutil.which(name) or name
