"""Open a data set as the ranks of a host do, side by side: seconds, and the memory of all."""

import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.common import RECORDIO_PATTERN, side_parser, write_numbers
from benchmarks.watched import proportional_bytes
from edl_horovod.config.schema import DataConfig
from edl_horovod.records.job_data import open_source
from edl_horovod.records.source import JobFolders

NUM_RANKS = 2
WAIT_SECONDS = 120.0


def main() -> int:
    """Open the data in several processes; returns the exit code."""
    parser = side_parser(__doc__)
    parser.add_argument("--job-folder", type=Path, required=True, help="kept between the runs")
    args = parser.parse_args()
    args.job_folder.mkdir(exist_ok=True)
    # Forked after the imports, so that a rank's seconds are those of opening alone.
    context = multiprocessing.get_context("fork")
    have_all, answers = context.Barrier(NUM_RANKS), context.Queue()
    pattern = str(args.data / RECORDIO_PATTERN)
    ranks = [
        context.Process(target=_open, args=(pattern, args.job_folder, have_all, answers))
        for _ in range(NUM_RANKS)
    ]
    for rank in ranks:
        rank.start()
    found = [answers.get(timeout=WAIT_SECONDS) for _ in ranks]
    for rank in ranks:
        rank.join(WAIT_SECONDS)
    numbers = {
        "seconds": max(seconds for seconds, _ in found),
        "bytes": sum(num_bytes for _, num_bytes in found),
    }
    write_numbers(args.place, numbers)
    return 0


def _open(pattern: str, folder: Path, have_all: Any, answers: Any) -> None:
    before, began = proportional_bytes(), time.perf_counter()
    folders = JobFolders(folder, folder, folder)  # There are no streams.
    with open_source(pattern, DataConfig(), folders=folders):
        seconds = time.perf_counter() - began
        have_all.wait(WAIT_SECONDS)  # What all have mapped counts once.
        answers.put((seconds, proportional_bytes() - before))
        have_all.wait(WAIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
