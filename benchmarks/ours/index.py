"""Open a data set as the ranks of a host do, side by side: seconds, and the memory of all."""

import multiprocessing
import time
from pathlib import Path
from typing import Any

from benchmarks.side import Numbers, Work
from benchmarks.stamps import proportional_bytes
from edl_horovod.config.schema import DataConfig
from edl_horovod.records.job_data import open_source
from edl_horovod.records.source import JobFolders

NUM_RANKS = 2
WAIT_SECONDS = 120.0


def open_in_ranks(work: Work, place: Path, job_folder: str) -> Numbers:
    """Open the data in several processes; the job's folder is kept between the runs."""
    Path(job_folder).mkdir(exist_ok=True)
    # Forked after the imports, so that a rank's seconds are those of opening alone.
    context = multiprocessing.get_context("fork")
    have_all, answers = context.Barrier(NUM_RANKS), context.Queue()
    arguments = (str(work.data / "*.recordio"), Path(job_folder), have_all, answers)
    ranks = [context.Process(target=_open, args=arguments) for _ in range(NUM_RANKS)]
    for rank in ranks:
        rank.start()
    results = [answers.get(timeout=WAIT_SECONDS) for _ in ranks]
    for rank in ranks:
        rank.join(WAIT_SECONDS)
    seconds, num_bytes = zip(*results, strict=True)
    return {"seconds": max(seconds), "bytes": sum(num_bytes)}


def _open(pattern: str, folder: Path, have_all: Any, answers: Any) -> None:
    before, began = proportional_bytes(), time.perf_counter()
    folders = JobFolders(folder, folder, folder)  # There are no streams.
    with open_source(pattern, DataConfig(), folders=folders):
        seconds = time.perf_counter() - began
        have_all.wait(WAIT_SECONDS)  # What all have mapped counts once.
        answers.put((seconds, proportional_bytes() - before))
        have_all.wait(WAIT_SECONDS)
