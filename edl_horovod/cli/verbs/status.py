"""`edl status`: where a job is, from its event log."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edl_horovod.cli.arguments import VerbParser
from edl_horovod.cli.in_cluster import add_cluster_flags, is_job_dir, jobs_of
from edl_horovod.cli.layout import fact_lines, table
from edl_horovod.displays.status import as_json, local_state
from edl_horovod.displays.text import (
    POD_HEADER,
    WORKER_HEADER,
    job_facts,
    other_waits,
    pod_rows,
    worker_rows,
)
from edl_horovod.errors import ClusterError
from edl_horovod.files import json_text
from edl_horovod.job import events
from edl_horovod.job.directory import JobDir
from edl_horovod.job.state import JobState, summarize

if TYPE_CHECKING:
    from edl_horovod.cluster.jobs import Jobs
    from edl_horovod.cluster.status import JobView

__all__ = ["run"]


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run the verb.

    Args:
        verb: `status`.
        summary: One line about it.
        argv: What follows it.
    """
    usage = "[-o json] [-n NAMESPACE] [--context CONTEXT] [--debug] JOB"
    parser = VerbParser(verb, summary=summary, usage=usage)
    parser.add_job()
    parser.add_format()
    add_cluster_flags(parser)
    flags = parser.parse_all(argv)
    job = None
    if is_job_dir(flags.job):
        state = _state_of(JobDir(Path(flags.job)))
    else:
        with jobs_of(flags) as jobs:
            job, state = jobs.status(flags.job), _progress(jobs, flags.job)
    if flags.format == "json":
        print(json_text.dumps(as_json(state, job), indent=2))
    else:
        print("\n".join(_lines(state, job, now=time.time())))
    return 0


def _progress(jobs: "Jobs", name: str) -> JobState:
    try:
        return jobs.progress(name)
    except ClusterError as error:
        # State and pods are known all the same; a log may be forbidden, or gone with its node.
        print(f"Step, loss and ring cannot be read: {error}", file=sys.stderr)
        return summarize(())


def _state_of(job_dir: JobDir) -> JobState:
    happened = events.read(job_dir.events)
    return local_state(
        job_dir,
        summarize(happened),
        is_ours=any(event["source"] == "launcher" for event in happened),
        last_time=happened[-1]["time"] if happened else None,
    )


def _lines(state: JobState, job: "JobView | None", *, now: float) -> list[str]:
    lines = fact_lines(job_facts(state, job, now=now))
    if job is not None:
        lines += ["", *table(POD_HEADER, pod_rows(job))] if job.pods else []
        lines += [f"waits for: {reason}" for reason in other_waits(job)]
    elif state.workers:
        lines += ["", *table(WORKER_HEADER, worker_rows(state, now))]
    return lines
