"""The verbs that change a job: `scale`, `stop`, `resume` and `delete`."""

from collections.abc import Sequence

from edl_horovod.cli.jobs import StatusDisplay, client_of, confirm, job_parser
from edl_horovod.cli.layout import print_result
from edl_horovod.displays import open_displays
from edl_horovod.job import log

__all__ = [
    "run_scale",
    "run_stop",
    "run_resume",
    "run_delete",
]


def run_scale(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl scale`."""
    parser = job_parser(verb, summary, "--np N [--dry-run]")
    parser.add_argument("--np", metavar="N", type=int, required=True, help="number of ranks")
    parser.add_dry_run("print the change, and stop")
    flags = parser.parse_all(argv)
    with client_of(flags) as client:
        old = client.scale(flags.job, flags.np, is_dry_run=flags.dry_run)
    print(f"job {flags.job}: {old} -> {flags.np} ranks{' (dry run)' if flags.dry_run else ''}")
    return 0


def run_stop(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl stop`."""
    parser = job_parser(verb, summary, "[--no-wait] [-y] [--dry-run]")
    parser.add_dry_run("only check whether it may be")
    parser.add_argument("--no-wait", action="store_true", help="return before the job has ended")
    parser.add_argument(
        "-y",
        "--yes",
        action="store_true",
        help="do not ask for confirmation if the job saves no checkpoints",
    )
    flags = parser.parse_all(argv)
    log.setup("edl", level="warning")
    job, note = flags.job, " (dry run)" if flags.dry_run else ""
    with client_of(flags) as client:
        if loss := client.loss_at_stop(job):
            confirm(f"{loss} Stop it all the same?", is_yes=flags.yes or flags.dry_run)
        client.stop(
            job,
            may_lose_steps=True,
            is_dry_run=flags.dry_run,
            wait=not flags.no_wait,
            on_status=StatusDisplay(
                job, first="waiting for the job to end; Ctrl-C does not undo the stop"
            ),
        )
        waited = not (flags.dry_run or flags.no_wait)
        state = client.status(job, is_brief=True).state if waited else ""
    if state in ("finished", "failed"):
        print(f"job {job} has {state} before it was stopped")
        return 0
    done = "is asked to stop" if flags.no_wait else "is stopped"
    print(f"job {job} {done}{note}; it goes on by: edl resume {job}")
    return 0


def run_resume(verb: str, summary: str, argv: Sequence[str]) -> int:
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


def run_delete(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl delete`."""
    parser = job_parser(verb, summary, "[-y] [--dry-run]")
    parser.add_dry_run("print what would be removed")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
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
