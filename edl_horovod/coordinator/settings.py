"""The settings of a job's coordinator, and its time limits."""

import ssl
from dataclasses import dataclass, field

from edl_horovod.config.schema import ElasticConfig, JobConfig
from edl_horovod.job.directory import JobDir


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Times in seconds that are the same for all jobs; tests use shorter ones."""

    hosts_poll_seconds: float = 0.1
    events_poll_seconds: float = 0.5
    first_ring_seconds: float = 30.0
    """How long the first ring waits for all requested workers, from the first warm one on."""
    return_seconds: float = 1.0
    """How long the members may take to call again if all connections were lost at once."""
    goodbye_seconds: float = 5.0
    """How long workers may take to end when the job is over."""
    fellow_seconds: float = 5.0
    """How long a coordinator that must end waits to see whether its workers must end as well."""
    hello_seconds: float = 5.0
    """How long a connection may take to prove that it belongs to the job."""
    ping_seconds: float = 2.0
    silence_seconds: float = 10.0
    """Silence after which a worker is not invited into a ring."""
    dead_seconds: float = 30.0
    """Silence after which a worker counts as dead, so that its launcher kills it."""
    sign_of_life_seconds: float = 1.0
    """How long a worker may take to answer a ping before a ring forms."""
    forming_ping_seconds: float = 0.5
    """Time between two pings while a ring forms."""
    forming_margin_seconds: float = 2.0
    """How long a member may take to leave a broken ring, in addition to Gloo's own time-out."""
    leaver_seconds: float = 20.0
    """How long a worker that must end, and alone has the job's state, waits for another worker to
    take it over. Less than the 30 s after which a cluster kills it: it must still shut down."""
    held_back_seconds: float = 0.5
    """How long a worker is held back after two failed formings in a row; doubled with each one."""
    max_held_back_seconds: float = 60.0


@dataclass(frozen=True, kw_only=True)
class CoordinatorSettings:
    """The settings of one job that its coordinator needs."""

    job_dir: JobDir
    address: str
    """Address at which the workers can reach the coordinator and the rendezvous."""
    port: int
    """Port for the workers; 0 for any free one, which a restarted coordinator reuses."""
    secret: bytes
    config: JobConfig
    tls: ssl.SSLContext | None = None
    """How connections are encrypted, those to the rendezvous included; None if they are not."""
    timings: Timings = field(default_factory=Timings)

    @property
    def elastic(self) -> ElasticConfig:
        """How the ring may change."""
        return self.config.elastic
