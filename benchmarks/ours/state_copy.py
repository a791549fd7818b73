"""One rank of a ring of two that gives a newcomer the state: as we do, and as Horovod does.

The state is that of a model of 45 M parameters with Adam, 541 MB: few large variables, many small
ones. Both ways take turns in one ring: `horovodrun -np 2 python -m benchmarks.ours.state_copy`.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import horovod.tensorflow as hvd
import tensorflow as tf

from benchmarks.run import interleave
from benchmarks.stamps import status_bytes
from edl_horovod.frameworks.keras.collectives import KerasCollectives
from edl_horovod.frameworks.world import World
from edl_horovod.ring.state import NEVER, Counters, RingState

SHAPES = [(3000, 3000)] * 5 + [(3000,)] * 5 + [(256,)] * 100
NUM_SLOTS = 2
REPETITIONS = 5


def main() -> int:
    """Be a rank; the first one prints the numbers. Returns the exit code."""
    os.environ["HOROVOD_ELASTIC"] = "0"
    hvd.init()
    os.environ["HOROVOD_ELASTIC"] = "1"
    world = World(rank=hvd.rank(), size=hvd.size(), generation=1)
    shapes = SHAPES * (1 + NUM_SLOTS)
    variables = [tf.Variable(tf.random.normal(shape)) for shape in shapes]
    named = {str(number): variable for number, variable in enumerate(variables)}

    def ours() -> None:
        # The counters of a newcomer, whose variables are not looked at.
        counters = Counters(step=10 if world.is_leader else NEVER)
        RingState(named, counters, KerasCollectives()).sync(world)

    def ours_of_equals() -> None:
        RingState(named, Counters(step=10), KerasCollectives()).sync(world)

    def plain() -> None:
        hvd.broadcast_variables(variables, root_rank=0)

    ways = {"ours": ours, "plain": plain, "equals": ours_of_equals}
    numbers: dict[str, object] = {
        "bytes": sum(variable.shape.num_elements() * variable.dtype.size for variable in variables),
        "largest_bytes": max(v.shape.num_elements() * v.dtype.size for v in variables),
    }
    results = interleave({name: partial(_measure, way) for name, way in ways.items()}, REPETITIONS)
    for name, measured in results.items():
        seconds, peaks = zip(*measured, strict=True)
        # What comes first meets fresh memory and functions that are not traced yet.
        numbers[f"{name}_seconds"] = seconds[1:]
        numbers[f"{name}_peak_bytes"] = max(peaks)
        numbers[f"{name}_median_seconds"] = statistics.median(seconds[1:])
    if world.is_leader:
        print(json.dumps(numbers, indent=1))
    hvd.shutdown()
    return 0


def _measure(way: Callable[[], None]) -> tuple[float, float]:
    """Seconds, and most bytes above what was there before; the larger of those of all ranks."""
    hvd.allreduce(tf.zeros([1]), name="begin")
    Path("/proc/self/clear_refs").write_text("5")  # The peak is counted again.
    before, began = status_bytes("VmRSS"), time.monotonic()
    way()
    seconds = time.monotonic() - began
    costs = tf.constant([[seconds, status_bytes("VmHWM") - before]], tf.float64)
    most = tf.reduce_max(hvd.allgather(costs, name="end"), axis=0).numpy()
    return float(most[0]), float(most[1])


if __name__ == "__main__":
    sys.exit(main())
