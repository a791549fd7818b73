"""Our side of the comparisons of input, and our step in a bare loop."""

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from benchmarks.data import WRITERS
from benchmarks.peers.formats import READERS
from benchmarks.peers.keras import one_pass, one_pass_by_generator, one_pass_in_batches
from benchmarks.run import MODELS, interleave
from benchmarks.side import Numbers, StepClock, Work
from edl_horovod.config.schema import DataConfig
from edl_horovod.config.tasks import choose_num_lanes
from edl_horovod.frameworks.keras.batches import KerasBatches
from edl_horovod.frameworks.keras.collectives import HOROVOD
from edl_horovod.frameworks.keras.step import KerasStep
from edl_horovod.models.zoo import LoadedSpec, load_spec
from edl_horovod.records.job_data import open_source, plan_of
from edl_horovod.records.plan import MAX_WINDOW, DataPlan
from edl_horovod.spec import Mode

SETTINGS, RECORDS = DataConfig(), "*.recordio"

Pass = dict[str, float]
"""Records per second and processor time of a record, in microseconds, of all threads."""


def step_in_bare_loop(work: Work, place: Path) -> Numbers | None:
    """Train without commits, membership, events and a coordinator, as a rank of a static ring.

    The step is the job's own, so its collective still carries the flag.
    """
    keras.utils.set_random_seed(0)
    loaded = _load("cnn.CnnSpec")
    with _open_stream(work.data / RECORDS, loaded, work.batch_size) as (stream, plan):
        # As in the worker: 1 while a collective is traced, 0 while a ring of fixed ranks forms.
        os.environ["HOROVOD_ELASTIC"] = "1"
        trainer = KerasStep(loaded, stream.element_spec, learning_rate=None)
        os.environ["HOROVOD_ELASTIC"] = "0"
        world = HOROVOD.form_inherited()
        lanes = world.lanes(plan.num_lanes)
        stream.restart(lanes, 0, work.total_steps)
        clock = StepClock(work.warmup_steps)
        for _ in range(work.total_steps):
            batch = stream.next_batch()
            trainer.step(batch, wants_change=False, is_alone=world.is_alone, salt=lanes.start)
            clock.tick()
    return {"step_seconds": clock.step_seconds} if world.is_leader else None


def input_passes(
    work: Work, place: Path, repetitions: int, generator_records: int, plain: str, gzip: str
) -> Numbers:
    """Pass over the records through our stream and through tf.data, in turn, in one process.

    The records are as both write them by default, with snappy and without compression. The folders
    `plain` and `gzip` hold the same, and the slow side with a call for each record reads fewer.
    """
    data, batch = work.data, work.batch_size
    our_window = choose_num_lanes(batch, 0, num_ranks=1, most_ranks=0) * MAX_WINDOW
    by_one, in_batches = _load("cnn.CnnSpec"), _load("cnn.CnnBatchSpec")

    def peer(dataset: Callable[..., Any], folder: Path, *more: int, **options: Any) -> Pass:
        examples = dataset(folder, batch, *more, **options)
        return _clocked(lambda: sum(int(labels.shape[0]) for _, labels in examples))

    sides: dict[str, Callable[[], Pass]] = {
        "ours": lambda: _pass(data, by_one, batch),
        "tfrecord": lambda: peer(one_pass, data),
        "ours_batches": lambda: _pass(data, in_batches, batch),
        "ours_batches_plain": lambda: _pass(Path(plain), in_batches, batch),
        "ours_batches_gzip": lambda: _pass(Path(gzip), in_batches, batch),
        "tfrecord_batches": lambda: peer(one_pass_in_batches, data),
        "tfrecord_batches_wide": lambda: peer(
            one_pass_in_batches, data, shuffle_records=our_window
        ),
        "tfrecord_batches_gzip": lambda: peer(one_pass_in_batches, Path(gzip), compression="GZIP"),
        "tfrecord_parallel": lambda: peer(one_pass, data, parallel_calls=tf.data.AUTOTUNE),
        "generator": lambda: peer(one_pass_by_generator, data, generator_records),
    }
    interleave(sides, 1)  # Files into the page cache, threads started; not counted.
    return {**interleave(sides, repetitions)}


def format_passes(work: Work, place: Path, repetitions: int) -> Numbers:
    """Pass over the same pictures in every format, by us and by the format's library, in turn."""
    loaded, batch = _load("pictures.PicturesSpec"), work.batch_size
    sides: dict[str, Callable[[], float]] = {}
    for name in WRITERS:
        folder = work.data / name
        sides[name] = functools.partial(_format_pass, folder, loaded, batch)
        if name in READERS:
            sides[f"{name} library"] = functools.partial(_library_pass, name, folder, batch)
    interleave(sides, 1)  # As above.
    return {**interleave(sides, repetitions)}


def _load(spec: str) -> LoadedSpec:
    return load_spec(str(MODELS), spec, params={})


@contextlib.contextmanager
def _open_stream(
    data: Path, loaded: LoadedSpec, batch_size: int
) -> Iterator[tuple[KerasBatches, DataPlan]]:
    """A stream over files as a job opens it, which has read no record yet."""
    lanes = choose_num_lanes(batch_size, 0, num_ranks=1, most_ranks=0)
    options = {"num_lanes": lanes, "is_training": True, "global_batch": batch_size}
    with open_source(str(data), SETTINGS) as source:
        plan = plan_of(source, SETTINGS, **options)
        prefetch = SETTINGS.prefetch_steps
        yield KerasBatches(source, plan, loaded, Mode.TRAINING, prefetch=prefetch), plan


def _epoch(stream: KerasBatches, plan: DataPlan) -> int:
    """Read all lanes with a cold cache; the number of records."""
    stream.restart(range(plan.num_lanes), 0, plan.steps_per_epoch)
    count = 0
    while (batch := stream.next_batch()) is not None:
        count += batch.num_examples
    assert count == plan.num_records, (count, plan.num_records)
    return count


def _pass(data: Path, loaded: LoadedSpec, batch_size: int) -> Pass:
    with _open_stream(data / RECORDS, loaded, batch_size) as (stream, plan):
        return _clocked(lambda: _epoch(stream, plan))


def _clocked(read: Callable[[], int]) -> Pass:
    wall, processor = time.perf_counter(), time.process_time()
    num_records = read()
    used = time.process_time() - processor
    rate = num_records / (time.perf_counter() - wall)
    return {"rate": rate, "processor_us": 1e6 * used / num_records}


def _format_pass(folder: Path, loaded: LoadedSpec, batch: int) -> float:
    """A shuffled epoch; the scan of the files is not counted."""
    with _open_stream(folder, loaded, batch) as (batches, plan):
        batches.try_first()  # As a job does; it starts tf.data's threads.
        return _clocked(lambda: _epoch(batches, plan))["rate"]


def _library_pass(name: str, folder: Path, batch: int) -> float:
    return _clocked(lambda: sum(READERS[name](folder, batch)))["rate"]
