"""One run of `prepare` with a model of the zoo: how long it took, and from the first file on."""

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
    times: list[float] = []
    began = time.perf_counter()
    result = edl_horovod.prepare(
        data=str(args.pictures),
        output=str(args.place / "records"),
        model_zoo=str(ROOT / "model_zoo"),
        model_def="cifar10_functional_api",
        processes=args.processes,
        on_progress=lambda *_: times.append(time.perf_counter()),
    )
    numbers = {"seconds": time.perf_counter() - began, "work_seconds": times[-1] - times[0]}
    write_numbers(args.place, {**numbers, "num_records": result.num_records})
    return 0


if __name__ == "__main__":
    sys.exit(main())
