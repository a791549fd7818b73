"""`model.fit` as a user gets it: the same model, records, batch and threads, no framework."""

import sys
import time
from typing import Any

import keras

from benchmarks.common import side_parser, spec_of, write_numbers
from benchmarks.peers.pipeline import training_dataset


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


def main() -> int:
    """Fit, and measure all epochs but the first; returns the exit code."""
    parser = side_parser(__doc__.partition("\n")[0])
    parser.add_argument("--spec", default="cnn.CnnSpec", help="of benchmarks/models")
    parser.add_argument("--jit", action="store_true", help="jit_compile=True: XLA")
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    spec = spec_of(args.spec)
    model, optimizer = spec.create_model(), spec.create_optimizer()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Keras' default, "auto", is False on a machine without a GPU (Keras 3.15).
    jit_compile = True if args.jit else "auto"
    model.compile(optimizer=optimizer, loss=loss, jit_compile=jit_compile)
    # One "epoch" is as long as the warm-up; the endless dataset's iterator lives on between them.
    num_epochs = args.total_steps // args.warmup_steps
    times = _EpochTimes()
    model.fit(
        training_dataset(args.data, args.batch_size),
        steps_per_epoch=args.warmup_steps,
        epochs=num_epochs,
        verbose=2,
        callbacks=[times],
    )
    seconds = times.ends[-1] - times.begins[1]
    num_steps = args.warmup_steps * (num_epochs - 1)
    write_numbers(args.place, {"step_seconds": seconds / num_steps})
    return 0


if __name__ == "__main__":
    sys.exit(main())
