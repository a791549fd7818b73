"""`edl status`: where a job is, from its event log."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edl_horovod import events, json_text
from edl_horovod.cli import job_dir as job_dirs
from edl_horovod.cli.arguments import VerbParser
from edl_horovod.cli.in_cluster import add_cluster_flags, is_job_dir, jobs_of
from edl_horovod.cli.layout import ago, fact_lines, table
from edl_horovod.cli.progress import metrics_text
from edl_horovod.job_state import JobState, summarize

if TYPE_CHECKING:
    from edl_horovod.cluster.status import JobView

__all__ = ["run"]

_ENDED = ("finished", "failed")


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
        state = _state_of(Path(flags.job))
    else:
        with jobs_of(flags) as jobs:
            job, state = jobs.status(flags.job), jobs.progress(flags.job)
    if flags.format == "json":
        print(json_text.dumps(_as_json(state, job), indent=2))
    else:
        print("\n".join(_lines(state, job, now=time.time())))
    return 0


def _state_of(job_dir: Path) -> JobState:
    config = job_dirs.read_config(job_dir)
    happened = events.read(job_dir / "events.jsonl")
    state = summarize(happened)
    state = dataclasses.replace(
        state, task=state.task or config.task, output=state.output or config.output
    )
    if state.state in _ENDED:
        return state
    if not any(event["source"] == "launcher" for event in happened):
        return dataclasses.replace(state, message=_last_sign(happened))
    if not job_dirs.is_running(job_dir):
        return dataclasses.replace(
            state, state="lost", message="the launcher is gone and did not say how the job ended"
        )
    return state


def _last_sign(happened: Sequence[dict[str, Any]]) -> str:
    """What is known of a job that plain horovodrun launched: it cannot be asked."""
    if not happened:
        return "nothing has happened yet"
    age = ago(happened[-1]["time"], time.time())
    return f"edl did not launch it, so its events are all that is known; the last is {age} old"


def _as_json(state: JobState, job: "JobView | None") -> dict[str, Any]:
    values = dataclasses.asdict(state)
    del values["recent"]
    values |= {"seconds_left": state.seconds_left, "spares": state.spares}
    return values if job is None else {**values, **dataclasses.asdict(job)}


def _lines(state: JobState, job: "JobView | None", *, now: float) -> list[str]:
    said = state if job is None else job
    rows = {"state": f"{said.state}: {said.message}" if said.message else said.state}
    if job is not None:
        rows["workers"] = f"{job.num_warm} of {job.num_wanted} pods warm"
        rows["age"] = ago(job.created, now)
    rows |= _facts(state)
    lines = fact_lines(rows)
    if job is not None:
        lines += ["", *_pod_lines(job)]
    elif state.workers:
        lines += ["", *_worker_lines(state, now)]
    return lines


def _facts(state: JobState) -> dict[str, str]:
    if not state.task:
        return {}  # Nothing has been heard of it yet.
    done = f"{state.done:,} of {state.total:,}" if state.total else f"{state.done:,}"
    return {
        "task": state.task,
        "records" if state.total_records else "step": done,
        "loss": "" if state.loss is None else f"{state.loss:.4g}",
        "records/s": "" if state.records_per_second is None else f"{state.records_per_second:,.0f}",
        "metrics": metrics_text(state.metrics) if state.metrics else "",
        "ring": f"{_count(state.size, 'rank')}, generation {state.generation}, "
        f"{_count(state.num_resets, 'reset')}",
        "spares": ", ".join(state.spares),
        "output": state.output,
    }


def _pod_lines(job: "JobView") -> list[str]:
    rows = [(pod.name, pod.state, pod.restarts, pod.node, pod.message) for pod in job.pods]
    lines = table(("POD", "STATE", "RESTARTS", "NODE", "MESSAGE"), rows)
    known = {f"{pod.name}: {pod.message}" for pod in job.pods}
    return lines + [f"waits for: {reason}" for reason in job.waits_for if reason not in known]


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _worker_lines(state: JobState, now: float) -> list[str]:
    rows = [
        (name, worker.state, ago(worker.since, now), worker.message)
        for name, worker in sorted(state.workers.items())
    ]
    return table(("WORKER", "STATE", "SINCE", "MESSAGE"), rows)
