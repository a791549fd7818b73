"""`edl events`: what happened to a job."""

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime

from edl_horovod.cli.jobs import client_of, detaching, job_parser
from edl_horovod.cli.layout import table
from edl_horovod.files import json_text
from edl_horovod.job import log
from edl_horovod.launch.jobs import EventLine

__all__ = ["run"]

_HEADER = ("TIME", "FROM", "KIND", "SOURCE", "MESSAGE")


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl events`."""
    parser = job_parser(verb, summary, "[-f] [-o json]")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    parser.add_format()
    flags = parser.parse_all(argv)
    log.setup("edl", level="warning")
    is_json = flags.format == "json"
    with client_of(flags) as client, detaching(verb, argv):
        lines = client.events(flags.job, follow=flags.follow)
        if flags.follow:
            for line in lines:
                text = (
                    json_text.dumps(dataclasses.asdict(line)) if is_json else "  ".join(_row(line))
                )
                print(text, flush=True)
        elif is_json:
            print(json_text.dumps([dataclasses.asdict(line) for line in lines], indent=2))
        else:
            print("\n".join(table(_HEADER, [_row(line) for line in lines])))
    return 0


def _row(line: EventLine) -> tuple[str, ...]:
    time = f"{datetime.fromtimestamp(line.time, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return (time, line.origin, line.kind, line.source, line.text)
