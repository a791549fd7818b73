"""The worker with clocks in it: what its elastic parts cost, or the end of each of its steps.

It runs in place of `edl_horovod.worker`, as the options in its environment say. With `costs`, a
folder, clocks are around what only an elastic ring needs in a step, and around checkpoints. Counted
as elastic are the state's `commit`, the membership's `wants_change`, `progress` and `doing`, the
events, and the making of the flag's tensor; the flag itself is one float more in the step's one
collective. Counted as checkpoints is all that happens between two steps, which is everything but
the writing in its thread.

With `stamps`, a folder, it writes down the end of each step (in `SLOT.PID`). Where it is told to,
it waits in each step as for a device, and dies or stops while it forms a ring (as `order.SLOT`
says): from outside nothing could hit those milliseconds.
"""

import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.side import StepClock
from benchmarks.stamps import Stamper, write_memory
from edl_horovod.config.frameworks import FRAMEWORKS
from edl_horovod.frameworks.world import World
from edl_horovod.ring import loop
from edl_horovod.ring.membership.base import Membership
from edl_horovod.worker import __main__ as worker

OPTIONS_VARIABLE = "BENCHMARK_WORKER"
"""The options, as JSON."""
FLAG_TRIES = 2000

set_attribute = object.__setattr__
"""Replaces a part of a frozen object by one with a clock."""


def main() -> int:
    """Be a worker until dismissed; returns the process' exit code."""
    options = json.loads(os.environ[OPTIONS_VARIABLE])
    run = loop.run

    def measured_run(work: Any, membership: Membership, events: Any) -> Any:
        slot = os.environ["EDL_SLOT"]
        if "costs" in options:
            costs = _Costs(options["warmup_steps"], work, membership, events)
            result = run(work, membership, events)
            text = json.dumps(costs.numbers())
            (Path(options["costs"]) / f"cost.{slot}.json").write_text(text)
        else:
            _stamp_steps(work, options)
            result = run(work, membership, events)
            write_memory(Path(options["stamps"]), slot)
        return result

    # The worker looks both up when it is warm.
    loop.run = measured_run
    if "stamps" in options:
        hvd = _horovod(options)
        init, folder = hvd.init, Path(options["stamps"])

        def init_on_orders(*arguments: Any) -> Any:
            _obey(folder, os.environ["EDL_SLOT"])
            return init(*arguments)

        hvd.init = init_on_orders
    return worker.main()


class _Cost:
    """Seconds spent in wrapped calls, the warm-up left out."""

    seconds = 0.0

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def with_clock(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began

        return with_clock


class _Costs:
    """The clocks of one worker."""

    def __init__(self, warmup_steps: int, work: Any, membership: Membership, events: Any) -> None:
        self._clock = StepClock(warmup_steps)
        self._elastic, self._checkpoints = _Cost(), _Cost()
        timed, state = self._elastic.timed, work.state
        timed_commit = timed(state.commit)

        def commit_and_tick() -> None:
            timed_commit()
            self._clock.tick()
            if self._clock.num_timed_steps == 0:
                self._elastic.seconds = self._checkpoints.seconds = 0.0

        set_attribute(state, "commit", commit_and_tick)
        for name in ("wants_change", "progress", "doing"):
            set_attribute(membership, name, timed(getattr(membership, name)))
        set_attribute(work, "records_seen", timed(work.records_seen))
        set_attribute(events, "write", timed(events.write))
        saver = work._checkpoints
        set_attribute(saver, "after_step", self._checkpoints.timed(saver.after_step))

    def numbers(self) -> dict[str, float]:
        num_steps, step_seconds = self._clock.num_timed_steps, self._clock.step_seconds
        costs = {
            "elastic": self._elastic.seconds / num_steps + _flag_seconds(),
            "checkpoint": self._checkpoints.seconds / num_steps,
        }
        shares = {f"{name}_share": cost / step_seconds for name, cost in costs.items()}
        return shares | {f"{name}_microseconds": 1e6 * cost for name, cost in costs.items()}


def _flag_seconds() -> float:
    """What it takes to hand the flag to the step; inside `KerasStep.step`, so tried apart."""
    import tensorflow as tf

    began = time.perf_counter()
    for _ in range(FLAG_TRIES):
        tf.constant(float(False))
    return (time.perf_counter() - began) / FLAG_TRIES


def _horovod(options: dict[str, Any]) -> Any:
    return importlib.import_module(FRAMEWORKS[options["framework"]].horovod)


def _stamp_steps(work: Any, options: dict[str, Any]) -> None:
    state, folder = work.state, Path(options["stamps"])
    commit, run_in_ring = state.commit, work.run
    # Only now, because this process may have been forked.
    stamper = Stamper(folder / f"{os.environ['EDL_SLOT']}.{os.getpid()}")
    device_seconds, size = options.get("device_seconds", 0.0), 0

    def stamped_commit() -> None:
        if device_seconds:
            # The ranks of a ring share the device's work.
            time.sleep(device_seconds / size)
        commit()
        stamper.step(state.step, size)

    def run_and_know_size(world: World, membership: Membership) -> bool:
        nonlocal size
        size = world.size
        is_done: bool = run_in_ring(world, membership)
        return is_done

    set_attribute(state, "commit", stamped_commit)
    set_attribute(work, "run", run_and_know_size)


def _obey(folder: Path, slot: str) -> None:
    """Send this process a signal so many seconds from now, if that was ordered; once."""
    order = folder / f"order.{slot}"
    try:
        number, delay = order.read_text().split()
    except FileNotFoundError:
        return
    order.unlink()

    def strike() -> None:
        time.sleep(float(delay))
        os.kill(os.getpid(), signal.Signals(int(number)))

    (folder / f"obeyed.{slot}").write_text(f"{time.monotonic():.6f} {os.getpid()}\n")
    threading.Thread(target=strike, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
