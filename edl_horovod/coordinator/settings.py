"""The facts about its job that a coordinator decides by, and how long it waits for each event."""

from dataclasses import dataclass, field

from edl_horovod.config.schema import ElasticConfig
from edl_horovod.job.directory import JobDir

__all__ = ["CoordinatorSettings", "Timings"]


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Seconds that are the same for all jobs; tests use shorter ones."""

    hosts_poll_seconds: float = 0.1
    events_poll_seconds: float = 0.5
    first_ring_seconds: float = 30.0
    """How long the first ring waits for all workers that were asked for."""
    return_seconds: float = 1.0
    """How long a ring that is lost as a whole may take to call again."""
    goodbye_seconds: float = 5.0
    """How long workers may take to go when the job is over."""
    fellow_seconds: float = 5.0
    """How long a coordinator that must end waits to see whether its workers must end as well."""
    hello_seconds: float = 5.0
    """How long a connection may take to prove that it belongs to the job."""
    ping_seconds: float = 2.0
    silence_seconds: float = 10.0
    """Silence after which a worker is not invited into a ring."""
    dead_seconds: float = 30.0
    """Silence after which a worker is taken for stopped, and its launcher kills it."""
    sign_of_life_seconds: float = 1.0
    """How long a worker may take to answer before a ring forms."""
    forming_ping_seconds: float = 0.5
    """Between two pings while a ring forms."""
    forming_margin_seconds: float = 2.0
    """Beyond Gloo's own time-out, after which a member leaves a broken ring by itself."""
    leaver_seconds: float = 20.0
    """How long a worker that must end stays for a successor of the job's state, where it alone has
    it. Below the 30 s after which Kubernetes kills it: it must still end in good order."""
    held_back_seconds: float = 0.5
    """Wait before the third ring that a worker may spoil; doubled each time."""
    max_held_back_seconds: float = 60.0


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
    ring_bound: int
    """No ring can be larger, even for a moment."""
    elastic: ElasticConfig
    timings: Timings = field(default_factory=Timings)
