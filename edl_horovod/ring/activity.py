"""What a rank does now, by which a hang is found, what it did last, and where its time went."""

import contextlib
import math
import os
import random
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType, TracebackType
from typing import Any

from edl_horovod.coordinator import messages
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.job.account import CAUSES, Cause
from edl_horovod.job.events import AccountEvent, Event, EventLog, Span, TraceEvent
from edl_horovod.job.timeline import Timeline

_SHARE_OF_LIFE = 0.02
_FEWEST_SECONDS, _MOST_SECONDS = 1.0, 60.0
"""An account is written again after this share of the process' life, within these bounds."""
_LONGEST_WRITE_SECONDS = 5.0
_NUM_LAST = 48
"""Phases that are kept; a step has some ten of them, of which a trace shows two."""
_NUM_SPANS, _NUM_CALLS = 12, 12
"""How much of the phases and of the stack a trace shows."""
_PACKAGES = (
    "<",
    f"{Path(__file__).parents[1]}/",
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
"""Begins of the names of files that are not the user's."""
_Now = tuple[str, str, Cause, Callable[[], bool] | None, float]
"""State, phase, cause and `is_waiting`, as `Membership.doing` describes them, and since when."""


class _Doing:  # Entered several times a step: a generator is several times slower.
    __slots__ = ("_activity", "_former", "_phase")

    def __init__(self, activity: "Activity", phase: tuple[Any, ...]) -> None:
        self._activity, self._phase = activity, phase

    def __enter__(self) -> None:
        self._former = self._activity.current
        self._activity.begin(*self._phase)

    def __exit__(
        self, _: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, CollectiveFailed):
            self._activity.broke(traceback)
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
        self._last: deque[tuple[_Now, float, dict[str, float]]] = deque(maxlen=_NUM_LAST)
        """Former phases, each with its end and its seconds that had other causes."""
        self._broken: tuple[_Now, float, tuple[str, ...]] | None = None
        """The phase in which the ring broke, when, and the stack."""
        self._num_steps = 0
        self.step_bytes: int | None = None
        """Size of the sums that the ranks exchange in a step; None where it is not known."""
        self._events: EventLog | None = None
        self._began_at = 0.0
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
            _, former_phase, former_cause, _, since = former = self._phase
            self._last.append((former, now, self._moved))
            self._seconds[former_cause] += now - since
            if self.timeline is not None:
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

    def is_done_again(self, *, waited: float) -> None:
        """Say that what the present phase has done so far is done again.

        Args:
            waited: The last seconds of it, in which this rank waited for the others.
        """
        work = time.monotonic() - self._phase[-1] - waited
        self.had_other_causes(redone=work, broken=math.inf)

    @property
    def current(self) -> tuple[str, str, Cause, Callable[[], bool] | None]:
        """The arguments of the last call of `begin`."""
        return self._phase[:4]

    def step_ended(self, **seconds: float) -> None:
        """Count the present phase as a step of which these seconds had other causes."""
        self._num_steps += 1
        self.had_other_causes(**seconds)

    def account(self) -> tuple[dict[str, float], float, Cause]:
        """The seconds by cause, the age of the process, and the present cause.

        The seconds add up to the age, but for a part of a step, or an exchange, that goes on:
        whether this rank has worked, waited or hung in it, and whether it broke, is known at its
        end. So no cause's seconds ever fall, except in the last account of a rank that is ended
        because it hangs while it waits or joins.
        """
        with self._lock:
            now, (state, _, cause, _, since) = time.monotonic(), self._phase
            seconds = dict(self._seconds)
        if state != "works" and cause != "exchange":
            seconds[cause] += now - since
        return seconds, now - self._began, cause

    def broke(self, traceback: TracebackType | None) -> None:
        """Say that the ring broke in the present phase, for its account and the next trace."""
        if self._phase[2] == "exchange":
            self.had_other_causes(broken=math.inf)
        if self._broken is None:  # The innermost phase says it first.
            self._broken = self._phase, time.monotonic(), _stack_of_traceback(traceback)

    def leave_trace(self, reason: str, generation: int) -> None:
        """Write what this process did last, and where, into the job's events.

        Args:
            reason: Why, for people.
            generation: The ring.
        """
        broken, self._broken = self._broken, None
        now = time.monotonic()
        with self._lock:
            last, present = tuple(self._last), self._phase
        if broken is None:
            broken = present, now, _stack_of_main_thread()
        (state, phase, _, is_waiting, since), until, stack = broken
        doing = "waits" if is_waiting is not None and is_waiting() else state
        place = ""
        if doing == "works":
            place = _place_in_user_code(stack) or _place_of_other_threads()
        self._write(
            TraceEvent(
                generation=generation,
                reason=reason,
                doing=doing,
                phase=phase,
                seconds=round(until - since, 4),
                place=place,
                stack=stack[-_NUM_CALLS:],
                last=tuple(_spans(last, time.time() - now, self.step_bytes))[-_NUM_SPANS:],
            )
        )

    def end_as_hung(self) -> None:
        """Write the last account: nothing was done in the present phase, and the process ends."""
        self.had_other_causes(hung=math.inf)
        self.begin("unwatched", "the end of a rank that hangs", "hung")
        self.write_account(is_last=True)

    def write_to(self, events: EventLog) -> None:
        """Take the log for accounts and traces."""
        self._events = events
        # Once, because with the worker and the pid it names the process in all its accounts.
        self._began_at = round(time.time() - self.account()[1], 4)

    def write_account(self, *, is_last: bool = False) -> float:
        """Write the account so far; returns the age of the process in seconds."""
        seconds, age, doing = self.account()
        # Before the disk is asked for room, as other threads may keep this one waiting then.
        at = time.time()
        self._write(
            AccountEvent(
                pid=os.getpid(),
                began=self._began_at,
                seconds={
                    cause: rounded
                    for cause, spent in seconds.items()
                    if (rounded := round(spent, 4))
                },
                doing="" if is_last else doing,
                steps=self._num_steps,
                age=round(age, 4),
            ),
            at=at,
        )
        return age

    def _write(self, event: Event, *, at: float | None = None) -> None:
        if self._events is not None and self._events.has_room():
            self._events.write(event, at=at)

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


def _spans(
    last: Iterable[tuple[_Now, float, dict[str, float]]], clock: float, step_bytes: int | None
) -> Iterator[Span]:
    """The phases, and the exchanges in them; `clock` is when the monotonic clock was 0."""
    for (_, phase, cause, _, since), until, moved in last:
        if cause != "between":
            yield Span(name=phase, began=round(clock + since, 4), seconds=round(until - since, 4))
        if seconds := moved.get("exchange"):
            began = clock + until - moved.get("applying", 0.0) - seconds
            yield Span(
                name=f"exchange of {phase}",
                began=round(began, 4),
                seconds=round(seconds, 4),
                num_bytes=step_bytes,
            )


def _stack_of_main_thread() -> tuple[str, ...]:
    """The main thread's stack as `file:line in function`, the innermost call last."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return _calls(reversed([*walk_stack(frame)])) if frame is not None else ()


def _stack_of_traceback(traceback: TracebackType | None) -> tuple[str, ...]:
    """The calls through which an error came, as those of a stack."""
    return _calls(walk_tb(traceback))


def _place_in_user_code(stack: Iterable[str]) -> str:
    """The innermost call of a stack that is not in a package; empty without one."""
    places = [line for line in stack if not line.startswith(_PACKAGES)]
    return Path(places[-1]).name if places else ""


def _place_of_other_threads() -> str:
    """The same for the first other thread that runs the user's code, as one that makes examples."""
    passed_over = {threading.get_ident(), threading.main_thread().ident}
    for thread, frame in sys._current_frames().items():
        if thread not in passed_over and (
            place := _place_in_user_code(_calls(reversed([*walk_stack(frame)])))
        ):
            return place
    return ""


def _calls(calls: Iterable[tuple[FrameType, int]]) -> tuple[str, ...]:
    # Without the source: its file may be on the file server for which this process waits.
    return tuple(
        f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}" for frame, line in calls
    )


@contextlib.contextmanager
def accounted(activity: Activity, events: EventLog) -> Iterator[None]:
    """Write the account of this process into the job's events, at intervals and at the end."""
    is_over = threading.Event()
    # Of its own: models take numbers from Python's, and must take the same on all ranks.
    jitter = random.Random()
    activity.write_to(events)

    def write_on() -> None:
        pause = _FEWEST_SECONDS
        while not is_over.wait(pause * jitter.uniform(0.8, 1.2)):  # Not all ranks at once.
            age = activity.write_account()
            pause = min(max(age * _SHARE_OF_LIFE, _FEWEST_SECONDS), _MOST_SECONDS)

    writer = threading.Thread(target=write_on, name="account", daemon=True)
    writer.start()
    try:
        yield
    finally:
        is_over.set()
        writer.join(_LONGEST_WRITE_SECONDS)
        if not writer.is_alive():  # It hangs on a dead file server, as another write would.
            activity.write_account(is_last=True)


def _age() -> float:
    """Seconds since this process began, with a fork as the begin of a forked one."""
    begin_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - begin_ticks / os.sysconf("SC_CLK_TCK")
