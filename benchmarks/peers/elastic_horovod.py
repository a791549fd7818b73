"""A hand-written elastic Horovod training, as Horovod's documents teach it, adapted to Keras 3.

Follows https://horovod.readthedocs.io/en/stable/elastic.html. The state is a class of its own:
Horovod's `TensorFlowKerasState` calls `optimizer.variables()`, which is a list in Keras 3. The
batch is one in memory, so that no input pipeline is part of a stall.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError
from horovod.tensorflow.elastic import run

from benchmarks.elastic.stamps import Stamper
from benchmarks.models.cnn import IMAGE_SHAPE, LEARNING_RATE, make_model, mean_loss

COMMIT_STEPS = 10
"""As in Horovod's own examples, where a commit copies all variables."""


class KerasState(hvd.elastic.ObjectState):  # type: ignore[misc]  # Horovod ships no types.
    """Variables of a Keras 3 model and its optimizer, and the number of steps."""

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


def main() -> int:
    """Train until somebody ends it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stamps", type=Path, required=True, help="folder of HOST.PID files")
    parser.add_argument("--batch-size", type=int, default=128, help="the global batch, records")
    args = parser.parse_args()
    hvd.init()
    model = make_model()
    optimizer = keras.optimizers.SGD(LEARNING_RATE)
    optimizer.build(model.trainable_variables)
    variables = [variable.value for variable in (*model.variables, *optimizer.variables)]
    stamper = Stamper(args.stamps / f"{os.environ['HOROVOD_HOSTNAME']}.{os.getpid()}")
    weights = [variable.value for variable in model.trainable_variables]

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow ships no types.
    def training_step(features: dict[str, tf.Tensor], labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = mean_loss(labels, model(features, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @run  # type: ignore[untyped-decorator]
    def train(state: KerasState) -> None:
        features, labels = _batch(args.batch_size // hvd.size())
        while True:
            try:
                float(training_step(features, labels))
            except tf.errors.OpError as error:
                # Horovod's wrapper knows fewer of these errors than this TensorFlow raises.
                raise HorovodInternalError(error) from error
            state.step += 1
            stamper.step(state.step, hvd.size())
            if state.step % COMMIT_STEPS == 0:
                state.commit()

    train(KerasState(variables))
    return 0


def _batch(num_records: int) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    random = np.random.default_rng(0)
    images = random.random((num_records, *IMAGE_SHAPE), np.float32)
    labels = random.integers(0, 10, (num_records, 1), np.int32)
    return {"image": tf.constant(images)}, tf.constant(labels)


if __name__ == "__main__":
    sys.exit(main())
