"""Start of a worker, beside that of the commit before the reduction was overlapped."""

import os
import signal
import statistics
import subprocess
import sys
import tarfile
import time
from functools import partial
from io import BytesIO
from pathlib import Path

from benchmarks.common import MODELS as MODEL_FILES
from benchmarks.common import RECORDIO_PATTERN, ROOT, SideFailed, interleave
from benchmarks.elastic.table import Line
from benchmarks.network.results import Failure, Found, guarded
from benchmarks.network.settings import MODELS, NUM_RANKS, Model, Run
from edl_horovod.job.events import Recorded, read
from edl_horovod.supervisor.plan import Command
from edl_horovod.supervisor.processes import Child, end_all

__all__ = ["BASE_COMMIT", "measure"]

BASE_COMMIT = "47836c4df5af0b55aa3ce615c25495b6e61f454c"
"""The last one whose step had one collective after the whole backward pass."""
START_MODELS = ("small", "resnet")
MOST_RATIO = 1.05
"""Starts of one and the same commit differ by that much."""
WAIT_SECONDS = 120.0
TICKS = os.sysconf("SC_CLK_TCK")

Seconds = dict[str, float]


def measure(run: Run) -> Found:
    """Start workers of both commits in turn, until they are warm.

    Args:
        run: Says which models.

    Raises:
        SideFailed: The base cannot be read from this repository.
    """
    base = _extract(run.place("base"))
    lines = []
    for name in START_MODELS:
        if name not in run.models:
            continue
        model = MODELS[name]
        sides = {
            side: guarded(partial(_start, run, model, root))
            for side, root in (("here", ROOT), ("base", base))
        }
        found = interleave(sides, run.settings.repetitions)
        lines += [
            _line(f"{model.title}: {what}", what_name, found["here"], found["base"])
            for what_name, what in (
                ("warm_seconds", "a worker's start until it is warm"),
                ("processor_seconds", "processor time until then"),
            )
        ]
    return Found(lines=lines)


def _line(
    event: str, name: str, here: list[Seconds | Failure], base: list[Seconds | Failure]
) -> Line:
    pairs = [
        (one[name], other[name])
        for one, other in zip(here, base, strict=True)
        if not isinstance(one, Failure) and not isinstance(other, Failure)
    ]
    failures = [side.reason for side in (*here, *base) if isinstance(side, Failure)]
    medians = [f"{statistics.median(side):.2f} s" for side in zip(*pairs, strict=True)]
    return Line(
        event=event,
        side="this commit / base",
        values=tuple(one / other for one, other in pairs),
        unit="r",
        most_median=MOST_RATIO,
        detail="; ".join([*([" / ".join(medians)] if medians else []), *dict.fromkeys(failures)]),
    )


def _extract(folder: Path) -> Path:
    """The base's package, as git has it."""
    command = ["git", "-C", str(ROOT), "archive", BASE_COMMIT, "edl_horovod", "conf"]
    done = subprocess.run(command, capture_output=True)
    if done.returncode != 0:
        raise SideFailed(f"no base to compare with: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _start(run: Run, model: Model, root: Path) -> Seconds:
    """Start a job of two ranks, wait until all are warm, and end it."""
    place = run.place("start")
    job_dir = place / "out.job"
    settings = {
        "model_zoo": MODEL_FILES,
        "model_def": model.spec,
        "data": run.data(model) / RECORDIO_PATTERN,
        "output": place / "out",
        "train.batch_size": model.batch_size,
        "launch.np": NUM_RANKS,
        "launch.threads_per_rank": 1,
    }
    arguments = [f"{name}={value}" for name, value in settings.items()]
    # The models import from `benchmarks`, which the base's folder does not have.
    path = os.pathsep.join(map(str, (root, ROOT)))
    command = Command(
        argv=(sys.executable, "-m", "edl_horovod", "train", *arguments),
        # Safe path: the working directory, which is this checkout, is not searched first.
        environment={"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    child = Child(command, place / "log")
    try:
        return _until_warm(child, job_dir)
    finally:
        child.send(signal.SIGTERM)
        child.wait(WAIT_SECONDS)
        end_all([child])


def _until_warm(child: Child, job_dir: Path) -> Seconds:
    deadline = time.monotonic() + WAIT_SECONDS
    warm: dict[str, Seconds] = {}
    while len(warm) < NUM_RANKS:
        if child.exit_code is not None or time.monotonic() > deadline:
            raise SideFailed(f"no warm workers. The log ends:\n{child.tail()}")
        time.sleep(0.02)
        events = read(job_dir / "events.jsonl") if (job_dir / "events.jsonl").exists() else []
        for worker, (pid, seconds) in _warm_workers(events).items():
            if worker not in warm:
                used = {"processor_seconds": _processor_seconds(pid)}
                warm[worker] = {"warm_seconds": seconds, **used}
    return {name: max(each[name] for each in warm.values()) for name in next(iter(warm.values()))}


def _warm_workers(events: list[Recorded]) -> dict[str, tuple[int, float]]:
    """Pid, and seconds from its start, of each worker that is warm."""
    started = {
        recorded.event.worker: recorded
        for recorded in events
        if recorded.event.kind == "worker" and recorded.event.state == "started"
    }
    return {
        recorded.event.worker: (
            started[recorded.event.worker].event.pid,
            recorded.time - started[recorded.event.worker].time,
        )
        for recorded in events
        if recorded.event.kind == "worker" and recorded.event.state == "warm"
    }


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
