"""`edl resume`: let a stopped job go on from its newest checkpoint."""

from collections.abc import Sequence

from edl_horovod.cli.jobs import client_of, job_parser
from edl_horovod.cli.layout import print_result
from edl_horovod.displays import open_displays
from edl_horovod.job import log

__all__ = ["run"]


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl resume`."""
    parser = job_parser(verb, summary, "[--dry-run] [-q]")
    parser.add_dry_run("only check whether it may be")
    parser.add_quiet()
    flags = parser.parse_all(argv)
    with client_of(flags) as client:
        is_quiet = flags.quiet or flags.dry_run or not client.is_here(flags.job)
        with open_displays(is_quiet=is_quiet) as on_events:
            log.setup("edl", level="error" if flags.quiet else "info")
            result = client.resume(flags.job, is_dry_run=flags.dry_run, on_events=on_events)
    if result is not None:
        print_result(result)
    else:
        print(f"job {flags.job} goes on{' (dry run)' if flags.dry_run else ''}")
    return 0
