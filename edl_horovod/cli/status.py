"""`edl status`: where a job is, from its event log."""

import dataclasses
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from edl_horovod import events, json_text
from edl_horovod.cli import job_dir as job_dirs
from edl_horovod.cli.arguments import VerbParser
from edl_horovod.cli.facts import fact_lines
from edl_horovod.cli.job_state import JobState, summarize
from edl_horovod.cli.progress import metrics_text

__all__ = ["run"]

_ENDED = ("finished", "failed")


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run the verb.

    Args:
        verb: `status`.
        summary: One line about it.
        argv: What follows it.
    """
    parser = VerbParser(verb, summary=summary, usage="[-o json] [--debug] JOB_DIR")
    parser.add_job_dir()
    parser.add_format()
    flags = parser.parse_all(argv)
    state = _state_of(flags.job_dir)
    if flags.format == "json":
        print(json_text.dumps(_as_json(state), indent=2))
    else:
        print(_as_table(state, now=time.time()))
    return 0


def _state_of(job_dir: Path) -> JobState:
    config = job_dirs.read_config(job_dir)
    state = summarize(events.read(job_dir / "events.jsonl"))
    state = dataclasses.replace(
        state, task=state.task or config.task, output=state.output or config.output
    )
    if state.state not in _ENDED and not job_dirs.is_running(job_dir):
        return dataclasses.replace(
            state, state="lost", message="the launcher is gone and did not say how the job ended"
        )
    return state


def _as_json(state: JobState) -> dict[str, Any]:
    values = dataclasses.asdict(state)
    del values["recent"]
    return {**values, "seconds_left": state.seconds_left, "spares": state.spares}


def _as_table(state: JobState, *, now: float) -> str:
    done = f"{state.done:,} of {state.total:,}" if state.total else f"{state.done:,}"
    rows = {
        "state": f"{state.state}: {state.message}" if state.message else state.state,
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
    lines = fact_lines(rows)
    if state.workers:
        lines += ["", *_worker_lines(state, now)]
    return "\n".join(lines)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _worker_lines(state: JobState, now: float) -> list[str]:
    width = max(len("WORKER"), *map(len, state.workers))
    lines = [f"{'WORKER':{width}}  {'STATE':8}  {'SINCE':>9}  MESSAGE"]
    for name, worker in sorted(state.workers.items()):
        ago = str(timedelta(seconds=round(max(now - worker.since, 0))))
        lines.append(f"{name:{width}}  {worker.state:8}  {ago:>9}  {worker.message}".rstrip())
    return lines
