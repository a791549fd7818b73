"""The changes of a job's ring, put together from what several processes write of each."""

from collections import deque
from dataclasses import dataclass, replace

from edl_horovod.job.events import GenerationEvent, JobEvent, Recorded, ResetEvent, StepEvent

MAX_RESETS = 200
"""Number of resets that are kept: the newest ones."""


@dataclass(frozen=True)
class Reset:
    """A change of the ring, or its first forming, with what is known of its parts."""

    time: float
    """When the new ring began to work, in seconds since the epoch."""
    event: ResetEvent
    decided: float | None = None
    """When the coordinator began to form the ring; None if not known."""
    first_step_seconds: float | None = None
    """From the new ring's begin to the end of its first step."""
    is_first: bool = False
    """Whether the job had no ring before."""

    @property
    def parts(self) -> dict[str, tuple[float, float]]:
        """Begin and end of each part that is known, in seconds since the epoch.

        `notice` is the time from the leader's last step until the coordinator forms a ring,
        `rendezvous` that until the leader is in it, `sync` that until it has the state and works.
        """
        parts: dict[str, tuple[float, float]] = {}
        began, ready = self.time - self.event.seconds, self.time
        if self.event.join_seconds is not None:
            decided, formed = began, began + self.event.join_seconds
            if self.decided is not None:
                # A planned change is decided while the ring still trains; clocks of hosts differ.
                decided = min(max(began, self.decided), formed)
                parts["notice"] = (began, decided)
            parts |= {"rendezvous": (decided, formed), "sync": (formed, ready)}
        if self.first_step_seconds is not None:
            parts["first step"] = (ready, ready + self.first_step_seconds)
        return parts

    @property
    def part_seconds(self) -> dict[str, float]:
        """Seconds of each part that is known."""
        return {name: until - began for name, (began, until) in self.parts.items()}


class Resets:
    """Puts together what the events of several processes say about each reset."""

    def __init__(self) -> None:
        self._newest: deque[Reset] = deque(maxlen=MAX_RESETS)
        self._formed: Recorded | None = None
        """The event of the ring that was formed last."""
        self._has_formed = False

    @property
    def newest(self) -> tuple[Reset, ...]:
        """The newest last."""
        return tuple(self._newest)

    def add(self, recorded: Recorded) -> None:
        """Add the next event of the job, whatever it is about."""
        match event := recorded.event:
            case GenerationEvent(is_formed=True):
                self._formed = recorded
                self._add_forming()
            case ResetEvent():
                # After the loss of all ranks, the new leader has had no ring either.
                is_first = event.old_size == 0 and not self._has_formed
                self._newest.append(Reset(recorded.time, event, is_first=is_first))
                self._has_formed = True
                self._add_forming()
            case JobEvent(state="finished" | "failed" | "suspended"):
                self._has_formed = False  # Plain horovodrun appends its next job.
            case StepEvent() if self._newest and self._newest[-1].first_step_seconds is None:
                seconds = max(0.0, recorded.time - self._newest[-1].time)  # Clocks may be set back.
                self._newest[-1] = replace(self._newest[-1], first_step_seconds=seconds)

    def _add_forming(self) -> None:
        """Tell the newest reset when its ring was decided on; either event may be the first."""
        if self._formed is None or not self._newest:
            return
        formed, reset = self._formed.event, self._newest[-1]
        assert isinstance(formed, GenerationEvent)
        # A static ring has no coordinator that decides on it, and its event no seconds.
        if reset.event.generation == formed.generation and formed.seconds:
            self._newest[-1] = replace(reset, decided=self._formed.time - formed.seconds)
