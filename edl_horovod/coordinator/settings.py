"""What a coordinator must know of its job."""

from dataclasses import dataclass, field
from pathlib import Path

from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import TASKS
from edl_horovod.coordinator.ring_size import largest_ring
from edl_horovod.coordinator.timings import Timings
from edl_horovod.job.directory import JobDir

__all__ = ["CoordinatorSettings", "settings_of"]


@dataclass(frozen=True, kw_only=True)
class CoordinatorSettings:
    """The facts of one job that its coordinator decides by."""

    job_dir: JobDir
    address: str
    """Address that the workers can reach; also the rendezvous'."""
    port: int
    """Where the workers call; 0 takes any, and the same again after a restart."""
    secret: bytes
    num_start: int
    """Ranks that the first ring waits for, for a while."""
    min_np: int
    max_np: int
    autoscale_efficiency: float | None = None
    """Least share of a rank that an added one must bring; None where all are taken in."""
    ring_bound: int
    """No ring can be larger, also not for a moment."""
    spares: int
    """Warm workers of a host beyond its slots."""
    wait_seconds: float
    forming_seconds: float
    stall_seconds: float
    timings: Timings = field(default_factory=Timings)


def settings_of(
    config: JobConfig, job_dir: JobDir, *, address: str, port: int, secret_file: Path
) -> CoordinatorSettings:
    """A job's settings, as far as its coordinator needs them."""
    elastic = config.elastic
    return CoordinatorSettings(
        job_dir=job_dir,
        address=address,
        port=port,
        secret=secret_file.read_bytes(),
        num_start=config.launch.np,
        min_np=elastic.min_np,
        max_np=largest_ring(config),
        ring_bound=TASKS[config.task].largest_ring(config),
        autoscale_efficiency=elastic.autoscale_efficiency if elastic.autoscale else None,
        spares=elastic.spares,
        wait_seconds=elastic.wait_seconds,
        forming_seconds=elastic.forming_seconds,
        stall_seconds=elastic.stall_seconds,
    )
