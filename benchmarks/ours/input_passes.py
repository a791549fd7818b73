"""Passes over the records through our stream and through tf.data, in turn, in one process."""

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.common import interleave, side_parser, write_numbers
from benchmarks.ours.parts import load, open_stream
from benchmarks.peers.pipeline import one_pass, one_pass_by_generator, one_pass_in_batches
from edl_horovod.models.zoo import LoadedSpec


def main() -> int:
    """Write records per second of each side and repetition; returns the exit code."""
    parser = side_parser(__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, required=True)
    parser.add_argument("--generator-records", type=int, required=True)
    args = parser.parse_args()
    sides = _sides(args.data, args.batch_size, args.generator_records)
    interleave(sides, 1)  # Files into the page cache, threads started; not counted.
    found = interleave(sides, args.repetitions)
    write_numbers(args.place, {**found})
    return 0


def _sides(data: Path, batch: int, generator_records: int) -> dict[str, Callable[[], float]]:
    one_by_one, in_batches = load("CnnSpec"), load("CnnBatchSpec")
    return {
        "ours": lambda: _stream_rate(data, one_by_one, batch),
        "tfrecord": lambda: _rate(one_pass(data, batch)),
        "ours_batches": lambda: _stream_rate(data, in_batches, batch),
        "tfrecord_batches": lambda: _rate(one_pass_in_batches(data, batch)),
        "tfrecord_parallel": lambda: _rate(one_pass(data, batch, parallel_calls=tf.data.AUTOTUNE)),
        "generator": lambda: _rate(one_pass_by_generator(data, batch, generator_records)),
    }


def _stream_rate(data: Path, loaded: LoadedSpec, batch_size: int) -> float:
    """One epoch with a cold cache: every chunk is read and decoded once."""
    with open_stream(data, loaded, batch_size) as (stream, plan):
        began = time.perf_counter()
        stream.restart(range(plan.num_lanes), 0, plan.steps_per_epoch)
        count = 0
        while (batch := stream.next_batch()) is not None:
            count += batch.num_examples
        seconds = time.perf_counter() - began
    assert count == plan.num_records, (count, plan.num_records)
    return count / seconds


def _rate(dataset: Iterable[tuple[Any, tf.Tensor]]) -> float:
    began = time.perf_counter()
    count = sum(int(labels.shape[0]) for _, labels in dataset)
    return count / (time.perf_counter() - began)


if __name__ == "__main__":
    sys.exit(main())
