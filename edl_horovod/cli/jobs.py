"""What the verbs share that look at jobs or change them."""

import argparse
import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence

from edl_horovod.cli.arguments import VerbParser
from edl_horovod.errors import ConfigError, Interrupted
from edl_horovod.launch.client import Client
from edl_horovod.launch.jobs import JobStatus

__all__ = ["StatusDisplay", "client_of", "confirm", "detaching", "job_parser"]


def job_parser(verb: str, summary: str, flags: str) -> VerbParser:
    """A parser that takes a JOB, and of one in a cluster where that is."""
    usage = f"{flags} [-n NAMESPACE] [--context CONTEXT] [--debug] JOB"
    parser = VerbParser(verb, summary=summary, usage=usage)
    help_text = "directory of a job here, or name of one in a cluster"
    parser.add_argument("job", metavar="JOB", help=help_text)
    parser.add_place()
    return parser


def client_of(flags: argparse.Namespace) -> Client:
    """The client that the flags are about."""
    return Client(namespace=flags.namespace, context=flags.context)


def confirm(question: str, *, is_yes: bool) -> None:
    """Ask before something is lost.

    Raises:
        ConfigError: The answer is not yes, or no terminal to ask at.
    """
    if is_yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{question} There is no terminal to answer at. Write -y if you are sure."
        )
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise ConfigError("Nothing was changed.")


@contextlib.contextmanager
def detaching(verb: str, argv: Sequence[str]) -> Iterator[None]:
    """On Ctrl-C, end this display and not the job, and say how to come back.

    Raises:
        Interrupted: By Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        again = shlex.join(["edl", verb, *argv])
        raise Interrupted(f"Interrupted; the job itself is not. To come back: {again}") from error


class StatusDisplay:
    """Says on stderr where a job is, each time that this changes."""

    def __init__(self, job: str, *, first: str = "") -> None:
        """`first` is a line that is printed before all others."""
        self._job, self._first, self._last = job, first, ""

    def __call__(self, status: JobStatus) -> None:
        """Show the job as it is now."""
        line = "".join([f"{self._job}: {status}", *(f"\n  {why}" for why in status.waits_for)])
        if line != self._last:
            if self._first and not self._last:
                print(self._first, file=sys.stderr)
            print(line, file=sys.stderr, flush=True)
            self._last = line
