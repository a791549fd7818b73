"""`edl list`: the jobs in a cluster."""

import dataclasses
import time
from collections.abc import Sequence

from edl_horovod.cli.arguments import VerbParser
from edl_horovod.cli.in_cluster import add_cluster_flags, jobs_of
from edl_horovod.cli.layout import table
from edl_horovod.displays.text import ago
from edl_horovod.files import json_text

__all__ = ["run"]


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run the verb.

    Args:
        verb: `list`.
        summary: One line about it.
        argv: What follows it.
    """
    usage = "[-n NAMESPACE | -A] [--context CONTEXT] [-o json] [--debug]"
    parser = VerbParser(verb, summary=summary, usage=usage)
    add_cluster_flags(parser)
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="of the whole cluster")
    parser.add_format()
    flags = parser.parse_all(argv)
    with jobs_of(flags) as jobs:
        views = jobs.find(all_namespaces=flags.all_namespaces)
    if flags.format == "json":
        print(json_text.dumps([dataclasses.asdict(job) for job in views], indent=2))
        return 0
    now = time.time()
    rows = [
        (
            job.namespace,
            job.name,
            job.state,
            f"{job.num_warm}/{job.num_wanted}",
            ago(job.created, now),
            job.message,
        )
        for job in views
    ]
    print("\n".join(table(("NAMESPACE", "NAME", "STATE", "WORKERS", "AGE", "MESSAGE"), rows)))
    return 0
