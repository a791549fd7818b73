"""One run of `prepare` with a model of the zoo: how long it took, and its pace once it is up.

A process imports TensorFlow first, one sooner than the other. The pace is that of the last three
quarters of the files, when all of them work.
"""

import sys
import time
from pathlib import Path

import edl_horovod
from benchmarks.common import ROOT, side_parser, write_numbers


def main() -> int:
    """Prepare; returns the exit code."""
    parser = side_parser(__doc__.partition("\n")[0])
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--processes", type=int, required=True)
    args = parser.parse_args()
    told: list[tuple[float, int]] = []
    began = time.perf_counter()
    result = edl_horovod.prepare(
        data=str(args.pictures),
        output=str(args.place / "records"),
        model_zoo=str(ROOT / "model_zoo"),
        model_def="cifar10_functional_api",
        processes=args.processes,
        on_progress=lambda done, *_: told.append((time.perf_counter(), done)),
    )
    seconds = time.perf_counter() - began
    up_time, up_files = next(one for one in told if one[1] >= result.num_files / 4)
    last_time, last_files = told[-1]
    pace = (last_files - up_files) / (last_time - up_time)
    write_numbers(args.place, {"pace": pace, "whole_pace": result.num_files / seconds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
