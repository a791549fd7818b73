"""Passes over the records through our stream and through tf.data, in turn, in one process."""

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.common import data_with, interleave, side_parser, write_numbers
from benchmarks.ours.parts import load, open_stream
from benchmarks.peers.pipeline import one_pass, one_pass_by_generator, one_pass_in_batches
from edl_horovod.config.tasks import choose_num_lanes
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.records.plan import MAX_WINDOW

Pass = dict[str, float]
"""Records per second and processor time of a record, in microseconds, of all threads."""


def main() -> int:
    """Write what each pass of each side took; returns the exit code."""
    parser = side_parser(__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, required=True)
    parser.add_argument("--generator-records", type=int, required=True)
    args = parser.parse_args()
    sides = _sides(args.data, args.batch_size, args.generator_records)
    interleave(sides, 1)  # Files into the page cache, threads started; not counted.
    found = interleave(sides, args.repetitions)
    write_numbers(args.place, {**found})
    return 0


def _sides(data: Path, batch: int, generator_records: int) -> dict[str, Callable[[], Pass]]:
    plain, gzip = (data_with(codec, data) for codec in ("none", "gzip"))
    our_window = choose_num_lanes(batch, 0, num_ranks=1, most_ranks=0) * MAX_WINDOW
    one_by_one, in_batches = load("CnnSpec"), load("CnnBatchSpec")
    return {
        "ours": lambda: _stream_rate(data, one_by_one, batch),
        "tfrecord": lambda: _rate(one_pass(data, batch)),
        "ours_batches": lambda: _stream_rate(data, in_batches, batch),
        "ours_batches_plain": lambda: _stream_rate(plain, in_batches, batch),
        "ours_batches_gzip": lambda: _stream_rate(gzip, in_batches, batch),
        "tfrecord_batches": lambda: _rate(one_pass_in_batches(data, batch)),
        "tfrecord_batches_wide": lambda: _rate(
            one_pass_in_batches(data, batch, shuffle_records=our_window)
        ),
        "tfrecord_batches_gzip": lambda: _rate(
            one_pass_in_batches(gzip, batch, compression="GZIP")
        ),
        "tfrecord_parallel": lambda: _rate(one_pass(data, batch, parallel_calls=tf.data.AUTOTUNE)),
        "generator": lambda: _rate(one_pass_by_generator(data, batch, generator_records)),
    }


def _stream_rate(data: Path, loaded: LoadedSpec, batch_size: int) -> Pass:
    """One epoch with a cold cache: every chunk is read and decoded once."""
    with open_stream(data, loaded, batch_size) as (stream, plan):
        clock = _Clock()
        stream.restart(range(plan.num_lanes), 0, plan.steps_per_epoch)
        count = 0
        while (batch := stream.next_batch()) is not None:
            count += batch.num_examples
        found = clock.stop(count)
    assert count == plan.num_records, (count, plan.num_records)
    return found


def _rate(dataset: Iterable[tuple[Any, tf.Tensor]]) -> Pass:
    clock = _Clock()
    return clock.stop(sum(int(labels.shape[0]) for _, labels in dataset))


class _Clock:
    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def stop(self, num_records: int) -> Pass:
        wall = time.perf_counter() - self._wall
        processor = time.process_time() - self._processor
        return {"rate": num_records / wall, "processor_us": 1e6 * processor / num_records}


if __name__ == "__main__":
    sys.exit(main())
