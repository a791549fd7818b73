"""The real `predict` job on one rank, from its ring to its output in place."""

import sys
from pathlib import Path

from benchmarks.common import MODELS, RECORDIO_PATTERN, side_parser, write_numbers
from edl_horovod.api import run
from edl_horovod.config.schema import JobConfig, TrainConfig
from edl_horovod.job.events import read
from edl_horovod.job.lifeline import end_with_parent


def main() -> int:
    """Train a model for one step, or predict with it; returns the exit code."""
    parser = side_parser(__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="the trained model")
    parser.add_argument("--train", metavar="SPEC", help="make the model instead")
    args = parser.parse_args()
    end_with_parent()
    data, train = str(args.data / RECORDIO_PATTERN), TrainConfig(batch_size=args.batch_size)
    if args.train:
        config = JobConfig(
            task="train",
            data=data,
            output=str(args.model),
            model_zoo=str(MODELS),
            model_def=f"cnn.{args.train}",
            train=TrainConfig(batch_size=args.batch_size, max_steps=1),
        )
        run(config)
        write_numbers(args.place, {})
        return 0
    config = JobConfig(
        task="predict",
        data=data,
        output=str(args.place / "out"),
        trained_model=str(args.model),
        train=train,
    )
    events = read(Path(run(config).job_dir) / "events.jsonl")
    begin = next(recorded.time for recorded in events if recorded.event.kind == "reset")
    end = next(recorded.time for recorded in events if recorded.event.kind == "log")
    total = next(
        recorded.event.total_records for recorded in events if recorded.event.kind == "progress"
    )
    write_numbers(args.place, {"records_per_second": total / (end - begin)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
