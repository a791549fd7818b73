"""The worker, with an eye on its steps and a hand on its life.

It writes down the end of each step (in `SLOT.PID`). Where it is told to, it waits in each step as
for a device, and dies or stops while it forms a ring (as `order.SLOT` says): from outside nobody
could hit those milliseconds.
"""

import importlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.common import FOLDER_VARIABLE, FRAMEWORK_VARIABLE
from benchmarks.elastic.stamps import Stamper
from benchmarks.watched import TIMELINE_VARIABLE, start_timeline, write_memory
from edl_horovod.config.frameworks import FRAMEWORKS
from edl_horovod.frameworks.world import World
from edl_horovod.job.events import EventLog
from edl_horovod.job.outcome import Success
from edl_horovod.ring import loop
from edl_horovod.ring.membership.base import Membership
from edl_horovod.worker import __main__ as worker

__all__ = ["DEVICE_VARIABLE"]

DEVICE_VARIABLE = "BENCHMARK_DEVICE_SECONDS"
"""What a step of one rank alone waits, as for a device; the ranks of a ring share it."""


def main() -> int:
    """Be a worker until dismissed; returns the process' exit code."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    hvd: Any = importlib.import_module(FRAMEWORKS[os.environ[FRAMEWORK_VARIABLE]].horovod)
    device_seconds = float(os.environ.get(DEVICE_VARIABLE, "0"))
    run = loop.run

    def stamped_run(work: Any, membership: Membership, events: EventLog) -> Success:
        state, replace = work.state, object.__setattr__
        commit, run_in_ring = state.commit, work.run
        # Only now, because this process may have been forked.
        stamper = Stamper(folder / f"{os.environ['EDL_SLOT']}.{os.getpid()}")
        size, begin_timeline = 0, int(os.environ.get(TIMELINE_VARIABLE, "0"))

        def stamped_commit() -> None:
            if device_seconds:
                time.sleep(device_seconds / size)
            commit()
            stamper.step(state.step, size)
            if state.step == begin_timeline:
                start_timeline(hvd, folder)

        def run_and_know_size(world: World, membership: Membership) -> bool:
            nonlocal size
            size = world.size
            is_done: bool = run_in_ring(world, membership)
            return is_done

        replace(state, "commit", stamped_commit)
        replace(work, "run", run_and_know_size)
        result = run(work, membership, events)
        write_memory(folder, os.environ["EDL_SLOT"])
        return result

    init = hvd.init

    def init_on_orders(*arguments: Any) -> Any:
        slot = os.environ["EDL_SLOT"]
        _obey(folder / f"order.{slot}", folder / f"obeyed.{slot}")
        return init(*arguments)

    # The worker looks both up when it is warm.
    loop.run = stamped_run
    hvd.init = init_on_orders
    return worker.main()


def _obey(order: Path, answer: Path) -> None:
    """Send this process a signal so many seconds from now, if that was ordered; once."""
    try:
        number, delay = order.read_text().split()
    except FileNotFoundError:
        return
    order.unlink()

    def strike() -> None:
        time.sleep(float(delay))
        os.kill(os.getpid(), signal.Signals(int(number)))

    answer.write_text(f"{time.monotonic():.6f} {os.getpid()}\n")
    threading.Thread(target=strike, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
