"""Our step over our stream in a bare loop: no commit, no membership, no events, no coordinator.

Started by a static horovodrun. The step is the job's own, so its collective still carries the flag.
"""

import os
import sys

import keras

from benchmarks.common import StepClock, side_parser, write_numbers
from benchmarks.ours.parts import load, open_stream
from edl_horovod.frameworks.keras.collectives import HOROVOD
from edl_horovod.frameworks.keras.step import KerasStep


def main() -> int:
    """Train as one rank; rank 0 reports. Returns the exit code."""
    args = side_parser(__doc__.partition("\n")[0]).parse_args()
    keras.utils.set_random_seed(0)
    loaded = load("CnnSpec")
    with open_stream(args.data, loaded, args.batch_size) as (stream, plan):
        # As in the worker: 1 while a collective is traced, 0 while a ring of fixed ranks forms.
        os.environ["HOROVOD_ELASTIC"] = "1"
        trainer = KerasStep(loaded, stream.element_spec, learning_rate=None)
        os.environ["HOROVOD_ELASTIC"] = "0"
        world = HOROVOD.form_inherited()
        lanes = world.lanes(plan.num_lanes)
        stream.restart(lanes, 0, args.total_steps)
        clock = StepClock(args.warmup_steps)
        for _ in range(args.total_steps):
            batch = stream.next_batch()
            trainer.step(batch, wants_change=False, is_alone=world.is_alone, salt=lanes.start)
            clock.tick()
    if world.is_leader:
        write_numbers(args.place, {"step_seconds": clock.step_seconds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
