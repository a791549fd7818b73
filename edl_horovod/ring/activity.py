"""What a rank is doing now, by which a hang is found, and the account of its time so far."""

import contextlib
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from edl_horovod.coordinator import messages
from edl_horovod.job.account import CAUSES, Cause
from edl_horovod.job.events import AccountEvent, EventLog
from edl_horovod.job.timeline import Timeline

_SHARE_OF_LIFE = 0.02
_FEWEST_SECONDS, _MOST_SECONDS = 1.0, 60.0
"""An account is written again after this share of the process' life, within these bounds."""
_LONGEST_WRITE_SECONDS = 5.0
_Now = tuple[str, str, Cause, Callable[[], bool] | None, float]
"""State, phase, cause and `is_waiting`, as `Membership.doing` describes them, and since when."""


class _Doing:  # Entered several times a step: a generator is several times slower.
    __slots__ = ("_activity", "_former", "_phase")

    def __init__(self, activity: "Activity", phase: tuple[Any, ...]) -> None:
        self._activity, self._phase = activity, phase

    def __enter__(self) -> None:
        self._former = self._activity.current
        self._activity.begin(*self._phase)

    def __exit__(self, *_: object) -> None:
        self._activity.begin(*self._former)


class Activity:
    """The present phase of the main thread and the seconds of all former ones, for other threads.

    Phases follow each other without a gap, from the begin of the process on.
    """

    def __init__(self, age: float | None = None, timeline: Timeline | None = None) -> None:
        """Begin with the process, whose imports are over.

        Args:
            age: Seconds since the process began; None to ask the kernel.
            timeline: Gets each phase when it has ended; None if there is none (`debug.timeline`).
        """
        self.timeline = timeline
        self._began = time.monotonic() - (_age() if age is None else age)
        self._phase: _Now = ("joins", "getting warm", "importing", None, self._began)
        self._waiting: tuple[_Now, float] | None = None
        self._seconds: dict[str, float] = dict.fromkeys(CAUSES, 0.0)
        self._moved: dict[str, float] = {}
        """Seconds of the present phase that have other causes."""
        self._lock = threading.Lock()
        self.begin("joins", "getting warm", "building")

    def begin(
        self,
        state: str,
        phase: str,
        cause: Cause | None = None,
        is_waiting: Callable[[], bool] | None = None,
    ) -> None:
        """Enter a phase, until the next one; the arguments are those of `Membership.doing`."""
        now = time.monotonic()
        with self._lock:
            _, _, former_cause, _, since = self._phase
            self._seconds[former_cause] += now - since
            if self.timeline is not None:
                former_phase = self._phase[1]
                self.timeline.add_phase(former_phase, former_cause, since, now, self._moved)
            if self._moved:
                for moved, seconds in self._moved.items():
                    self._seconds[moved] += seconds
                    self._seconds[former_cause] -= seconds
                self._moved = {}
            # Entered several times a step: a plain tuple takes a tenth of the time of a named one.
            self._phase = (state, phase, cause or former_cause, is_waiting, now)

    def doing(
        self,
        state: str,
        phase: str,
        cause: Cause | None = None,
        is_waiting: Callable[[], bool] | None = None,
    ) -> AbstractContextManager[None]:
        """Enter a phase within a block; after the block the former phase continues."""
        return _Doing(self, (state, phase, cause, is_waiting))

    def had_other_causes(self, **seconds: float) -> None:
        """Say how many of the present phase's seconds so far had other causes, at its end."""
        now = time.monotonic()
        with self._lock:
            # A framework may have measured them by a clock that was set in between.
            left = now - self._phase[-1]
            self._moved = {}
            for cause, measured in seconds.items():
                self._moved[cause] = min(max(measured, 0.0), left)
                left -= self._moved[cause]

    def is_done_again(self) -> None:
        """Say that what the present phase has done so far is done again."""
        self.had_other_causes(redone=math.inf)

    @property
    def current(self) -> tuple[str, str, Cause, Callable[[], bool] | None]:
        """The arguments of the last call of `begin`."""
        return self._phase[:4]

    def account(self) -> tuple[dict[str, float], float, Cause]:
        """The seconds by cause, the age of the process, and the present cause.

        The seconds add up to the age, but for a step that is still computed: what of it was
        computing and what was waiting is known at its end. So no cause's seconds ever fall.
        """
        with self._lock:
            now, (_, _, cause, _, since) = time.monotonic(), self._phase
            seconds = dict(self._seconds)
        if cause != "computing":
            seconds[cause] += now - since
        return seconds, now - self._began, cause

    def report(self, generation: int) -> messages.Pong:
        """The current phase and its duration, as the answer to a ping."""
        present, now = self._phase, time.monotonic()
        state, phase, _, is_waiting, since = present
        if is_waiting is not None and is_waiting():
            # Waiting begins when it is first noticed: a long step before it does not count.
            if self._waiting is None or self._waiting[0] is not present:
                self._waiting = (present, now)
            state, since = "waits", self._waiting[1]
        seconds = round(now - since, 1)
        return messages.Pong(generation=generation, doing=state, phase=phase, seconds=seconds)


@contextlib.contextmanager
def accounted(activity: Activity, events: EventLog) -> Iterator[None]:
    """Write the account of this process into the job's events, at intervals and at the end."""
    is_over = threading.Event()
    # Of its own: models take numbers from Python's, and must take the same on all ranks.
    jitter = random.Random()
    # Once, because with the worker and the pid it names the process in all its accounts.
    began = round(time.time() - activity.account()[1], 4)

    def write(*, is_last: bool = False) -> float:
        seconds, age, doing = activity.account()
        account = AccountEvent(
            pid=os.getpid(),
            began=began,
            seconds={cause: round(spent, 4) for cause, spent in seconds.items() if spent},
            doing="" if is_last else doing,
        )
        if events.has_room():
            events.write(account)
        return min(max(age * _SHARE_OF_LIFE, _FEWEST_SECONDS), _MOST_SECONDS)

    def write_on() -> None:
        pause = _FEWEST_SECONDS
        while not is_over.wait(pause * jitter.uniform(0.8, 1.2)):  # Not all ranks at once.
            pause = write()

    writer = threading.Thread(target=write_on, name="account", daemon=True)
    writer.start()
    try:
        yield
    finally:
        is_over.set()
        writer.join(_LONGEST_WRITE_SECONDS)
        if not writer.is_alive():  # It hangs on a dead file server, as another write would.
            write(is_last=True)


def _age() -> float:
    """Seconds since this process began, with a fork as the begin of a forked one."""
    begin_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - begin_ticks / os.sysconf("SC_CLK_TCK")
