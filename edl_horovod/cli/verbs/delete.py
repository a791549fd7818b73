"""`edl delete`: remove a job."""

from collections.abc import Sequence

from edl_horovod.cli.jobs import client_of, confirm, job_parser

__all__ = ["run"]


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl delete`."""
    parser = job_parser(verb, summary, "[-y] [--dry-run]")
    parser.add_dry_run("print what would be removed")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    flags = parser.parse_all(argv)
    with client_of(flags) as client:
        parts = client.delete(flags.job, is_dry_run=True)
        if flags.dry_run:
            print("".join(f"{part} would be removed\n" for part in parts), end="")
            return 0
        if not flags.yes:
            state = client.status(flags.job, is_brief=True).state
            confirm(f"Delete job {flags.job}, which is {state}?", is_yes=False)
        client.delete(flags.job)
    print(f"job {flags.job} is deleted; its output stays")
    return 0
