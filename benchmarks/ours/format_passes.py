"""Passes over the same pictures in every format, by us and by the format's library, in turn."""

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.common import MODELS, interleave, side_parser, write_numbers
from benchmarks.format_files import WRITERS
from benchmarks.ours.parts import PREFETCH_STEPS
from benchmarks.peers.format_readers import READERS
from edl_horovod.config.schema import DataConfig
from edl_horovod.config.tasks import choose_num_lanes
from edl_horovod.frameworks.keras.batches import KerasBatches
from edl_horovod.models.zoo import LoadedSpec, load_spec
from edl_horovod.records.job_data import open_source, plan_of
from edl_horovod.spec import Mode


def main() -> int:
    """Write the records per second of each pass; returns the exit code."""
    parser = side_parser(__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, required=True)
    parser.add_argument("--formats", type=Path, required=True)
    args = parser.parse_args()
    loaded = load_spec(str(MODELS), "pictures.PicturesSpec", params={})
    batch = args.batch_size
    sides: dict[str, Callable[[], float]] = {}
    for name in WRITERS:
        folder = args.formats / name
        sides[name] = functools.partial(_ours, folder, loaded, batch)
        if name in READERS:
            sides[f"{name} library"] = functools.partial(_theirs, name, folder, batch)
    interleave(sides, 1)  # Files into the page cache, threads started; not counted.
    write_numbers(args.place, {**interleave(sides, args.repetitions)})
    return 0


def _ours(folder: Path, loaded: LoadedSpec, batch: int) -> float:
    """One shuffled epoch with a cold cache, on all lanes; the scan of the files is not counted."""
    settings = DataConfig()
    lanes = choose_num_lanes(batch, 0, num_ranks=1, most_ranks=0)
    with open_source(str(folder), settings) as source:
        plan = plan_of(source, settings, num_lanes=lanes, is_training=True, global_batch=batch)
        batches = KerasBatches(source, plan, loaded, Mode.TRAINING, prefetch=PREFETCH_STEPS)
        batches.try_first()  # As a job does; it starts tf.data's threads.
        began = time.perf_counter()
        batches.restart(range(lanes), 0, plan.steps_per_epoch)
        count = 0
        while (found := batches.next_batch()) is not None:
            count += found.num_examples
        rate = count / (time.perf_counter() - began)
    assert count == plan.num_records, (count, plan.num_records)
    return rate


def _theirs(name: str, folder: Path, batch: int) -> float:
    began = time.perf_counter()
    return sum(READERS[name](folder, batch)) / (time.perf_counter() - began)


if __name__ == "__main__":
    sys.exit(main())
