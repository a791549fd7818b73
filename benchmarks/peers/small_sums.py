"""What a sum of one number over the ring takes, with nothing else to do."""

import statistics
import sys
import time

import horovod.tensorflow as hvd
import tensorflow as tf

from benchmarks.common import side_parser, write_numbers

NUM_SUMS = 300
NUM_WARM_UP = 50
"""The first sums of a name are agreed on by other messages than the later ones."""


def main() -> int:
    """Sum as one rank; rank 0 reports. Returns the exit code."""
    args = side_parser(__doc__).parse_args()
    hvd.init()
    number = tf.zeros([1])
    seconds = []
    for _ in range(NUM_WARM_UP + NUM_SUMS):
        began = time.perf_counter()
        hvd.allreduce(number, name="number")
        seconds.append(time.perf_counter() - began)
    if hvd.rank() == 0:
        write_numbers(args.place, {"seconds": statistics.median(seconds[NUM_WARM_UP:])})
    return 0


if __name__ == "__main__":
    sys.exit(main())
