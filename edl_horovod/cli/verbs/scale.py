"""`edl scale`: change how many ranks a running job has."""

from collections.abc import Sequence

from edl_horovod.cli.jobs import client_of, job_parser

__all__ = ["run"]


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl scale`."""
    parser = job_parser(verb, summary, "--np N [--dry-run]")
    parser.add_argument("--np", metavar="N", type=int, required=True, help="ranks")
    parser.add_dry_run("print the change, and stop")
    flags = parser.parse_all(argv)
    with client_of(flags) as client:
        old = client.scale(flags.job, flags.np, is_dry_run=flags.dry_run)
    print(f"job {flags.job}: {old} -> {flags.np} ranks{' (dry run)' if flags.dry_run else ''}")
    return 0
