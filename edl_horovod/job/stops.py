"""Why a ring stopped: the rank that it lost, and where that rank and the others were."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from edl_horovod.job.events import GenerationEvent, Recorded, TraceEvent, WorkerEvent

__all__ = ["Stop", "Stops"]

_MOST_STOPS = 50
"""Each has a trace of each rank, some kilobytes long."""


@dataclass(frozen=True)
class Stop:
    """A rank that a ring lost."""

    time: float
    """Seconds since the epoch."""
    worker: str
    """`host:slot`"""
    rank: int
    generation: int
    """The last ring that formed with this rank."""
    hung: str = ""
    """How the coordinator noticed that it hung; empty if it did not."""
    end: str = ""
    """How its process ended; empty while that is not known."""
    traces: Mapping[str, TraceEvent] = field(default_factory=dict)
    """What the ranks of its ring did last, by worker."""

    def __str__(self) -> str:
        """A sentence without a period."""
        trace = self.traces.get(self.worker)
        text = f"rank {self.rank} ({self.worker}) {'hung' if self.hung else 'was lost'}"
        if trace is not None and trace.place:
            text += f" at {trace.place}"
        others = [it.phase for worker, it in self.traces.items() if worker != self.worker]
        # What the coordinator saw of a rank that hung has it already.
        if others and "waited for it" not in self.hung:
            phases = " and ".join(dict.fromkeys(others))
            number = "1 other" if len(others) == 1 else f"{len(others)} others"
            text += f", and {number} had to stop in {phases}"
        reasons = [reason.rstrip(".") for reason in (self.hung, self.end) if reason]
        return f"{text}: {'; '.join(reasons)}" if reasons else text


@dataclass(frozen=True)
class Stops:
    """The ranks that the rings of a job have lost."""

    losses: tuple[Stop, ...] = ()
    """The newest last; older ones are dropped."""
    num_losses: int = 0
    """All that there were."""
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Rank and generation of the last ring with each worker that has neither left nor been lost."""
    open: frozenset[str] = frozenset()
    """Workers whose process was lost, and of which more may be told."""
    traces: Mapping[tuple[int, str], TraceEvent] = field(default_factory=dict)
    """Those of the rings in `places`, by generation and worker."""

    @property
    def last(self) -> Stop | None:
        """The last rank that was lost; None if there is none."""
        return self.losses[-1] if self.losses else None

    def for_programs(self) -> list[dict[str, Any]]:
        """All of them as objects."""
        return [{**asdict(stop), "text": str(stop)} for stop in self.losses]

    def after(self, recorded: Recorded) -> "Stops":
        """The stops after one more event; most events do not change them."""
        time, source, event = recorded
        match event:
            case GenerationEvent(is_formed=True):
                return self._formed(event)
            case WorkerEvent(state="hung"):
                return self._lost(time, event.worker, hung=event.message)
            case WorkerEvent(state="lost"):
                return self._lost(time, event.worker)
            case WorkerEvent(state="failed"):
                return self._lost(time, event.worker, end=event.message)
            case WorkerEvent(state="returned") if event.worker in self.open:
                return self._returned(event.worker)
            case WorkerEvent(state="left") if event.worker in self.places:
                return replace(self, places=_without(self.places, event.worker))
            case WorkerEvent(state="warm") if event.worker in self.open:
                return replace(self, open=self.open - {event.worker})
            case TraceEvent():
                return self._traced(source, event)
        return self

    def _formed(self, ring: GenerationEvent) -> "Stops":
        members = {worker: (rank, ring.generation) for rank, worker in enumerate(ring.members)}
        places = {**self.places, **members}
        generations = {generation for _, generation in places.values()}
        traces = {key: trace for key, trace in self.traces.items() if key[0] in generations}
        # One that hung, and is in this ring, has come back.
        return replace(self, places=places, traces=traces, open=self.open - set(members))

    def _lost(self, time: float, worker: str, *, hung: str = "", end: str = "") -> "Stops":
        """Add a lost rank, or what more is known of one."""
        if worker in self.open:
            last = self._last_of(worker)
            # The first reasons count: the next process may fail before it is warm.
            more = replace(last, hung=last.hung or hung, end=last.end or end)
            losses = tuple(more if it is last else it for it in self.losses)
            return replace(self, losses=losses)
        if worker not in self.places:
            return self  # No ring stops for it.
        rank, generation = self.places[worker]
        traces = {name: trace for (ring, name), trace in self.traces.items() if ring == generation}
        stop = Stop(time, worker, rank, generation, hung, end, traces)
        losses = (*self.losses, stop)[-_MOST_STOPS:]
        return replace(
            self,
            losses=losses,
            num_losses=self.num_losses + 1,
            places=_without(self.places, worker),
            open=(self.open | {worker}) & {it.worker for it in losses},
        )

    def _returned(self, worker: str) -> "Stops":
        """Put a worker of which only the connection was lost back into its ring."""
        last, losses, num_losses = self._last_of(worker), self.losses, self.num_losses
        # The ring may have stopped because of one that hung for a while.
        if not last.hung:
            losses, num_losses = tuple(it for it in losses if it is not last), num_losses - 1
        return replace(
            self,
            losses=losses,
            num_losses=num_losses,
            places={**self.places, worker: (last.rank, last.generation)},
            open=self.open - {worker},
        )

    def _last_of(self, worker: str) -> Stop:
        return next(stop for stop in reversed(self.losses) if stop.worker == worker)

    def _traced(self, source: str, trace: TraceEvent) -> "Stops":
        """Add a trace to the ranks that its ring has lost, or will have lost."""
        losses = tuple(
            replace(stop, traces={**stop.traces, source: trace})
            if stop.generation == trace.generation
            else stop
            for stop in self.losses
        )
        return replace(
            self, losses=losses, traces={**self.traces, (trace.generation, source): trace}
        )


def _without(places: Mapping[str, tuple[int, int]], worker: str) -> dict[str, tuple[int, int]]:
    return {name: place for name, place in places.items() if name != worker}
