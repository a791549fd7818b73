"""How many cycles a ring of one makes in a second in which there is nothing to reduce.

Run as a program with the path of a timeline; Horovod marks the cycles there.
"""

import os
import sys
import time
from pathlib import Path

from tests.parallel.ring_framework import plain_horovod


def main():
    hvd = plain_horovod()
    timeline = Path(sys.argv[1])
    os.environ.update(
        HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo", HOROVOD_GLOO_IFACE="lo"
    )
    os.environ.update(HOROVOD_TIMELINE=str(timeline), HOROVOD_TIMELINE_MARK_CYCLES="1")
    hvd.init()
    began = time.monotonic()
    time.sleep(1)
    hvd.shutdown()
    seconds = time.monotonic() - began
    num_cycles = timeline.read_text().count("CYCLE_START")
    sys.stdout.write(f"{num_cycles / seconds:.1f}\n")


if __name__ == "__main__":
    main()
