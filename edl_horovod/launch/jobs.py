"""Jobs that were launched, as they are seen and changed from outside, wherever they run."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import TASKS
from edl_horovod.displays.page.snapshot import Source
from edl_horovod.displays.text import count
from edl_horovod.errors import ConfigError
from edl_horovod.job.events import OnEvents, Recorded, fields_of
from edl_horovod.job.state import JobState, TargetDetails
from edl_horovod.supervisor.run import JobResult

__all__ = ["EventLine", "JobRow", "JobStatus", "Jobs", "LogLine", "OnStatus", "event_line"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """One job of a list."""

    job: str
    """The directory of a job on this machine, or the name of one in a cluster."""
    namespace: str
    """Empty for a job on this machine."""
    state: str
    message: str
    num_ready: int
    """Ranks of the ring; in a cluster worker pods that are warm."""
    num_wanted: int
    """Ranks that were asked for; in a cluster worker pods."""
    step: int | None
    """The last step that was reported; None in a cluster, where only the job's log says it."""
    total_steps: int
    """0 until it is known."""
    created: float
    """Seconds since the epoch."""


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """Where a job is."""

    progress: JobState
    """What the job's events add up to."""
    details: TargetDetails | None = None
    """What the launch target tells of it; None where it tells nothing."""
    is_at_rest: bool
    """Whether no process or pod of the job is left."""

    @property
    def state(self) -> str:
        """The state, as `edl status` shows it."""
        return (self.details or self.progress).state

    @property
    def message(self) -> str:
        """The reason of the state, where it is known."""
        return (self.details or self.progress).message

    @property
    def waits_for(self) -> tuple[str, ...]:
        """What keeps the job from going on."""
        return self.details.waits_for if self.details is not None else ()

    def __str__(self) -> str:
        if self.state in ("finished", "failed", "lost", "suspended"):
            return self.state
        summary = self.details.summary if self.details is not None else ""
        return f"{self.state}, {summary or count(self.progress.size, 'rank')}"


@dataclass(frozen=True)
class LogLine:
    """One line of a log."""

    source: str
    """Who wrote it: a pod, or `launcher`, `coordinator` or `worker-0` on this machine."""
    text: str


@dataclass(frozen=True, kw_only=True)
class EventLine:
    """One thing that happened to a job."""

    time: float
    """Seconds since the epoch."""
    origin: str
    """Whose event it is: `edl`, or the launch target's name."""
    kind: str
    source: str
    """Who wrote it, or what it is about."""
    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """All fields of an event of ours."""


OnStatus = Callable[[JobStatus], None]


class Jobs(ABC):
    """The jobs of one launch target; close them.

    Each method takes the job as `LaunchTarget.names` knows it, and raises an EdlError where there
    is no such job.
    """

    def close(self) -> None:
        """Close the connections."""

    @abstractmethod
    def list(self, folders: Sequence[str] = (), *, all_namespaces: bool = False) -> list[JobRow]:
        """The jobs that are there; see `Client.list`."""

    @abstractmethod
    def exists(self, job: str) -> bool:
        """Whether there is such a job."""

    @abstractmethod
    def config(self, job: str) -> JobConfig:
        """The settings of the job."""

    @abstractmethod
    def status(self, job: str, *, is_brief: bool = False) -> JobStatus:
        """Where the job is; see `Client.status`."""

    @abstractmethod
    def source(self, job: str) -> Source:
        """Where the page of the job looks."""

    @abstractmethod
    def logs(self, job: str, worker: str, *, follow: bool, tail: int | None) -> Iterator[LogLine]:
        """What the job's processes wrote, or one member of its ring; see `Client.logs`."""

    def member(self, job: str, rank: int) -> str:
        """The worker that has a rank in the ring now.

        Raises:
            ConfigError: The ring has no such rank.
        """
        members = self.status(job).progress.members
        if not 0 <= rank < len(members):
            raise ConfigError(
                f"The ring of job {job} has no rank {rank}.",
                received=f"--rank={rank}, and a ring of {len(members)}",
                hint=f"See edl status {job}.",
            )
        return members[rank]

    @abstractmethod
    def events(self, job: str, *, follow: bool = False) -> Iterator[EventLine]:
        """What happened to the job; see `Client.events`."""

    @abstractmethod
    def scale(self, job: str, num_ranks: int, *, is_dry_run: bool = False) -> int:
        """Change how many ranks the job has; returns the old number."""

    def loss_at_stop(self, job: str) -> str:
        """What a stop would lose, as a sentence; empty where the job goes on from a checkpoint."""
        config = self.config(job)
        if not TASKS[config.task].keeps_state or config.checkpoint.is_on:
            return ""
        status = self.status(job)
        if status.progress.is_over:
            return ""
        step = status.progress.step
        lost = f"its {step} steps are lost and " if step else ""
        return (
            f"Job {job} saves no checkpoints (checkpoint.every_steps=0, "
            f"checkpoint.every_seconds=0), so {lost}it would begin again."
        )

    def warn_of_stop(self, job: str, config: JobConfig, *, saves: bool) -> None:
        """Say in the log where a stop itself saves no checkpoint, as `saves` tells."""
        if not saves and TASKS[config.task].keeps_state and config.checkpoint.is_on:
            log.warning("The stop saves no checkpoint; job %s goes on from its last one.", job)

    @abstractmethod
    def stop(self, job: str, *, is_dry_run: bool = False) -> None:
        """Ask the job to save a checkpoint and to end; returns at once."""

    @abstractmethod
    def stop_seconds(self, job: str) -> float:
        """How long the job may take to end after `stop`."""

    @abstractmethod
    def resume(
        self, job: str, *, is_dry_run: bool = False, on_events: OnEvents | None = None
    ) -> JobResult | None:
        """Continue a stopped job; returns its result if it runs in this process."""

    @abstractmethod
    def delete(self, job: str, *, is_dry_run: bool = False) -> Sequence[str]:
        """Remove the job; returns what is removed."""


def event_line(recorded: Recorded) -> EventLine:
    """An event of ours as a line."""
    fields = fields_of(recorded.event)
    return EventLine(
        time=recorded.time,
        origin="edl",
        kind=recorded.event.kind,
        source=recorded.source,
        text=" ".join(_words(fields)),
        fields=fields,
    )


def _words(fields: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The fields that say something, as text; a name in a field of names stands behind a dot."""
    for key, value in fields.items():
        if isinstance(value, Mapping):
            yield from _words(value, f"{prefix}{key}.")
        elif isinstance(value, float):
            yield f"{prefix}{key}={value:.6g}"
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield f"{prefix}{key}={','.join(map(str, value))}"
        elif value not in ("", None):
            yield f"{prefix}{key}={value}"
