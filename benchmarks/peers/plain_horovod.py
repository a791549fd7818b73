"""A hand-written Horovod training, as Horovod's documents teach it, adapted to Keras 3.

Follows https://horovod.readthedocs.io/en/stable/tensorflow.html and the TensorFlow 2 example of its
repository (examples/tensorflow2/tensorflow2_mnist.py). Keras 3 variables are handed over as
`v.value`; the learning rate is not scaled, because the global batch is that of the other sides.
"""

import os
import sys
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from benchmarks.common import StepClock, side_parser, spec_of, write_numbers
from benchmarks.elastic.stamps import Stamper
from benchmarks.models.cnn import mean_loss
from benchmarks.peers.pipeline import training_dataset
from benchmarks.watched import DYNAMIC_TIMELINE, start_timeline, write_memory

LOG_STEPS = 10
COMPRESSIONS = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16}


def main() -> int:
    """Train as one rank; rank 0 reports. Returns the exit code."""
    parser = side_parser(__doc__.partition("\n")[0])
    parser.add_argument("--spec", default="cnn.CnnSpec", help="of benchmarks/models")
    parser.add_argument("--compression", choices=COMPRESSIONS, default="none", help="Horovod's own")
    parser.add_argument("--no-reduction", action="store_true", help="each rank for itself")
    parser.add_argument("--stamps", type=Path, help="folder where each rank writes down its steps")
    parser.add_argument("--timeline-step", type=int, help="begin Horovod's timeline after it")
    args = parser.parse_args()
    if args.timeline_step is not None:
        os.environ.update(DYNAMIC_TIMELINE)
    hvd.init()
    spec = spec_of(args.spec)
    batches = training_dataset(
        args.data, args.batch_size // hvd.size(), rank=hvd.rank(), size=hvd.size(), spec=spec
    )
    compression = COMPRESSIONS[args.compression]
    training_step = _make_step(spec, None if args.no_reduction else compression)
    clock = StepClock(args.warmup_steps)
    stamper = None if args.stamps is None else _stamper(args.stamps)
    for step, (features, labels) in enumerate(batches.take(args.total_steps)):
        loss = training_step(features, labels, step == 0)
        if step % LOG_STEPS == 0 and hvd.rank() == 0:
            print(f"Step #{step}\tLoss: {loss:.6f}")
        clock.tick()
        if stamper is not None:
            # A step is done when its loss is there; `step` alone may return earlier.
            loss.numpy()
            stamper.step(step + 1, hvd.size())
            if step + 1 == args.timeline_step:
                start_timeline(hvd, args.stamps)
    if args.stamps is not None:
        write_memory(args.stamps, str(hvd.rank()))
    if hvd.rank() == 0:
        write_numbers(args.place, {"step_seconds": clock.step_seconds})
    return 0


def _make_step(spec: Any, compression: Any) -> Any:
    """The traced step.

    Args:
        spec: Makes the model and its optimizer.
        compression: Of Horovod; None where nothing is reduced at all.
    """
    model = spec.create_model()
    optimizer = spec.create_optimizer()
    optimizer.build(model.trainable_variables)
    weights = [variable.value for variable in model.trainable_variables]

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow ships no types.
    def training_step(features: dict[str, tf.Tensor], labels: tf.Tensor, first: bool) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = mean_loss(labels, model(features, training=True))
        if compression is not None:
            tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        if first:
            # After the first step, so that the optimizer's variables exist. All ranks do it.
            hvd.broadcast_variables([v.value for v in model.variables], root_rank=0)
            hvd.broadcast_variables([v.value for v in optimizer.variables], root_rank=0)
        return loss

    return training_step


def _stamper(folder: Path) -> Stamper:
    return Stamper(folder / f"{hvd.rank()}.{os.getpid()}")


if __name__ == "__main__":
    sys.exit(main())
