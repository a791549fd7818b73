"""The plan of a launch: the processes to start, as a value."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edl_horovod.config.schema import JobConfig
from edl_horovod.job.directory import JobDir

LOCAL_HOST = "localhost"
GRACE_SECONDS = 5.0
STATIC_RING = {
    "EDL_MEMBERSHIP": "static",
    "HOROVOD_CONTROLLER": "mpi",
    "HOROVOD_CPU_OPERATIONS": "mpi",
}
"""Variables that tell a worker that `mpirun` assigns the ranks, once for the whole job."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """The command of a process: its arguments, and variables in addition to the launcher's."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    can_fork: bool = False
    """Whether the program has the flag `--fork-server`, so that one process can fork the others."""
    imports: str = ""
    """Identifies its imports. One fork server serves commands with equal imports and variables."""

    def __str__(self) -> str:
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.argv)])


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """The processes that a job's launcher starts."""

    config: JobConfig
    job_dir: JobDir
    hosts: Mapping[str, int]
    """Slots by host name, at the start of the job."""
    coordinator: Command | None = None
    """None if another program assigns the ranks."""
    worker: Command | None = None
    """The worker of a local slot, without `EDL_SLOT`; None if workers run elsewhere."""
    ring: Command | None = None
    """The program that starts all ranks of a job without a coordinator: mpirun, horovodrun."""
    join: str = ""
    """HOST:PORT of the coordinator of another command, which this party's worker joins."""
    discovery: Command | None = None
    """The program that updates the hosts file; None if people do that (`edl scale`)."""
    grace_seconds: float = GRACE_SECONDS
    """How long the processes may take to end before they are killed."""
    secret_file: Path | None = None
    """The job's secret, if its workers have it already; None to create one in job_dir."""
    job_id: str = ""
    """Distinguishes a job without such a secret from others in its directory, for `has_id`; empty
    for one that no other launcher goes on with."""


def thread_variables(count: int) -> dict[str, str]:
    """The variables that limit the CPU threads of a rank.

    Args:
        count: The number of threads that compute concurrently.
    """
    return {
        "TF_NUM_INTRAOP_THREADS": str(count),
        # One more: a single thread would follow one chain of ops to the end of the backward pass,
        # while ops that begin collectives wait in its queue (ADR 15).
        "TF_NUM_INTEROP_THREADS": str(count + 1),
        "OMP_NUM_THREADS": str(count),
    }


def worker_argv(job_dir: JobDir) -> tuple[str, ...]:
    """The command of a local worker."""
    return (sys.executable, "-m", "edl_horovod.worker", "--config", str(job_dir.config))


def local_worker(config: JobConfig, job_dir: JobDir, variables: Mapping[str, str]) -> Command:
    """The worker of a local slot, with variables that tell how to reach the coordinator."""
    own_variables = threads_of(config)
    if config.federated.privacy.clip:
        # oneDNN in TensorFlow 2.21 corrupts memory in products like (batch, 1, 8, 4) by (4, 2), of
        # which gradients of single examples are made:
        # https://github.com/tensorflow/tensorflow/issues/117700
        # TODO(edl_horovod): remove when the least TensorFlow has the fix.
        own_variables["TF_ENABLE_ONEDNN_OPTS"] = "0"
    return Command(
        argv=worker_argv(job_dir),
        environment={**own_variables, **variables},
        can_fork=True,
        imports=f"{config.framework}, buckets of {config.train.bucket_bytes} bytes",
    )


def threads_of(config: JobConfig) -> dict[str, str]:
    """Variables that limit a rank's CPU threads: by default the ranks share the cores equally."""
    share = max(1, len(os.sched_getaffinity(0)) // config.launch.np)
    return thread_variables(config.launch.threads_per_rank or share)


def mpirun(
    worker: tuple[str, ...],
    *,
    num_ranks: int,
    variables: Mapping[str, str],
    flags: tuple[str, ...] = (),
    program: str = "mpirun",
) -> Command:
    """The command that starts all ranks of a static ring."""
    argv = (program, "-np", str(num_ranks), *flags, *worker)
    return Command(argv=argv, environment={**variables, **STATIC_RING})


def locate(name: str) -> str:
    """Find a program beside the running Python, else on PATH; returns its bare name if not found.

    The programs of a virtual environment that is used without activation are not on PATH.
    """
    beside = str(Path(sys.executable).parent)
    return shutil.which(name, path=beside) or shutil.which(name) or name
