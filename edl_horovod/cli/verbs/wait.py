"""`edl wait`: end when a job is so far."""

import re
from collections.abc import Sequence

from edl_horovod.cli.arguments import VerbParser
from edl_horovod.cli.in_cluster import WaitDisplay, add_cluster_flags, add_name, detaching, jobs_of
from edl_horovod.cluster.status import CONDITIONS
from edl_horovod.errors import ConfigError

__all__ = ["run"]

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run the verb.

    Args:
        verb: `wait`.
        summary: One line about it.
        argv: What follows it.
    """
    usage = (
        "[--for CONDITION] [--timeout TIME] [-q] [-n NAMESPACE] [--context CONTEXT] [--debug] NAME"
    )
    parser = VerbParser(verb, summary=summary, usage=usage)
    add_name(parser, verb)
    parser.add_argument(
        "--for",
        dest="condition",
        choices=CONDITIONS,
        default="finished",
        help="what to wait for; `ended` takes a failed job too",
    )
    parser.add_argument("--timeout", default="", metavar="TIME", help="longest wait: 30s, 10m, 2h")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not show what it waits for")
    add_cluster_flags(parser)
    flags = parser.parse_all(argv)
    seconds = _seconds(flags.timeout)
    show = None if flags.quiet else WaitDisplay(flags.name)
    with jobs_of(flags) as jobs, detaching(verb, argv):
        jobs.wait(flags.name, flags.condition, timeout_seconds=seconds, on_view=show)
    return 0


def _seconds(text: str) -> float | None:
    if not text:
        return None
    found = re.fullmatch(r"(\d+)([smh]?)", text)
    if found is None:
        raise ConfigError(
            f"--timeout must be a number of seconds, minutes or hours. Received: {text!r}. "
            "Write for instance 30s, 10m or 2h."
        )
    return float(found[1]) * _UNITS[found[2]]
