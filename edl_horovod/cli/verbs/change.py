"""`edl stop`, `edl resume` and `edl delete`: what becomes of a job in a cluster."""

import sys
from collections.abc import Sequence

from edl_horovod.cli.arguments import VerbParser
from edl_horovod.cli.in_cluster import WaitDisplay, add_cluster_flags, add_name, confirm, jobs_of
from edl_horovod.job import log

__all__ = ["run"]

_LEAVING_SECONDS = 60.0
"""Beyond the grace of the pods, until the operator has removed them."""


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run the verb.

    Args:
        verb: `stop`, `resume` or `delete`.
        summary: One line about it.
        argv: What follows it.
    """
    flag = {"stop": "[--no-wait] ", "delete": "[-y] "}.get(verb, "")
    usage = f"{flag}[--dry-run] [-n NAMESPACE] [--context CONTEXT] [--debug] NAME"
    parser = VerbParser(verb, summary=summary, usage=usage)
    add_name(parser, verb)
    parser.add_argument("--dry-run", action="store_true", help="only check whether it may be")
    if verb == "stop":
        parser.add_argument("--no-wait", action="store_true", help="do not wait for the pods' end")
    if verb == "delete":
        parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    add_cluster_flags(parser)
    flags = parser.parse_all(argv)
    log.setup("edl", level="warning")
    name, note = flags.name, " (dry run)" if flags.dry_run else ""
    with jobs_of(flags) as jobs:
        if verb == "resume":
            jobs.resume(name, is_dry_run=flags.dry_run)
            print(f"job {name} goes on{note}")
        elif verb == "delete":
            job = jobs.status(name)
            if not flags.dry_run:
                confirm(f"Delete job {name}, which is {job.state}?", is_yes=flags.yes)
                jobs.delete(name)
            print(f"job {name} is deleted{note}; what it wrote to its volumes stays")
        else:
            jobs.stop(name, is_dry_run=flags.dry_run)
            if not flags.dry_run and not flags.no_wait:
                grace = jobs.config(name).kubernetes.grace_seconds
                print("waiting for the pods to end; Ctrl-C does not undo it", file=sys.stderr)
                jobs.wait_until_gone(
                    name, timeout_seconds=grace + _LEAVING_SECONDS, on_view=WaitDisplay(name)
                )
            print(f"job {name} is stopped{note}; it goes on by: edl resume {name}")
    return 0
