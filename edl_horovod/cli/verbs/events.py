"""`edl events`: what Kubernetes says of a job."""

import dataclasses
from collections.abc import Sequence

from edl_horovod.cli.arguments import VerbParser
from edl_horovod.cli.in_cluster import add_cluster_flags, add_name, jobs_of
from edl_horovod.cli.layout import table
from edl_horovod.files import json_text

__all__ = ["run"]


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run the verb.

    Args:
        verb: `events`.
        summary: One line about it.
        argv: What follows it.
    """
    usage = "[-n NAMESPACE] [--context CONTEXT] [-o json] [--debug] NAME"
    parser = VerbParser(verb, summary=summary, usage=usage)
    add_name(parser, verb)
    add_cluster_flags(parser)
    parser.add_format()
    flags = parser.parse_all(argv)
    with jobs_of(flags) as jobs:
        jobs.status(flags.name)  # A name that no job has is an error, not an empty list.
        events = jobs.events(flags.name)
    if flags.format == "json":
        print(json_text.dumps([dataclasses.asdict(event) for event in events], indent=2))
        return 0
    rows = [(event.time, event.kind, event.object, event.text) for event in events]
    print("\n".join(table(("TIME", "TYPE", "OBJECT", "MESSAGE"), rows)))
    return 0
