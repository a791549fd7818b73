"""What a launch will start, as a value, and how: decide first, act later."""

import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edl_horovod.config.schema import JobConfig
from edl_horovod.job.directory import JobDir

__all__ = ["STATIC_RING", "Command", "LaunchPlan", "locate", "mpirun", "thread_variables"]

LOCAL_HOST = "localhost"
GRACE_SECONDS = 5.0
STATIC_RING = {
    "EDL_MEMBERSHIP": "static",
    "HOROVOD_CONTROLLER": "mpi",
    "HOROVOD_CPU_OPERATIONS": "mpi",
}
"""What tells a worker that `mpirun` deals the ranks, once and for all."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """One kind of process: its arguments, and what its environment gets beyond the launcher's."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    can_fork: bool = False
    """Whether the program takes `--fork-server`: one process of it forks all others."""
    imports: str = ""
    """What it imports, beside its environment: the same for two commands whose processes may be
    forked from one."""

    def __str__(self) -> str:
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.argv)])


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """The processes that a job's launcher starts beside itself, and where."""

    config: JobConfig
    job_dir: JobDir
    hosts: Mapping[str, int]
    """Host name to slots, as the job starts."""
    coordinator: Command | None = None
    """None where another program deals the places."""
    worker: Command | None = None
    """For one slot of this machine; `EDL_SLOT` is added for each. None if workers are elsewhere."""
    ring: Command | None = None
    """The program that starts all ranks where there is no coordinator: mpirun, horovodrun."""
    discovery: Command | None = None
    """What keeps the hosts file current; None where people do (`edl scale`)."""
    grace_seconds: float = GRACE_SECONDS
    """How long the processes may take to end before they are killed."""
    secret_file: Path | None = None
    """The job's secret where its workers have it already; None makes one in job_dir."""


def thread_variables(count: int) -> dict[str, str]:
    """The environment that bounds the CPU threads of a rank.

    Args:
        count: Threads that compute at once.
    """
    return {
        "TF_NUM_INTRAOP_THREADS": str(count),
        # One more begins ops: the only one follows a chain of ops to the end of the backward pass,
        # while what goes to the network waits in its queue (ADR 15).
        "TF_NUM_INTEROP_THREADS": str(count + 1),
        "OMP_NUM_THREADS": str(count),
    }


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
