"""What the verbs share that look at or change a job in a cluster."""

import argparse
import contextlib
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edl_horovod.cli.arguments import VerbParser
from edl_horovod.errors import ConfigError, Interrupted, MissingDependency, NoCluster
from edl_horovod.job.directory import JobDir

if TYPE_CHECKING:
    from edl_horovod.cluster.jobs import Jobs
    from edl_horovod.cluster.status import JobView

__all__ = [
    "WaitDisplay",
    "add_cluster_flags",
    "add_name",
    "confirm",
    "detaching",
    "is_job_dir",
    "jobs_of",
]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

_FOR_A_JOB_HERE = {
    "logs": "Its logs are in {0}/logs/, and edl status {0} shows where it is",
    "events": "What happened in it is in {0}/events.jsonl, and edl status {0} shows where it is",
    "wait": "The edl command that started it ends with it, and edl status {0} shows where it is",
    "stop": "The edl command that started it ends by Ctrl-C or SIGTERM; {0}/launcher.pid has the "
    "number of its process",
    "resume": "Give the edl command that started it again, with resume=auto",
    "delete": "Once edl status {0} says that it has ended, remove it: rm -r {0}",
}
"""What does on this machine what a verb does in a cluster."""


def add_cluster_flags(parser: VerbParser) -> None:
    """Add the flags that say which cluster and which namespace."""
    parser.add_argument("-n", "--namespace", default="", help="of the job; else the context's")
    parser.add_argument("--context", default="", help="of the kubeconfig; else the current one")


def add_name(parser: VerbParser, verb: str) -> None:
    """Take the name of a job in a cluster.

    Args:
        parser: Of the verb.
        verb: Its name; the directory of a job here is refused with what does the same for that.
    """

    def checked(name: str) -> str:
        is_name = _NAME.fullmatch(name) is not None
        if os.path.exists(JobDir(Path(name)).events):
            folder = os.path.normpath(name)
            elsewhere = " For a job in a cluster, give the command in another directory."
            raise ConfigError(
                f"{folder} is the directory of a job on this machine, and edl {verb} takes the "
                f"name of a job in a cluster. Received: NAME={name!r}. "
                f"{_FOR_A_JOB_HERE[verb].format(shlex.quote(folder))}."
                f"{elsewhere if is_name else ''}"
            )
        if not is_name:
            raise ConfigError(
                f"edl {verb} takes the name of a job in a cluster: at most 63 small letters, "
                f"digits and hyphens. Received: NAME={name!r}. edl list shows the names."
            )
        return name

    parser.add_argument("name", metavar="NAME", type=checked, help="of the job in the cluster")


def jobs_of(flags: argparse.Namespace) -> "Jobs":
    """The jobs that the flags are about.

    Raises:
        NoCluster: None is configured.
        MissingDependency: The package that talks to clusters is not installed.
    """
    try:
        from edl_horovod.cluster.jobs import Jobs

        return Jobs(namespace=flags.namespace, context=flags.context)
    except (NoCluster, MissingDependency) as error:
        if "job" not in flags:
            raise
        raise type(error)(
            f"There is no directory {flags.job!r} here, so it is taken for the name of a job in a "
            f"cluster. {error}"
        ) from error


def is_job_dir(job: str) -> bool:
    """Whether a verb's JOB is a directory of this machine; else it names a job in a cluster."""
    return os.path.isdir(job) or _NAME.fullmatch(job) is None


def confirm(question: str, *, is_yes: bool) -> None:
    """Ask before something is lost.

    Args:
        question: Without its answers.
        is_yes: The user has said so already.

    Raises:
        ConfigError: The answer is not yes, or there is nobody to ask.
    """
    if is_yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Nobody is there to answer. Write -y if you are sure.")
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise ConfigError("Nothing was changed.")


@contextlib.contextmanager
def detaching(verb: str, argv: Sequence[str]) -> Iterator[None]:
    """Let Ctrl-C end what is shown here, not the job, and say how to come back.

    Args:
        verb: That shows it.
        argv: What followed it.

    Raises:
        Interrupted: By Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        again = shlex.join(["edl", verb, *argv])
        raise Interrupted(f"Interrupted; the job itself is not. To come back: {again}") from error


class WaitDisplay:
    """Says on stderr what is waited for, each time that it changes."""

    def __init__(self, name: str) -> None:
        """Say nothing yet.

        Args:
            name: Of the job.
        """
        self._what, self._last = name, ""

    def __call__(self, job: "JobView") -> None:
        """Show the job as it is now."""
        line = f"{self._what}: {job.state}, {job.num_warm} of {job.num_wanted} worker pods warm"
        line += "".join(f"\n  {reason}" for reason in job.waits_for)
        if line != self._last:
            print(line, file=sys.stderr, flush=True)
            self._last = line
