"""The verbs that show jobs: `status`, `list`, `events`, `logs`, `wait` and `dashboard`."""

import dataclasses
import re
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from edl_horovod.cli.arguments import VerbParser
from edl_horovod.cli.jobs import StatusDisplay, client_of, detaching, job_parser
from edl_horovod.cli.layout import fact_lines, table
from edl_horovod.displays.page import address
from edl_horovod.displays.text import (
    POD_HEADER,
    WORKER_HEADER,
    ago,
    as_json,
    job_facts,
    other_waits,
    pod_rows,
    worker_rows,
)
from edl_horovod.errors import ConfigError, MissingDependency, NoCluster
from edl_horovod.files import json_text
from edl_horovod.job import log
from edl_horovod.launch.jobs import EventLine, JobRow, JobStatus
from edl_horovod.launch.waiting import CONDITIONS

__all__ = [
    "run_status",
    "run_list",
    "run_events",
    "run_logs",
    "run_wait",
    "run_dashboard",
]

_LIST_HEADER = ("NAMESPACE", "JOB", "STATE", "RANKS", "STEP", "AGE", "MESSAGE")
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
        print(json_text.dumps(as_json(status.progress, status.in_cluster), indent=2))
    else:
        print("\n".join(_status_lines(status, now=time.time())))
    return 0


def run_list(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl list`."""
    usage = "[-n NAMESPACE | -A] [--context CONTEXT] [-o json] [--debug] [FOLDER ...]"
    parser = VerbParser(verb, summary=summary, usage=usage, epilog=lambda: _LIST_HELP)
    parser.add_argument("folders", metavar="FOLDER", nargs="*", help="search this folder for jobs")
    parser.add_place()
    parser.add_argument(
        "-A", "--all-namespaces", action="store_true", help="list the jobs of all namespaces"
    )
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
    parser = job_parser(verb, summary, "[-f] [-o json]")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="print new lines until the job ends"
    )
    parser.add_format()
    flags = parser.parse_all(argv)
    log.setup("edl", level="warning")
    is_json = flags.format == "json"
    with client_of(flags) as client, detaching(verb, argv):
        lines = client.events(flags.job, follow=flags.follow)
        if flags.follow:
            for line in lines:
                text = (
                    json_text.dumps(dataclasses.asdict(line))
                    if is_json
                    else "  ".join(_event_row(line))
                )
                print(text, flush=True)
        elif is_json:
            print(json_text.dumps([dataclasses.asdict(line) for line in lines], indent=2))
        else:
            print("\n".join(table(_EVENT_HEADER, [_event_row(line) for line in lines])))
    return 0


def run_logs(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl logs`."""
    parser = job_parser(verb, summary, "[-f] [--rank R | --worker WORKER] [--tail N]")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="print new lines until the job ends"
    )
    only_one = parser.add_mutually_exclusive_group()
    only_one.add_argument(
        "--rank", type=int, metavar="R", help="only the worker that has this rank now"
    )
    only_one.add_argument(
        "--worker",
        default="",
        metavar="WORKER",
        help="only this process: the name of a pod, or worker-0, launcher, coordinator, ...",
    )
    parser.add_argument(
        "--tail", type=int, metavar="N", help="only the last N lines of each process"
    )
    flags = parser.parse_all(argv)
    is_one = flags.rank is not None or bool(flags.worker)
    with client_of(flags) as client, detaching(verb, argv):
        status = client.status(flags.job, is_brief=True)
        pods = status.in_cluster.pods if status.in_cluster is not None else None
        if pods is not None and all(pod.state == "pending" for pod in pods):
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
    parser.add_argument(
        "--timeout", default="", metavar="TIME", help="wait at most this long: 30s, 10m, 2h"
    )
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="do not show what the job is doing"
    )
    flags = parser.parse_all(argv)
    seconds = _seconds(flags.timeout)
    show = None if flags.quiet else StatusDisplay(flags.job)
    log.setup("edl", level="error" if flags.quiet else "warning")
    with client_of(flags) as client, detaching(verb, argv):
        client.wait(flags.job, flags.condition, timeout_seconds=seconds, on_status=show)
    return 0


def run_dashboard(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl dashboard`."""
    parser = job_parser(verb, summary, "[--host HOST] [--port PORT]")
    parser.add_argument(
        "--host",
        default=address.HOST,
        help="address to listen on (default: only this machine can connect)",
    )
    parser.add_argument(
        "--port", type=int, default=address.PORT, help="port to listen on; 0 means any free port"
    )
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
            print(
                "Anyone who can reach this port can read the page: it asks for no password.",
                file=sys.stderr,
            )
        dashboard.serve()
    return 0


def _status_lines(status: JobStatus, *, now: float) -> list[str]:
    state, job = status.progress, status.in_cluster
    lines = fact_lines(job_facts(state, job, now=now))
    if job is not None:
        lines += ["", *table(POD_HEADER, pod_rows(job))] if job.pods else []
        lines += [f"waits for: {reason}" for reason in other_waits(job)]
    elif state.workers:
        lines += ["", *table(WORKER_HEADER, worker_rows(state, now))]
    return lines


def _print_rows(rows: Sequence[JobRow], *, is_json: bool) -> None:
    if is_json:
        print(json_text.dumps([dataclasses.asdict(row) for row in rows], indent=2))
        return
    now = time.time()
    cells = [
        (
            row.namespace or "-",
            row.job,
            row.state,
            f"{row.num_ready}/{row.num_wanted}",
            "" if row.step is None else f"{row.step}/{row.total_steps}",
            ago(row.created, now),
            row.message,
        )
        for row in rows
    ]
    print("\n".join(table(_LIST_HEADER, cells)))


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
