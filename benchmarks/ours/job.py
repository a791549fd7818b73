"""Our side of the comparisons that run a whole job: train, predict, prepare, export of a SELECT."""

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import edl_horovod
from benchmarks.ours import measured_worker
from benchmarks.run import MODELS, ROOT
from benchmarks.side import Numbers, Work
from edl_horovod.api import run
from edl_horovod.config import schema
from edl_horovod.job.events import Recorded, read
from edl_horovod.job.lifeline import end_with_parent
from edl_horovod.launch.local import LocalTarget
from edl_horovod.sql.engine import open_engine
from edl_horovod.sql.export import export
from edl_horovod.supervisor.plan import LaunchPlan
from edl_horovod.supervisor.run import run_plan

MANY_EPOCHS = 1_000_000
"""The steps end the job, not the epochs."""
SPEC = "cnn.CnnSpec"


def train(
    work: Work,
    place: Path,
    np: int,
    spec: str = SPEC,
    framework: str = "keras",
    is_timed: bool = False,
    checkpoint_steps: int = 0,
    stamps: str | None = None,
    settings: dict[str, Any] | None = None,
) -> Numbers:
    """Train on a ring that never changes, and read the job's speed from its events.

    Workers measure what their elastic parts cost where the job is timed, and write down their steps
    in the folder of the stamps. Checkpoints are after
    every so many steps; settings have names such as `train.compression`.
    """
    end_with_parent()
    config = job_config(
        work,
        place / "out",
        spec=spec,
        framework=framework,
        max_steps=work.total_steps,
        checkpoint=schema.CheckpointConfig(every_steps=checkpoint_steps, every_seconds=0),
        launch=schema.LaunchConfig(np=np),
        # The ring waits for all its ranks, or the first steps would be those of a smaller one.
        elastic=schema.ElasticConfig(min_np=np),
    )
    for key, value in (settings or {}).items():
        section, _, name = key.partition(".")
        before = getattr(config, section)
        # A section within the section is an object in JSON.
        value = replace(getattr(before, name), **value) if isinstance(value, dict) else value
        changed = replace(before, **{name: value})
        config = replace(config, **{section: changed})
    plan = LocalTarget().plan(config)
    if is_timed:
        plan = _measured(plan, costs=plan.job_dir.path, warmup_steps=work.warmup_steps)
    if stamps is not None:
        plan = _measured(plan, stamps=stamps, framework=framework)
    job_dir = Path(run_plan(plan).job_dir)
    events = read(job_dir / "events.jsonl")
    numbers = {"step_seconds": _step_seconds(events, work, np)}
    if is_timed:
        costs = [json.loads(path.read_text()) for path in job_dir.glob("cost.*.json")]
        assert len(costs) == np, costs
        # A ring is as slow as its slowest rank.
        numbers |= {name: max(cost[name] for cost in costs) for name in costs[0]}
    if checkpoint_steps:
        written = [recorded.event for recorded in events if recorded.event.kind == "checkpoint"]
        assert all(event.state == "written" for event in written), written
        assert len(written) >= work.total_steps // checkpoint_steps, written
        numbers["checkpoint_bytes"] = written[-1].num_bytes
        numbers["write_seconds"] = statistics.median(event.seconds for event in written)
    return numbers


def drive(
    work: Work,
    place: Path,
    np: int,
    max_steps: int = 0,
    spec: str = SPEC,
    framework: str = "keras",
    device_seconds: float = 0.0,
    ledger: bool = False,
    elastic: dict[str, Any] | None = None,
) -> None:
    """Train in `PLACE/job` with workers that stamp their steps, driven by the job's hosts file.

    A device makes a step of a rank alone wait so long; without `max_steps` the job does not end.
    A ledger has the loss of each step.
    """
    end_with_parent()
    ring = schema.ElasticConfig(**{"restart_backoff_seconds": 0.01, **(elastic or {})})
    training = {"spec": spec, "framework": framework, "max_steps": max_steps}
    training |= {"debug": schema.DebugConfig(ledger=ledger)}
    config = elastic_config(work, place / "job", np=np, elastic=ring, **training)
    plan = LocalTarget().plan(config)
    stamps = place / "job" / "stamps"
    run_plan(_measured(plan, stamps=stamps, framework=framework, device_seconds=device_seconds))


