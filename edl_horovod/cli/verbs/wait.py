"""`edl wait`: wait until a job reaches a state."""

import re
from collections.abc import Sequence

from edl_horovod.cli.jobs import StatusDisplay, client_of, detaching, job_parser
from edl_horovod.errors import ConfigError
from edl_horovod.job import log
from edl_horovod.launch.waiting import CONDITIONS

__all__ = ["run"]

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl wait`."""
    parser = job_parser(verb, summary, "[--for CONDITION] [--timeout TIME] [-q]")
    parser.add_argument(
        "--for",
        dest="condition",
        choices=CONDITIONS,
        default="finished",
        help="what to wait for; `ended` takes a failed job too",
    )
    parser.add_argument("--timeout", default="", metavar="TIME", help="longest wait: 30s, 10m, 2h")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not show what it waits for")
    flags = parser.parse_all(argv)
    seconds = _seconds(flags.timeout)
    show = None if flags.quiet else StatusDisplay(flags.job)
    log.setup("edl", level="error" if flags.quiet else "warning")
    with client_of(flags) as client, detaching(verb, argv):
        client.wait(flags.job, flags.condition, timeout_seconds=seconds, on_status=show)
    return 0


def _seconds(text: str) -> float | None:
    if not text:
        return None
    match = re.fullmatch(r"(\d+)([smh]?)", text)
    if match is None:
        raise ConfigError(
            "--timeout must be a number of seconds, minutes or hours.",
            received=repr(text),
            hint="Write for instance 30s, 10m or 2h.",
        )
    return float(match[1]) * _UNITS[match[2]]
