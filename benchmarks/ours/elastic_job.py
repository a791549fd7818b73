"""The real job with workers that stamp their steps, for who drives it by its hosts file."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.common import FOLDER_VARIABLE, FRAMEWORK_VARIABLE, MODELS, RECORDIO_PATTERN
from benchmarks.ours.job import MANY_EPOCHS, STAMPING_WORKER, data_of, with_worker
from edl_horovod.config.schema import ElasticConfig, JobConfig, LaunchConfig, TrainConfig
from edl_horovod.errors import EdlError
from edl_horovod.job.lifeline import end_with_parent
from edl_horovod.launch.local import LocalTarget
from edl_horovod.supervisor.run import run_plan

BATCH_SIZE = 128


def main() -> int:
    """Run the job to its end, or until a signal ends it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the records")
    parser.add_argument("--job-dir", type=Path, required=True)
    parser.add_argument("--np", type=int, required=True, help="slots to start with")
    parser.add_argument("--max-steps", type=int, default=0, help="0: no end")
    parser.add_argument("--backoff", type=float, default=0.01, help="before a second restart")
    parser.add_argument("--max-np", type=int, help="most ranks; the other slots wait warm")
    parser.add_argument("--spares", type=int, default=0, help="warm workers beyond the slots")
    parser.add_argument(
        "--stall-seconds",
        type=float,
        default=ElasticConfig.stall_seconds,
        help="until a rank that hangs is ended",
    )
    parser.add_argument("--spec", default="cnn.CnnSpec", help="of benchmarks/models")
    parser.add_argument("--framework", default="keras", help="of the spec")
    parser.add_argument("--batch-size", type=int, default=128, help="the global batch, records")
    args = parser.parse_args()
    end_with_parent()
    elastic = ElasticConfig(
        restart_backoff_seconds=args.backoff,
        max_np=args.max_np,
        spares=args.spares,
        stall_seconds=args.stall_seconds,
    )
    config = job_config(
        args.data, args.job_dir, np=args.np, max_steps=args.max_steps, elastic=elastic
    )
    train = replace(config.train, batch_size=args.batch_size)
    data = data_of(args.data, args.framework)
    config = replace(config, model_def=args.spec, framework=args.framework, data=data, train=train)
    try:
        plan = LocalTarget().plan(config)
        stamps = str(plan.job_dir.path / "stamps")
        variables = {FOLDER_VARIABLE: stamps, FRAMEWORK_VARIABLE: args.framework}
        run_plan(with_worker(plan, STAMPING_WORKER, variables))
    except EdlError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def job_config(
    data: Path, job_dir: Path, *, np: int, elastic: ElasticConfig, max_steps: int = 0
) -> JobConfig:
    """The settings of the job that all events are measured on.

    Args:
        data: Folder of the records.
        job_dir: Of the job.
        np: Slots to start with.
        elastic: How its rings change.
        max_steps: 0 for no end.
    """
    return JobConfig(
        task="train",
        data=str(data / RECORDIO_PATTERN),
        output=str(job_dir.with_suffix(".out")),
        job_dir=str(job_dir),
        model_zoo=str(MODELS),
        model_def="cnn.CnnSpec",
        train=TrainConfig(batch_size=BATCH_SIZE, epochs=MANY_EPOCHS, max_steps=max_steps),
        launch=LaunchConfig(np=np, threads_per_rank=1),
        elastic=elastic,
    )


if __name__ == "__main__":
    sys.exit(main())