def elastic_config(work: Work, job_dir: Path, *, np: int, **settings: Any) -> schema.JobConfig:
    """The settings of a job on which events are measured, with some slots to start with."""
    launch = schema.LaunchConfig(np=np, threads_per_rank=1)
    output = job_dir.with_suffix(".out")
    return job_config(work, output, job_dir=str(job_dir), launch=launch, **settings)


def job_config(
    work: Work,
    output: Path,
    *,
    spec: str = SPEC,
    framework: str = "keras",
    max_steps: int = 0,
    **settings: Any,
) -> schema.JobConfig:
    """The settings of a training; PyTorch's sides share arrays, those of Keras RecordIO."""
    return schema.JobConfig(
        task="train",
        data=str(work.data / ("pictures.npz" if framework == "torch" else "*.recordio")),
        framework=framework,
        output=str(output),
        model_zoo=str(MODELS),
        model_def=spec,
        train=schema.TrainConfig(
            batch_size=work.batch_size, epochs=MANY_EPOCHS, max_steps=max_steps
        ),
        **settings,
    )


def _measured(plan: LaunchPlan, **options: Any) -> LaunchPlan:
    """The plan with workers that measure something."""
    worker = plan.worker
    module = measured_worker.__name__
    argv = tuple(module if part == "edl_horovod.worker" else part for part in worker.argv)
    text = json.dumps(options, default=str)
    variables = {measured_worker.OPTIONS_VARIABLE: text}
    environment = {**worker.environment, **variables}
    return replace(plan, worker=replace(worker, argv=argv, environment=environment))


def _step_seconds(events: Sequence[Recorded], work: Work, np: int) -> float:
    """From the first event after the warm-up to the last."""
    steps = [e for e in events if e.event.kind == "step" and e.event.step >= work.warmup_steps]
    assert all(recorded.event.size == np for recorded in steps), "the ring was not whole"
    first, last = steps[0], steps[-1]
    assert last.event.step == work.total_steps > first.event.step, (first, last)
    return float((last.time - first.time) / (last.event.step - first.event.step))


def train_once(work: Work, place: Path, model: str, spec: str) -> None:
    """Make a model by a single step."""
    end_with_parent()
    run(job_config(work, Path(model), spec=spec, max_steps=1))


def predict(work: Work, place: Path, model: str) -> Numbers:
    """Predict on one rank; the time is from its ring to its output in place."""
    end_with_parent()
    config = schema.JobConfig(
        task="predict",
        data=str(work.data / "*.recordio"),
        output=str(place / "out"),
        trained_model=model,
        train=schema.TrainConfig(batch_size=work.batch_size),
    )
    first: dict[str, Recorded] = {}
    for recorded in read(Path(run(config).job_dir) / "events.jsonl"):
        first.setdefault(recorded.event.kind, recorded)
    seconds = first["log"].time - first["reset"].time
    return {"rate": first["progress"].event.total_records / seconds}


def prepare(work: Work, place: Path, processes: int) -> Numbers:
    """Files per second of `prepare` with a model of the zoo: all of it, and once it is up.

    A process imports TensorFlow first, one sooner than the other. The pace is that of the last
    three quarters of the files, when all of them work.
    """
    progress: list[tuple[float, int]] = []
    began = time.perf_counter()
    result = edl_horovod.prepare(
        data=str(work.data),
        output=str(place / "records"),
        model_zoo=str(ROOT / "model_zoo"),
        model_def="cifar10_functional_api",
        processes=processes,
        on_progress=lambda done, *_: progress.append((time.perf_counter(), done)),
    )
    seconds = time.perf_counter() - began
    up_time, up_files = next(entry for entry in progress if entry[1] >= result.num_files / 4)
    last_time, last_files = progress[-1]
    pace = (last_files - up_files) / (last_time - up_time)
    return {"pace": pace, "whole_pace": result.num_files / seconds}


def export_rows(work: Work, place: Path, url: str, select: str) -> Numbers:
    """Rows per second of the export of a SELECT into Parquet."""
    began = time.perf_counter()
    with open_engine(url) as engine:
        table = export(engine, select, place / "rows", nulls={}, tell=print)
    return {"rate": table.num_rows / (time.perf_counter() - began)}
