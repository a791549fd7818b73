"""Hand-written Horovod trainings, as Horovod's documents teach them, adapted to Keras 3.

Follows https://horovod.readthedocs.io/en/stable/tensorflow.html, the TensorFlow 2 example of its
repository (examples/tensorflow2/tensorflow2_mnist.py), and for elastic rings
https://horovod.readthedocs.io/en/stable/elastic.html. Keras 3 variables are handed over as
`v.value`; the learning rate is not scaled, because the global batch is that of the other sides.
"""

import itertools
import os
import statistics
import time
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError
from horovod.tensorflow.elastic import run

from benchmarks.models.cnn import IMAGE_SHAPE, CnnSpec, mean_loss
from benchmarks.peers.keras import training_dataset
from benchmarks.side import Numbers, StepClock, Work, spec_of
from benchmarks.stamps import Stamper, write_memory

LOG_STEPS = 10
COMMIT_STEPS = 10
"""As in Horovod's own examples, where a commit copies all variables."""
NUM_BROADCASTS = 4
NUM_SUMS, NUM_WARMUP_SUMS = 300, 50
"""The first sums of a name are agreed on by other messages than the later ones."""


def train(
    work: Work,
    place: Path,
    spec: str = "cnn.CnnSpec",
    compression: str = "none",
    reduces: bool = True,
    stamps: str | None = None,
) -> Numbers | None:
    """Train as a rank of a static ring.

    Each rank writes down its steps in the folder of the stamps; the compression is one of Horovod's
    own.
    """
    hvd.init()
    rank, size, parser = hvd.rank(), hvd.size(), spec_of(spec)
    ring = {"rank": rank, "size": size, "spec": parser}
    batches = training_dataset(work.data, work.batch_size // size, **ring)
    training_step, variables = _make_step(parser, compression if reduces else None)
    clock = StepClock(work.warmup_steps)
    stamper = Stamper(Path(stamps) / f"{rank}.{os.getpid()}") if stamps else None
    for step, (features, labels) in enumerate(batches.take(work.total_steps)):
        loss = training_step(features, labels)
        if step == 0:
            # After the first step, as Horovod's documents have it. All ranks do it.
            hvd.broadcast_variables(variables, root_rank=0)
        if step % LOG_STEPS == 0 and rank == 0:
            print(f"Step #{step}\tLoss: {loss:.6f}")
        clock.tick()
        if stamper and stamps:
            # A step is done when its loss is there; `step` alone may return earlier.
            loss.numpy()
            stamper.step(step + 1, size)
    if stamps:
        write_memory(Path(stamps), str(rank))
    return {"step_seconds": clock.step_seconds} if rank == 0 else None


def _built(spec: Any) -> tuple[Any, Any]:
    """The model and its optimizer, which has its variables."""
    model, optimizer = spec.create_model(), spec.create_optimizer()
    optimizer.build(model.trainable_variables)
    return model, optimizer


def _make_step(spec: Any, compression: str | None = "none") -> tuple[Any, list[Any]]:
    """The traced step, which reduces nothing without a compression, and all variables."""
    model, optimizer = _built(spec)
    weights = [variable.value for variable in model.trainable_variables]

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow ships no types.
    def training_step(features: dict[str, tf.Tensor], labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = mean_loss(labels, model(features, training=True))
        if compression is not None:
            kind = getattr(hvd.Compression, compression)
            tape = hvd.DistributedGradientTape(tape, compression=kind)
        gradients = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return training_step, [v.value for v in (*model.variables, *optimizer.variables)]


class KerasState(hvd.elastic.ObjectState):  # type: ignore[misc]  # Horovod ships no types.
    """Variables of a Keras 3 model and its optimizer, and the number of steps.

    Horovod's `TensorFlowKerasState` calls `optimizer.variables()`, which is a list in Keras 3.
    """

    # The methods are described by Horovod's `State`.
    # ruff: noqa: D102

    def __init__(self, variables: list[Any]) -> None:
        self._variables = variables
        self._values = [variable.numpy() for variable in variables]
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank, step=0)

    def save(self) -> None:
        self._values = [variable.numpy() for variable in self._variables]
        super().save()

    def restore(self) -> None:
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        hvd.broadcast_variables(self._variables, root_rank=0)
        self._values = [variable.numpy() for variable in self._variables]
        super().sync()


def train_elastic(work: Work, place: Path, reads: bool = False) -> None:
    """Train until a signal ends it; each rank stamps its steps in `place`.

    It reads records, or trains on a batch in memory, so that no input pipeline is part of a stall.
    """
    hvd.init()
    training_step, variables = _make_step(CnnSpec())
    stamper = Stamper(place / "stamps" / f"{os.environ['HOROVOD_HOSTNAME']}.{os.getpid()}")

    @run  # type: ignore[untyped-decorator]  # Horovod ships no types.
    def train_in_rings(state: KerasState) -> None:
        rank, size = hvd.rank(), hvd.size()
        batches: Any = itertools.repeat(_batch(work.batch_size // size))
        if reads:
            batches = training_dataset(work.data, work.batch_size // size, rank=rank, size=size)
        for features, labels in batches:
            try:
                loss = float(training_step(features, labels))
            except tf.errors.OpError as error:
                # Horovod's wrapper knows fewer of these errors than this TensorFlow raises.
                raise HorovodInternalError(error) from error
            state.step += 1
            stamper.step(state.step, size, loss)
            if state.step % COMMIT_STEPS == 0:
                state.commit()

    train_in_rings(KerasState(variables))


def _batch(num_records: int) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    random = np.random.default_rng(0)
    images = random.random((num_records, *IMAGE_SHAPE), np.float32)
    labels = random.integers(0, 10, (num_records, 1), np.int32)
    return {"image": tf.constant(images)}, tf.constant(labels)


def broadcast_state(work: Work, place: Path, spec: str) -> Numbers | None:
    """What `hvd.broadcast_variables` takes for the state of a model and its optimizer."""
    hvd.init()
    model, optimizer = _built(spec_of(spec))
    variables = [variable.value for variable in (*model.variables, *optimizer.variables)]
    seconds = []
    for _ in range(NUM_BROADCASTS):
        hvd.allreduce(tf.zeros(()), name="begin")
        began = time.perf_counter()
        hvd.broadcast_variables(variables, root_rank=0)
        seconds.append(time.perf_counter() - began)
    # The first one meets memory that was never used.
    return {"seconds": seconds[1:]} if hvd.rank() == 0 else None


def sum_numbers(work: Work, place: Path) -> Numbers | None:
    """What a sum of one number over the ring takes, with nothing else to do."""
    hvd.init()
    number, seconds = tf.zeros([1]), []
    for _ in range(NUM_WARMUP_SUMS + NUM_SUMS):
        began = time.perf_counter()
        hvd.allreduce(number, name="number")
        seconds.append(time.perf_counter() - began)
    return {"seconds": statistics.median(seconds[NUM_WARMUP_SUMS:])} if hvd.rank() == 0 else None
