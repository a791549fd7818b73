"""The verbs that show jobs, such as `status` and `dashboard`, and those that change jobs."""

import argparse
import contextlib
import dataclasses
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from edl_horovod.cli.arguments import VerbParser, fact_lines, print_lines, print_result, table
from edl_horovod.displays import event_table
from edl_horovod.displays.page import address, comparison
from edl_horovod.displays.page.comparison import ComparedJob
from edl_horovod.displays.page.snapshot import History
from edl_horovod.displays.terminal import open_terminal
from edl_horovod.displays.text import (
    account_tables,
    ago,
    as_json,
    cost_sentences,
    count,
    goodput_text,
    job_facts,
    job_table,
    printable,
    resets_table,
    stops_table,
)
from edl_horovod.errors import (
    ConfigError,
    Interrupted,
    MissingDependency,
    NoCluster,
    OutputError,
    hint_of,
)
from edl_horovod.files import json_text
from edl_horovod.files.whole_file import write_bytes
from edl_horovod.job import log
from edl_horovod.launch.client import Client
from edl_horovod.launch.jobs import EventLine, JobRow, JobStatus
from edl_horovod.launch.waiting import CONDITIONS


def job_parser(verb: str, summary: str, flags: str) -> VerbParser:
    """Create a parser with the argument JOB, and with flags for the place of a job in a cluster."""
    usage = f"{flags} [-n NAMESPACE] [--context CONTEXT] [--debug] JOB"
    parser = VerbParser(verb, summary, usage)
    text = "directory of a job here, or name of one in a cluster"
    parser.add_argument("job", metavar="JOB", help=text)
    parser.add_place()
    return parser


def client_of(flags: argparse.Namespace) -> Client:
    """The client that the flags are about."""
    return Client(namespace=flags.namespace, context=flags.context)


def confirm(question: str, *, is_yes: bool) -> None:
    """Ask before something is lost.

    Raises:
        ConfigError: The answer is not yes, or no terminal to ask at.
    """
    if is_yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{question} There is no terminal to answer at. Write -y if you are sure."
        )
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise ConfigError("Nothing was changed.")


@contextlib.contextmanager
def detaching(verb: str, argv: Sequence[str]) -> Iterator[None]:
    """On Ctrl-C, end the display but not the job, and print how to continue the display.

    Raises:
        Interrupted: By Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        again = shlex.join(["edl", verb, *argv])
        raise Interrupted(f"Interrupted; the job itself is not. To come back: {again}") from error


class StatusDisplay:
    """Prints the state of a job on stderr whenever it changes."""

    def __init__(self, job: str, *, first: str = "") -> None:
        """`first` is a line that is printed before all others."""
        self._job, self._first, self._last = job, first, ""

    def __call__(self, status: JobStatus) -> None:
        """Show the job as it is now."""
        reasons = "".join(f"\n  {printable(reason)}" for reason in status.waits_for)
        line = f"{self._job}: {printable(str(status))}{reasons}"
        if line != self._last:
            if self._first and not self._last:
                print(self._first, file=sys.stderr)
            print(line, file=sys.stderr, flush=True)
            self._last = line


_LIST_HEADER = ("PLACE", "JOB", "STATE", "RANKS", "STEP", "AGE", "MESSAGE")
_LIST_HELP = """\
With folders, the jobs on this machine in and up to three folders below them. With -n, -A or
--context, the jobs in the cluster. With none of these, the jobs below the current folder, and those
in the cluster where one is configured. RANKS are those of the ring and those that were asked for;
in a cluster they are worker pods, the warm ones and those that were asked for.
"""

_EVENT_HEADER = ("TIME", "FROM", "KIND", "SOURCE", "MESSAGE")

_SECONDS_PER_UNIT = {"": 1, "s": 1, "m": 60, "h": 3600}


def run_status(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl status`."""
    parser = job_parser(verb, summary, "[-o json]")
    parser.add_format()
    flags = parser.parse_all(argv)
    log.setup("edl", level="warning")
    with client_of(flags) as client:
        status = client.status(flags.job)
    if flags.format == "json":
        print(json_text.dumps(as_json(status.progress, status.details), indent=2))
    else:
        print_lines(_status_lines(status, now=time.time()))
    return 0


