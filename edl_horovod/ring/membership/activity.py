"""Records what a rank's main thread does, so that another thread can report a hang."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from edl_horovod.coordinator.messages import Pong

__all__ = ["Activity"]


@dataclass(frozen=True)
class _Phase:
    state: str
    phase: str
    has_come: Callable[[], bool] | None
    since: float


class Activity:
    """The current phase of a main thread. It writes, another thread reads, and neither waits."""

    def __init__(self) -> None:
        self._phase = _Phase("joins", "getting warm", None, time.monotonic())
        self._came: tuple[_Phase, float] | None = None

    def begin(self, state: str, phase: str, has_come: Callable[[], bool] | None = None) -> None:
        """Enter a phase; see `Membership.doing`."""
        self._phase = _Phase(state, phase, has_come, time.monotonic())

    def report(self, generation: int) -> Pong:
        """The current phase and its duration, as the answer to a ping."""
        phase, now = self._phase, time.monotonic()
        state, since = phase.state, phase.since
        if phase.has_come is not None and phase.has_come():
            # Counted from when it was first seen there: its own long step is not waiting.
            if self._came is None or self._came[0] is not phase:
                self._came = (phase, now)
            state, since = "waits", self._came[1]
        seconds = round(now - since, 1)
        return Pong(generation=generation, doing=state, phase=phase.phase, seconds=seconds)
