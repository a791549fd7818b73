"""The interface of launch targets, the places where jobs run, and their table."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from edl_horovod.config.schema import JobConfig
from edl_horovod.displays import require_known
from edl_horovod.errors import ConfigError, did_you_mean
from edl_horovod.extensions import Table
from edl_horovod.job.events import OnEvents

if TYPE_CHECKING:
    from edl_horovod.launch.jobs import Jobs
    from edl_horovod.supervisor.forks import WarmServer

__all__ = [
    "SUBMITTED",
    "TARGETS",
    "DryRun",
    "LaunchTarget",
    "SubmittedJob",
    "find",
    "require_attached",
    "target_of",
]

DryRun = Literal["client", "server"]
"""Who checks a dry run: this program alone, or also the cluster's API server."""

P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class SubmittedJob:
    """A job that runs without the process that launched it."""

    name: str
    output: str
    """Path of its output, on the machine where it runs."""
    job_dir: str
    place: Mapping[str, str] = field(default_factory=dict)
    """Where the job is, in addition to its name: keywords of `Client`."""
    details: Mapping[str, str] = field(default_factory=dict)
    """Further facts about the job, by name, which displays show unchanged."""


class LaunchTarget(ABC, Generic[P, R]):
    """A place where jobs run; `P` is the plan of a launch there, and `R` its result."""

    is_detached: ClassVar[bool] = False
    """Whether a job runs on without the process that launched it."""
    is_elastic: ClassVar[bool] = True
    """Whether the ring of a running job can change."""
    takes_options: ClassVar[bool] = False
    """Whether it reads `launch.options`; targets that are built in have sections of their own."""
    place_keys: ClassVar[frozenset[str]] = frozenset()
    """Keywords of `Client`, and flags of verbs, that tell where this target's jobs are."""

    @abstractmethod
    def plan(self, config: JobConfig) -> P:
        """Plan a launch; nothing is started.

        Raises:
            ConfigError: The job cannot run here.
        """

    @abstractmethod
    def describe(self, plan: P, *, check: DryRun = "client", whole: bool = False) -> str:
        """Describe what `launch` would do, as text for `--dry-run`.

        Args:
            plan: The plan of the launch.
            check: Who checks the plan.
            whole: Whether to return complete manifests, for programs.

        Raises:
            EdlError: The launch would fail.
        """

    @abstractmethod
    def launch(
        self, plan: P, *, on_events: OnEvents | None = None, warm: "WarmServer | None" = None
    ) -> R:
        """Launch the job; return when it has ended, unless the target is detached.

        Args:
            plan: The plan of the launch.
            on_events: Called with new events of a job that runs in this process.
            warm: Keeps the fork server of workers between the jobs of this program; used by targets
                that fork workers here.

        Raises:
            EdlError: The job was not launched, or did not succeed.
        """

    def name_of(self, plan: P) -> tuple[str, Mapping[str, str]]:
        """What will name the job of a plan, and where it will be, as `jobs` takes it.

        A command that removes its job at the end asks before the launch, so that a later one can
        remove what a dead one left.

        Raises:
            ConfigError: A job does not have a name of its own before it is launched.
        """
        raise ConfigError("A job of this launch target can only be submitted by itself.")

    @abstractmethod
    def names(self, job: str) -> bool:
        """Whether a user's name for a job means a job of this target.

        Args:
            job: The name or directory that the user gave.
        """

    @abstractmethod
    def jobs(self, place: Mapping[str, str]) -> "Jobs":
        """Open the jobs of this target; the caller closes them.

        Args:
            place: Values of `place_keys`; missing ones have defaults.

        Raises:
            EdlError: The target cannot be reached.
        """


def _of(module: str, name: str) -> Callable[[], LaunchTarget[Any, Any]]:
    """Return a function that imports and creates a target: one needs the package of an extra."""
    return lambda: getattr(import_module(f"edl_horovod.launch.{module}"), name)()


TARGETS: Table[Callable[[], LaunchTarget[Any, Any]]] = Table(
    "launch_targets",
    {
        # Before `local`, whose `names` accepts the directory of any job.
        "slurm": _of("slurm", "SlurmTarget"),
        "local": _of("local", "LocalTarget"),
        "mpi": _of("local", "MpiTarget"),
        "kubernetes": _of("kubernetes", "KubernetesTarget"),
    },
)
"""Launch targets by the name that `launch.kind` gives."""

SUBMITTED = "kubernetes"
"""The target of a job that is submitted where its settings name none that takes such jobs."""


def find(kind: str) -> LaunchTarget[Any, Any]:
    """Create the launch target of a job.

    Args:
        kind: The job's `launch.kind`.

    Raises:
        ConfigError: There is no such target.
    """
    if kind not in TARGETS:
        raise ConfigError(
            f"launch.kind must be one of {', '.join(TARGETS)}.",
            received={"launch.kind": kind},
            hint=did_you_mean(kind, TARGETS),
        )
    return TARGETS[kind]()


def target_of(config: JobConfig) -> LaunchTarget[Any, Any]:
    """The launch target that a job's settings name, for a launch.

    Raises:
        ConfigError: There is no such target, or it does not read the options, or there is no such
            display.
    """
    require_known(config.displays)
    launch_target = find(config.launch.kind)
    if config.launch.options and not launch_target.takes_options:
        raise ConfigError(
            "launch.options is for launch targets that other packages add.",
            received={"launch.kind": config.launch.kind, "launch.options": config.launch.options},
            hint="Leave it out, or name such a launch target.",
        )
    return launch_target


def require_attached(config: JobConfig) -> None:
    """Check that a job runs as a part of this process, and is not submitted to run elsewhere.

    Raises:
        ConfigError: Its launch target submits jobs.
    """
    kind = config.launch.kind
    if find(kind).is_detached:
        raise ConfigError(
            "A job of this launch target is submitted; it cannot be a part of something that runs "
            "here.",
            received={"launch.kind": kind},
            hint="Use launch=local, or submit jobs one by one.",
        )
