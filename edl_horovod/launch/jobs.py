"""The interface to launched jobs, wherever they run, and their rows, states and lines."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import TASKS
from edl_horovod.displays.page.snapshot import JobSnapshot, Source
from edl_horovod.displays.text import count
from edl_horovod.errors import ConfigError
from edl_horovod.job.events import OnEvents, Recorded, fields_of
from edl_horovod.job.state import JobState, TargetDetails
from edl_horovod.supervisor.run import JobResult

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """A job in a list of jobs."""

    job: str
    """The directory of a job on this machine, or the name of one in a cluster."""
    place: str
    """Its part of the cluster, as the launch target calls it; empty for a job on this machine."""
    state: str
    message: str
    num_ready: int
    """Number of ranks in the ring; in a cluster, of warm worker pods."""
    num_wanted: int
    """Number of requested ranks; in a cluster, of worker pods."""
    step: int | None
    """The last reported step; None in a cluster, where only the job's log has it."""
    total_steps: int
    """Number of steps of the whole job; 0 until it is known."""
    created: float
    """Seconds since the epoch."""

    def snapshot(self) -> JobSnapshot:
        """The same for a page that lists jobs."""
        details = TargetDetails(
            state=self.state,
            message=self.message,
            created=self.created,
            summary=f"{self.num_ready} of {self.num_wanted}",
        )
        progress = JobState(step=self.step or 0, total_steps=self.total_steps)
        return JobSnapshot(time=time.time(), state=progress, details=details, began=self.created)


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The state of a job, and its progress."""

    progress: JobState
    """The progress, from the job's events."""
    details: TargetDetails | None = None
    """The state of the job by its launch target; None if it follows from the events alone."""
    is_at_rest: bool
    """Whether no process or pod of the job is left."""

    @property
    def state(self) -> str:
        """The state, as `edl status` shows it."""
        return (self.details or self.progress).state

    @property
    def message(self) -> str:
        """The reason for the state; empty if it is not known."""
        return (self.details or self.progress).message

    @property
    def waits_for(self) -> tuple[str, ...]:
        """What the job waits for, in sentences."""
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
    """The writer: a pod, or `launcher`, `coordinator` or `worker-0` on this machine."""
    text: str


@dataclass(frozen=True, kw_only=True)
class EventLine:
    """An event of a job, for display."""

    time: float
    """Seconds since the epoch."""
    origin: str
    """The source of the event: `edl`, or the name of the launch target."""
    kind: str
    source: str
    """The writer of the event, or the object that it is about."""
    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """All fields of an event of edl."""


OnStatus = Callable[[JobStatus], None]


class Jobs(ABC):
    """The jobs of one launch target; the caller closes them.

    Methods take a name that `LaunchTarget.names` accepts, and raise an EdlError if there is no such
    job.
    """

    def close(self) -> None:
        """Close the connections."""

    @abstractmethod
    def list(self, folders: Sequence[str] = (), *, all_namespaces: bool = False) -> list[JobRow]:
        """List the jobs; see `Client.list`."""

    @abstractmethod
    def exists(self, job: str) -> bool:
        """Whether there is such a job."""

    @abstractmethod
    def config(self, job: str) -> JobConfig:
        """Read the settings of a job."""

    @abstractmethod
    def status(self, job: str, *, is_brief: bool = False) -> JobStatus:
        """Return the state of a job; see `Client.status`."""

    @abstractmethod
    def source(self, job: str) -> Source:
        """Open the source of data for a job's dashboard."""

    @abstractmethod
    def logs(self, job: str, worker: str, *, follow: bool, tail: int | None) -> Iterator[LogLine]:
        """Yield the log lines of all processes, or of one `worker`; see `Client.logs`."""

    def member(self, job: str, rank: int) -> str:
        """The worker that has a rank in the present ring.

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
        """Yield the events of a job; see `Client.events`."""

    @abstractmethod
    def recorded(self, job: str) -> Iterable[Recorded]:
        """Give the events that edl has written about a job; see `Client.recorded`."""

    @abstractmethod
    def scale(self, job: str, num_ranks: int, *, is_dry_run: bool = False) -> int:
        """Change the number of ranks of a job; returns the old number."""

    def loss_at_stop(self, job: str) -> str:
        """What a stop would lose, as a sentence; empty if checkpoints keep the state."""
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
        """Warn if a stop itself does not save a checkpoint (`saves`), and the job has others."""
        if not saves and TASKS[config.task].keeps_state and config.checkpoint.is_on:
            log.warning("The stop saves no checkpoint; job %s goes on from its last one.", job)

    @abstractmethod
    def stop(self, job: str, *, is_dry_run: bool = False) -> None:
        """Request that the job saves a checkpoint and ends; returns at once."""

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
        """Remove the job; returns the removed paths or objects."""


def event_line(recorded: Recorded) -> EventLine:
    """Convert an event of edl to a line."""
    time, source, event = recorded
    fields = fields_of(event)
    text = " ".join(_words(fields))
    return EventLine(
        time=time, origin="edl", kind=event.kind, source=source, text=text, fields=fields
    )


def _words(fields: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the fields that are not empty as `key=value`; nested keys are joined by dots."""
    for key, value in fields.items():
        if isinstance(value, Mapping):
            yield from _words(value, f"{prefix}{key}.")
        elif isinstance(value, float):
            yield f"{prefix}{key}={value:.6g}"
        elif isinstance(value, Sequence) and not isinstance(value, str):
            # Objects in a list would be most of the line; programs find them in the fields.
            if items := [str(item) for item in value if not isinstance(item, Mapping)]:
                yield f"{prefix}{key}={','.join(items)}"
        elif value not in ("", None):
            yield f"{prefix}{key}={value}"
