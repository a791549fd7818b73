"""A hand-written Horovod training, as Horovod's documents teach it, adapted to Keras 3.

Follows https://horovod.readthedocs.io/en/stable/tensorflow.html and the TensorFlow 2 example of its
repository (examples/tensorflow2/tensorflow2_mnist.py). Keras 3 variables are handed over as
`v.value`; the learning rate is not scaled, because the global batch is that of the other sides.
"""

import sys

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from benchmarks.common import StepClock, side_parser, write_numbers
from benchmarks.models.cnn import LEARNING_RATE, make_model, mean_loss
from benchmarks.peers.pipeline import training_dataset

LOG_STEPS = 10


def main() -> int:
    """Train as one rank; rank 0 reports. Returns the exit code."""
    args = side_parser(__doc__.partition("\n")[0]).parse_args()
    hvd.init()
    dataset = training_dataset(
        args.data, args.batch_size // hvd.size(), rank=hvd.rank(), size=hvd.size()
    )
    model = make_model()
    optimizer = keras.optimizers.SGD(LEARNING_RATE)
    optimizer.build(model.trainable_variables)
    weights = [variable.value for variable in model.trainable_variables]

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow ships no types.
    def training_step(features: dict[str, tf.Tensor], labels: tf.Tensor, first: bool) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = mean_loss(labels, model(features, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        if first:
            # After the first step, so that the optimizer's variables exist. All ranks do it.
            hvd.broadcast_variables([v.value for v in model.variables], root_rank=0)
            hvd.broadcast_variables([v.value for v in optimizer.variables], root_rank=0)
        return loss

    clock = StepClock(args.warmup_steps)
    for step, (features, labels) in enumerate(dataset.take(args.total_steps)):
        loss = training_step(features, labels, step == 0)
        if step % LOG_STEPS == 0 and hvd.rank() == 0:
            print(f"Step #{step}\tLoss: {loss:.6f}")
        clock.tick()
    if hvd.rank() == 0:
        write_numbers(args.place, {"step_seconds": clock.step_seconds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
