"""`edl status`: where a job is, and what it waits for."""

import time
from collections.abc import Sequence

from edl_horovod.cli.jobs import client_of, job_parser
from edl_horovod.cli.layout import fact_lines, table
from edl_horovod.displays.status import as_json
from edl_horovod.displays.text import (
    POD_HEADER,
    WORKER_HEADER,
    job_facts,
    other_waits,
    pod_rows,
    worker_rows,
)
from edl_horovod.files import json_text
from edl_horovod.job import log
from edl_horovod.launch.jobs import JobStatus

__all__ = ["run"]


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
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
        print("\n".join(_lines(status, now=time.time())))
    return 0


def _lines(status: JobStatus, *, now: float) -> list[str]:
    state, job = status.progress, status.in_cluster
    lines = fact_lines(job_facts(state, job, now=now))
    if job is not None:
        lines += ["", *table(POD_HEADER, pod_rows(job))] if job.pods else []
        lines += [f"waits for: {reason}" for reason in other_waits(job)]
    elif state.workers:
        lines += ["", *table(WORKER_HEADER, worker_rows(state, now))]
    return lines
