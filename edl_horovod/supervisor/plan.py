"""What a launch will start, as a value: decide first, act later."""

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edl_horovod.config.schema import JobConfig
from edl_horovod.coordinator import ring_size
from edl_horovod.coordinator.decide import num_workers
from edl_horovod.errors import ConfigError
from edl_horovod.job.places import with_job_dir
from edl_horovod.models import git_zoo
from edl_horovod.supervisor.programs import locate

__all__ = [
    "Command",
    "LaunchPlan",
    "check_is_here",
    "describe",
    "make_plan",
]

LOCAL_HOST = "localhost"
LOCAL_ADDRESS = "127.0.0.1"
GRACE_SECONDS = 5.0
THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class Command:
    """One kind of process: its arguments, and what its environment gets beyond the launcher's."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    can_fork: bool = False
    """Whether the program takes `--fork-server`: one process of it forks all others."""

    def __str__(self) -> str:
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.argv)])


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """The processes that a job's launcher starts beside itself, and where."""

    config: JobConfig
    job_dir: Path
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


def check_is_here(config: JobConfig) -> None:
    """Refuse a job of a cluster where one of this machine is wanted.

    Args:
        config: The job, resolved.

    Raises:
        ConfigError: It is one.
    """
    if config.launch.kind == "kubernetes":
        raise ConfigError(
            "A job on Kubernetes is submitted; it cannot be a part of something that runs here. "
            "Received: launch.kind=kubernetes. Use launch=local, or submit jobs one by one."
        )


def make_plan(config: JobConfig) -> LaunchPlan:
    """Decide what to start.

    Args:
        config: The job, resolved.

    Raises:
        ConfigError: More ranks are asked for than there are lanes, or not on this machine.
    """
    check_is_here(config)
    config = with_job_dir(config)
    ring_size.check_start(config)
    job_dir = Path(config.job_dir)
    threads = str(config.launch.threads_per_rank or _fair_share(config.launch.np))
    shared = dict.fromkeys(THREAD_VARIABLES, threads)
    worker = (sys.executable, "-m", "edl_horovod.worker", "--config", str(job_dir / "config.yaml"))
    if config.launch.kind == "mpi":
        return LaunchPlan(
            config=config,
            job_dir=job_dir,
            hosts={LOCAL_HOST: config.launch.np},
            ring=_mpirun(config.launch.np, worker, shared),
        )
    coordinator = (sys.executable, "-m", "edl_horovod.coordinator", "--job-dir", str(job_dir))
    return LaunchPlan(
        config=config,
        job_dir=job_dir,
        hosts={LOCAL_HOST: config.launch.np},
        coordinator=Command(argv=(*coordinator, "--address", LOCAL_ADDRESS)),
        worker=Command(
            argv=worker,
            environment={
                **shared,
                "EDL_HOST": LOCAL_HOST,
                "EDL_SECRET_FILE": str(job_dir / "secret"),
                "HOROVOD_GLOO_IFACE": "lo",
            },
            can_fork=True,
        ),
    )


def describe(config: JobConfig) -> str:
    """The plan for people: what would be started, and where."""
    plan = make_plan(config)
    lines = [f"job directory: {plan.job_dir}"]
    if config.task == "train" and (zoo := git_zoo.parse(config.model_zoo)) is not None:
        lines.append(f"model zoo: would fetch {zoo} into {git_zoo.cache()}")
    if plan.worker is not None:
        num = num_workers(config.launch.np, config.elastic.spares)
        lines += [f"coordinator: {plan.coordinator}", f"{num} workers: {plan.worker}"]
    else:
        lines += [f"static ring: {plan.ring}"]
    return "\n".join(lines)


def _mpirun(num_ranks: int, worker: tuple[str, ...], shared: Mapping[str, str]) -> Command:
    environment = {**shared, "EDL_MEMBERSHIP": "static", "HOROVOD_CONTROLLER": "mpi"}
    environment["HOROVOD_CPU_OPERATIONS"] = "mpi"
    if os.geteuid() == 0:
        # Open MPI refuses root unless told twice; in a container everybody is root.
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    mpirun = (locate("mpirun"), "-np", str(num_ranks), "--oversubscribe", "--bind-to", "none")
    return Command(argv=(*mpirun, *worker), environment=environment)


def _fair_share(num_ranks: int) -> int:
    return max(1, len(os.sched_getaffinity(0)) // num_ranks)
