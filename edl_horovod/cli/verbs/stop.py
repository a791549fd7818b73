"""`edl stop`: have a job save a checkpoint and end, to go on later."""

from collections.abc import Sequence

from edl_horovod.cli.jobs import StatusDisplay, client_of, confirm, job_parser
from edl_horovod.job import log

__all__ = ["run"]


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl stop`."""
    parser = job_parser(verb, summary, "[--no-wait] [-y] [--dry-run]")
    parser.add_dry_run("only check whether it may be")
    parser.add_argument("--no-wait", action="store_true", help="do not wait for its end")
    parser.add_argument(
        "-y", "--yes", action="store_true", help="do not ask where the job saves no checkpoints"
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
