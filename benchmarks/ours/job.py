"""The real job: `edl train` with its coordinator, workers and events."""

import argparse
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks import arrays
from benchmarks.common import (
    COST_FOLDER_VARIABLE,
    FOLDER_VARIABLE,
    FRAMEWORK_VARIABLE,
    MODELS,
    RECORDIO_PATTERN,
    WARMUP_VARIABLE,
    side_parser,
    write_numbers,
)
from benchmarks.watched import DYNAMIC_TIMELINE, TIMELINE_VARIABLE
from edl_horovod.config.schema import (
    CheckpointConfig,
    ElasticConfig,
    JobConfig,
    LaunchConfig,
    TrainConfig,
)
from edl_horovod.job.events import Recorded, read
from edl_horovod.job.lifeline import end_with_parent
from edl_horovod.launch.local import LocalTarget
from edl_horovod.supervisor.plan import LaunchPlan
from edl_horovod.supervisor.run import run_plan

MANY_EPOCHS = 1_000_000
"""The steps end the job, not the epochs."""
STAMPING_WORKER = "benchmarks.ours.stamping_worker"


def main() -> int:
    """Run the job and read its speed from its events; returns the exit code."""
    parser = side_parser(__doc__.partition("\n")[0])
    parser.add_argument("--np", type=int, required=True, help="ranks")
    parser.add_argument(
        "--timed", action="store_true", help="workers that measure what their parts cost"
    )
    parser.add_argument(
        "--checkpoint-steps", type=int, default=0, help="save after so many steps; 0 for never"
    )
    parser.add_argument("--spec", default="cnn.CnnSpec", help="of benchmarks/models")
    parser.add_argument("--framework", default="keras", help="of the spec")
    parser.add_argument("--stamps", type=Path, help="folder where workers write down their steps")
    parser.add_argument(
        "--timeline-step", type=int, help="with --stamps: begin Horovod's timeline after it"
    )
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        metavar="GROUP.NAME=VALUE",
        help="further settings; the value is YAML",
    )
    args = parser.parse_args()
    end_with_parent()
    plan = LocalTarget().plan(_config(args))
    if args.timed:
        variables = {
            WARMUP_VARIABLE: str(args.warmup_steps),
            COST_FOLDER_VARIABLE: str(plan.job_dir.path),
        }
        plan = with_worker(plan, "benchmarks.ours.timed_worker", variables)
    if args.stamps is not None:
        variables = {FOLDER_VARIABLE: str(args.stamps), FRAMEWORK_VARIABLE: args.framework}
        if args.timeline_step is not None:
            variables |= {TIMELINE_VARIABLE: str(args.timeline_step), **DYNAMIC_TIMELINE}
        plan = with_worker(plan, STAMPING_WORKER, variables)
    job_dir = Path(run_plan(plan).job_dir)
    numbers = {"step_seconds": _step_seconds(read(job_dir / "events.jsonl"), args)}
    if args.timed:
        costs = [json.loads(path.read_text()) for path in job_dir.glob("cost.*.json")]
        assert len(costs) == args.np, costs
        # A ring is as slow as its slowest rank.
        for name in costs[0]:
            numbers[name] = max(cost[name] for cost in costs)
    if args.checkpoint_steps:
        numbers |= _writing(read(job_dir / "events.jsonl"), args)
    write_numbers(args.place, numbers)
    return 0


def with_worker(plan: LaunchPlan, module: str, variables: dict[str, str]) -> LaunchPlan:
    """The plan with workers that measure something.

    Args:
        plan: Of a job of this machine.
        module: Run in the worker's place; it takes the same arguments.
        variables: What it needs in its environment.
    """
    argv = [module if part == "edl_horovod.worker" else part for part in plan.worker.argv]
    environment = {**plan.worker.environment, **variables}
    return replace(plan, worker=replace(plan.worker, argv=tuple(argv), environment=environment))


def data_of(folder: Path, framework: str) -> str:
    """The setting `data` for the records of a folder.

    Args:
        folder: With what the framework's sides train on.
        framework: PyTorch's sides share arrays, Keras' RecordIO.
    """
    return str(folder / (arrays.FILE_NAME if framework == "torch" else RECORDIO_PATTERN))


def with_settings(config: JobConfig, settings: list[str]) -> JobConfig:
    """The settings with some of them changed.

    Args:
        config: Of a job.
        settings: `GROUP.NAME=VALUE`, the value as YAML.

    Raises:
        TypeError: There is no such setting in this checkout.
    """
    for text in settings:
        key, _, value = text.partition("=")
        group, _, name = key.partition(".")
        changed = replace(getattr(config, group), **{name: yaml.safe_load(value)})
        config = replace(config, **{group: changed})
    return config


def _config(args: argparse.Namespace) -> JobConfig:
    config = JobConfig(
        task="train",
        data=data_of(args.data, args.framework),
        framework=args.framework,
        output=str(args.place / "out"),
        model_zoo=str(MODELS),
        model_def=args.spec,
        train=TrainConfig(
            batch_size=args.batch_size, epochs=MANY_EPOCHS, max_steps=args.total_steps
        ),
        checkpoint=CheckpointConfig(every_steps=args.checkpoint_steps, every_seconds=0),
        launch=LaunchConfig(np=args.np),
        # The ring waits for all its ranks, or the first steps would be those of a smaller one.
        elastic=ElasticConfig(min_np=args.np),
    )
    return with_settings(config, args.set)


def _writing(events: list[Recorded], args: Any) -> dict[str, float]:
    """What the writing threads did, beside training."""
    written = [e for e in events if e.event.kind == "checkpoint"]
    assert all(recorded.event.state == "written" for recorded in written), written
    assert len(written) >= args.total_steps // args.checkpoint_steps, written
    return {
        "checkpoint_bytes": written[-1].event.num_bytes,
        "write_seconds": statistics.median(recorded.event.seconds for recorded in written),
    }


def _step_seconds(events: list[Recorded], args: Any) -> float:
    """From the first event after the warm-up to the last."""
    steps = [e for e in events if e.event.kind == "step" and e.event.step >= args.warmup_steps]
    assert all(recorded.event.size == args.np for recorded in steps), "the ring was not whole"
    first, last = steps[0], steps[-1]
    assert last.event.step == args.total_steps > first.event.step, (first, last)
    return float((last.time - first.time) / (last.event.step - first.event.step))


if __name__ == "__main__":
    sys.exit(main())
