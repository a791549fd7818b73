"""Events of jobs in which a test says only what it is about."""

from pathlib import Path
from typing import Any

from edl_horovod.job import events
from edl_horovod.job.events import Event, Recorded

DEFAULTS: dict[str, dict[str, Any]] = {
    "job": {"state": "running"},
    "worker": {"worker": "localhost:0", "state": "warm"},
    "account": {"pid": 1, "began": 0.0, "seconds": {}},
    "trace": {"generation": 1, "reason": "", "doing": "works", "phase": "step 7", "seconds": 1.0},
    "coordinator": {"pid": 1},
    "generation": {"generation": 1, "size": 1, "members": (), "reason": ""},
    "reset": {
        "generation": 1,
        "old_size": 0,
        "new_size": 1,
        "step": 0,
        "records_seen": 0,
        "seconds": 0.0,
        "reason": "",
    },
    "autoscale": {"limit": 1, "reason": ""},
    "step": {
        "step": 1,
        "total_steps": 100,
        "epoch": 0,
        "loss": 0.5,
        "records_per_second": 1.0,
        "records_seen": 0,
        "size": 1,
        "metrics": {},
    },
    "evaluation": {"step": 1, "metrics": {}, "examples": 1},
    "progress": {"records": 0, "total_records": 1, "size": 1},
    "checkpoint": {"state": "written", "step": 1},
    "privacy": {"step": 1, "epsilon": 1.0, "delta": 1e-5, "passes": 1},
    "discovery": {"state": "current", "message": ""},
    "summary": {
        "state": "running",
        "task": "train",
        "message": "",
        "output": "",
        "step": 1,
        "total_steps": 100,
        "epoch": 0,
        "loss": 0.5,
        "records": 0,
        "total_records": 0,
        "generation": 1,
        "size": 1,
        "members": (),
        "num_resets": 0,
        "metrics": {},
        "parties": {},
    },
    "log": {"message": ""},
}
KINDS = {kind.kind: kind for kind in Event.__subclasses__()}


def event(kind: str, **fields: Any) -> Event:
    """An event of a kind.

    Args:
        kind: As a log has it.
        **fields: What the test is about.
    """
    return KINDS[kind](**{**DEFAULTS[kind], **fields})


def recorded(kind: str, time: float = 0.0, source: str = "test", **fields: Any) -> Recorded:
    """An event as a log has it; see `event`."""
    return events.Recorded(time, source, event(kind, **fields))


def append(job_dir: Path, source: str, *events_of_source: Event) -> None:
    """Write events into the log of a job, as its process `source` does."""
    with events.EventLog(job_dir / "events.jsonl", source) as log:
        for written in events_of_source:
            log.write(written)
