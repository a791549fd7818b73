"""Keras and tf.data as a user gets them, over the same records, parser, shuffle and batch."""

import time
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from benchmarks.models.cnn import SHUFFLE_RECORDS, CnnSpec, parse_batch, parse_features, parse_one
from benchmarks.side import Numbers, Work, spec_of
from edl_horovod.records.reader import Reader
from edl_horovod.spec import Mode

WARMUP_BATCHES = 20
"""Batches that `model.predict` sees before the clock starts."""


class _EpochTimes(keras.callbacks.Callback):  # type: ignore[misc]  # Keras ships no types.
    """Begin and end of each epoch; nothing at the steps, where it would cost something."""

    def __init__(self) -> None:
        super().__init__()
        self.begins: list[float] = []
        self.ends: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.begins.append(time.perf_counter())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.ends.append(time.perf_counter())


def fit(work: Work, place: Path, spec: str = "cnn.CnnSpec", jit: bool = False) -> Numbers:
    """Train by `model.fit`, and measure all epochs but the first; `jit` compiles by XLA."""
    keras.utils.set_random_seed(0)
    made_spec = spec_of(spec)
    model, optimizer = made_spec.create_model(), made_spec.create_optimizer()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Keras' default, "auto", is False on a machine without a GPU (Keras 3.15).
    model.compile(optimizer=optimizer, loss=loss, jit_compile=True if jit else "auto")
    # One "epoch" is as long as the warm-up; the endless dataset's iterator lives on between them.
    num_epochs = work.total_steps // work.warmup_steps
    times = _EpochTimes()
    model.fit(
        training_dataset(work.data, work.batch_size),
        steps_per_epoch=work.warmup_steps,
        epochs=num_epochs,
        verbose=2,
        callbacks=[times],
    )
    num_steps = work.warmup_steps * (num_epochs - 1)
    return {"step_seconds": (times.ends[-1] - times.begins[1]) / num_steps}


def predict(work: Work, place: Path, model: str) -> Numbers:
    """Predict all records once by `model.predict`; nothing is written."""
    trained = keras.models.load_model(Path(model) / "model.keras", compile=False)
    records = tf.data.TFRecordDataset(_files(work.data))
    examples = records.map(parse_features, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = examples.batch(work.batch_size).prefetch(tf.data.AUTOTUNE)
    trained.predict(dataset.take(WARMUP_BATCHES), verbose=0)
    began = time.perf_counter()
    outputs = trained.predict(dataset, verbose=0)
    return {"rate": len(outputs) / (time.perf_counter() - began)}


def _files(data: Path) -> list[str]:
    return sorted(str(path) for path in data.glob("*.tfrecord"))


def training_dataset(
    data: Path, batch_size: int, *, rank: int = 0, size: int = 1, spec: Any = None
) -> Any:
    """Endless batches of a rank, whose share of the TFRecord files is one of `size`."""
    files = tf.data.Dataset.from_tensor_slices(_files(data)).shard(size, rank)
    examples = (spec or CnnSpec()).create_dataset(tf.data.TFRecordDataset(files), Mode.TRAINING)
    return examples.repeat().batch(batch_size).prefetch(tf.data.AUTOTUNE)


def one_pass(data: Path, batch_size: int, *, parallel_calls: int | None = None) -> Any:
    """All records once, parsed one by one as the zoo does it."""
    return _batches(tf.data.TFRecordDataset(_files(data)), batch_size, parallel_calls)


def one_pass_in_batches(
    data: Path, batch_size: int, *, compression: str = "", shuffle_records: int = SHUFFLE_RECORDS
) -> Any:
    """All records once, shuffled as strings and parsed batch by batch: the expert's form."""
    records = tf.data.TFRecordDataset(_files(data), compression).shuffle(shuffle_records)
    return records.batch(batch_size).map(parse_batch).prefetch(tf.data.AUTOTUNE)


def one_pass_by_generator(data: Path, batch_size: int, num_records: int) -> Any:
    """The first records of RecordIO files, a Python call for each."""
    reader = Reader.open(str(data / "*.recordio"))
    signature = tf.TensorSpec((), tf.string)
    records = tf.data.Dataset.from_generator(reader.__iter__, output_signature=signature)
    return _batches(records.take(num_records), batch_size, None)


def _batches(records: tf.data.Dataset, batch_size: int, parallel_calls: int | None) -> Any:
    examples = records.map(parse_one, num_parallel_calls=parallel_calls).shuffle(SHUFFLE_RECORDS)
    return examples.batch(batch_size).prefetch(tf.data.AUTOTUNE)