def run_top(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl top`."""
    from rich.console import Console

    from edl_horovod.displays import top

    flags = job_parser(verb, summary, "").parse_all(argv)
    log.setup("edl", level="error")
    if not sys.stdout.isatty():
        raise ConfigError(
            "edl top needs a terminal.", hint=f"To print the state once: edl status {flags.job}"
        )
    with client_of(flags) as client, detaching(verb, argv):
        top.show(client.source(flags.job), Console())
    return 0


def run_list(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl list`."""
    usage = "[-n NAMESPACE | -A] [--context CONTEXT] [-o json] [--debug] [FOLDER ...]"
    parser = VerbParser(verb, summary, usage, epilog=lambda: _LIST_HELP)
    parser.add_argument("folders", metavar="FOLDER", nargs="*", help="search this folder for jobs")
    parser.add_place()
    parser.add_switch("-A", "--all-namespaces", help="list the jobs of all namespaces")
    parser.add_format()
    flags = parser.parse_all(argv)
    is_of_cluster = bool(flags.namespace or flags.context or flags.all_namespaces)
    if flags.folders and is_of_cluster:
        raise ConfigError(
            "Folders are on this machine, and -n, -A and --context mean a cluster.",
            received=" ".join(argv),
            hint="Leave one of the two out.",
        )
    rows: list[JobRow] = []
    with client_of(flags) as client:
        if not is_of_cluster:
            rows = client.list(flags.folders or ["."])
        try:
            if not flags.folders:
                rows += client.list(all_namespaces=flags.all_namespaces)
        except (NoCluster, MissingDependency):
            if is_of_cluster:
                raise
        finally:
            # Where the cluster cannot be asked, the jobs of this machine are shown all the same.
            if rows or not is_of_cluster:
                _print_rows(rows, is_json=flags.format == "json")
    return 0


def run_events(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl events`."""
    parser = job_parser(verb, summary, "[-f | --to FILE] [-o json]")
    only_one = parser.add_mutually_exclusive_group()
    text = "print new lines until the job ends"
    only_one.add_argument("-f", "--follow", action="store_true", help=text)
    text = "write a table of the job's own events, for pandas and the like: .csv or .parquet"
    only_one.add_argument("--to", metavar="FILE", type=Path, help=text)
    parser.add_format()
    flags = parser.parse_all(argv)
    log.setup("edl", level="warning")
    is_json = flags.format == "json"
    if flags.to is not None:
        event_table.require_suffix(flags.to)
        with client_of(flags) as client:
            num_rows = event_table.write(flags.to, client.recorded(flags.job))
        print(f"{flags.to}: {count(num_rows, 'event')}")
        return 0
    with client_of(flags) as client, detaching(verb, argv):
        lines = client.events(flags.job, follow=flags.follow)
        if flags.follow:
            for line in lines:
                fields = json_text.dumps(dataclasses.asdict(line))
                print_lines([fields if is_json else "  ".join(_event_row(line))])
        elif is_json:
            print(json_text.dumps([dataclasses.asdict(line) for line in lines], indent=2))
        else:
            print_lines(table(_EVENT_HEADER, [_event_row(line) for line in lines]))
    return 0


def run_report(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl report`."""
    usage = "[-o json] [--html FILE] [-n NAMESPACE] [--context CONTEXT] [--debug] JOB ..."
    parser = VerbParser(verb, summary, usage)
    text = "directory of a job here, or name of one in a cluster; several are compared"
    parser.add_argument("jobs", metavar="JOB", nargs="+", help=text)
    parser.add_place()
    parser.add_format()
    text = "also write a page with pictures, which needs no other file and no network"
    parser.add_file("--html", help=text)
    flags = parser.parse_all(argv)
    log.setup("edl", level="warning")
    with client_of(flags) as client:
        jobs = [_job_to_report(client, job) for job in flags.jobs]
        if flags.html is not None:
            _write_page(flags.html, client, jobs)
    is_one = len(jobs) == 1
    if flags.format == "json":
        fields = comparison.as_json(jobs)
        print(json_text.dumps(fields[0] if is_one else fields, indent=2))
    elif is_one:
        print_lines(_report_lines(jobs[0], now=time.time()))
    else:
        compared = comparison.comparison_table(jobs)
        print_lines(table(compared.header, compared.rows))
    return 0


def run_logs(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl logs`."""
    parser = job_parser(verb, summary, "[-f] [--rank R | --worker WORKER] [--tail N]")
    parser.add_switch("-f", "--follow", help="print new lines until the job ends")
    only_one = parser.add_mutually_exclusive_group()
    text = "only the worker that has this rank now"
    only_one.add_argument("--rank", type=int, metavar="R", help=text)
    text = "only this process: the name of a pod, or worker-0, launcher, coordinator, ..."
    only_one.add_argument("--worker", default="", metavar="WORKER", help=text)
    text = "only the last N lines of each process"
    parser.add_argument("--tail", type=int, metavar="N", help=text)
    flags = parser.parse_all(argv)
    is_one = flags.rank is not None or bool(flags.worker)
    with client_of(flags) as client, detaching(verb, argv):
        status = client.status(flags.job, is_brief=True)
        if status.details is not None and not status.details.has_started:
            StatusDisplay(flags.job)(status)  # Nothing has been written yet; this is why.
        for line in client.logs(
            flags.job, rank=flags.rank, worker=flags.worker, follow=flags.follow, tail=flags.tail
        ):
            print(line.text if is_one else f"[{line.source}] {line.text}", flush=True)
    return 0


def run_wait(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl wait`."""
    parser = job_parser(verb, summary, "[--for CONDITION] [--timeout TIME] [-q]")
    parser.add_argument(
        "--for",
        dest="condition",
        choices=CONDITIONS,
        default="finished",
        help="state to wait for; `ended` is finished or failed",
    )
    text = "wait at most this long: 30s, 10m, 2h"
    parser.add_argument("--timeout", default="", metavar="TIME", help=text)
    parser.add_quiet("do not show what the job is doing")
    flags = parser.parse_all(argv)
    seconds = _seconds(flags.timeout)
    show = None if flags.quiet else StatusDisplay(flags.job)
    log.setup("edl", level="error" if flags.quiet else "warning")
    with client_of(flags) as client, detaching(verb, argv):
        client.wait(flags.job, flags.condition, timeout_seconds=seconds, on_status=show)
    return 0


def run_dashboard(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl dashboard`."""
    usage = "[--host HOST] [--port PORT] [-n NAMESPACE] [--context CONTEXT] [--debug] [JOB]"
    parser = VerbParser(verb, summary, usage)
    text = (
        "directory of a job here, folder with jobs, or name of a job in a cluster (default: all"
        " jobs below this folder and in the cluster)"
    )
    parser.add_argument("job", metavar="JOB", nargs="?", help=text)
    parser.add_place()
    parser.add_address(host=address.HOST, port=address.PORT)
    flags = parser.parse_all(argv)
    log.setup("edl", level="warning")
    with (
        client_of(flags) as client,
        client.dashboard(flags.job, host=flags.host, port=flags.port) as dashboard,
    ):
        # SIGTERM ends this command as Ctrl-C does.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        print(dashboard.url, flush=True)
        if dashboard.is_public:
            warning = (
                "Anyone who has this URL, or who can read the network traffic, can read the page."
            )
            print(warning, file=sys.stderr)
        dashboard.serve()
    return 0


def _status_lines(status: JobStatus, *, now: float) -> list[str]:
    state, details = status.progress, status.details
    lines = fact_lines(job_facts(state, details, now=now))
    if (rows := job_table(state, details, now=now)) and rows.rows:
        lines += ["", *table(rows.header, rows.rows)]
    if details is not None:
        lines += [f"waits for: {reason}" for reason in details.other_waits]
    return lines


def _job_to_report(client: Client, job: str) -> ComparedJob:
    history, status = History(), client.status(job)
    for recorded in client.recorded(job):
        history.add(recorded)
    snapshot = history.snapshot(status.progress, status.details)
    return ComparedJob(
        name=job,
        state=status.state,
        progress=status.progress,
        details=status.details,
        slowest=snapshot.slowest,
        loss=snapshot.loss,
        resets=snapshot.resets,
    )


def _write_page(file: Path, client: Client, jobs: Sequence[ComparedJob]) -> None:
    # Its package is an extra, which the report as text does without.
    from edl_horovod.displays.page import report

    if len(jobs) == 1:
        (job,) = jobs
        recorded = client.recorded(job.name)
        page = report.render(job.name, job.progress, job.details, recorded, now=time.time())
    else:
        page = report.render_comparison(jobs)
    try:
        write_bytes(file, [page])
    except OSError as error:
        raise OutputError(
            f"The report cannot be written: {error}.",
            received={"--html": file},
            hint=hint_of(error),
        ) from error


def _report_lines(job: ComparedJob, *, now: float) -> list[str]:
    account, stops = job.progress.account, job.progress.stops
    goodput, tables = goodput_text(account), [resets_table(job.resets), stops_table(stops)]
    facts = {"state": job_facts(job.progress, job.details, now=now)["state"]}
    if goodput:
        facts["goodput"] = f"{goodput} went into steps that count"
        tables = [*account_tables(account), *tables]
        sentences = cost_sentences(job.progress)
    else:
        sentences = ["No rank of the job has written an account of its time."]
    sentences += [] if job.slowest is None else [str(job.slowest)]
    lines = fact_lines(facts)
    lines += ["", *sentences] if sentences else []
    for part in tables:
        lines += ["", *table(part.header, part.rows)] if part.rows else []
    return lines


def _print_rows(rows: Sequence[JobRow], *, is_json: bool) -> None:
    if is_json:
        print(json_text.dumps([dataclasses.asdict(row) for row in rows], indent=2))
        return
    now = time.time()
    cells = [
        (
            row.place or "-",
            row.job,
            row.state,
            f"{row.num_ready}/{row.num_wanted}",
            "" if row.step is None else f"{row.step}/{row.total_steps}",
            ago(row.created, now),
            row.message,
        )
        for row in rows
    ]
    print_lines(table(_LIST_HEADER, cells))


def _event_row(line: EventLine) -> tuple[str, ...]:
    time = f"{datetime.fromtimestamp(line.time, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return (time, line.origin, line.kind, line.source, line.text)


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
    return float(match[1]) * _SECONDS_PER_UNIT[match[2]]


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
    parser.add_switch("--no-wait", help="return before the job has ended")
    text = "do not ask for confirmation if the job saves no checkpoints"
    parser.add_switch("-y", "--yes", help=text)
    flags = parser.parse_all(argv)
    log.setup("edl", level="warning")
    job, note = flags.job, " (dry run)" if flags.dry_run else ""
    with client_of(flags) as client:
        if loss := client.loss_at_stop(job):
            confirm(f"{loss} Stop it all the same?", is_yes=flags.yes or flags.dry_run)
        first = "waiting for the job to end; Ctrl-C does not undo the stop"
        show, wait = StatusDisplay(job, first=first), not flags.no_wait
        client.stop(job, may_lose_steps=True, is_dry_run=flags.dry_run, wait=wait, on_status=show)
        state = client.status(job, is_brief=True).state if wait and not flags.dry_run else ""
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
        with open_terminal(is_quiet=is_quiet) as on_events:
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
    parser.add_switch("-y", "--yes", help="do not ask for confirmation")
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
