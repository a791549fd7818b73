"""Computes samples of a job's pace from its events: records/s while the ring only trained."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from edl_horovod.job.events import (
    EvaluationEvent,
    GenerationEvent,
    Recorded,
    ResetEvent,
    StepEvent,
)

__all__ = ["Sample", "Throughput"]

SAMPLE_SECONDS = 1.0
"""Training that makes one sample; single steps scatter too much."""
WARM_UP_SECONDS = 1.0
"""Training after a change of the ring that makes none: what is prefetched runs out first."""


@dataclass(frozen=True)
class Sample:
    """Records/s of a ring over about a second of training."""

    size: int
    rate: float
    time: float
    """When it was taken, in seconds since the epoch."""


class Throughput:
    """Turns a stream of events into samples."""

    def __init__(self) -> None:
        self._last: tuple[float, StepEvent] | None = None
        self._seconds, self._records = -WARM_UP_SECONDS, 0
        self._size = 0

    def samples(self, events: Iterable[Recorded]) -> Iterator[Sample]:
        """The samples that new events complete."""
        for time, _, event in events:
            match event:
                case GenerationEvent() | ResetEvent():
                    self._size = (
                        event.size if isinstance(event, GenerationEvent) else event.new_size
                    )
                    self._last, self._seconds, self._records = None, -WARM_UP_SECONDS, 0
                case EvaluationEvent():
                    self._last = None  # Its time is not that of the steps around it.
                case StepEvent():
                    yield from self._step(time, event)

    def _step(self, time: float, step: StepEvent) -> Iterator[Sample]:
        if step.size < self._size:
            return  # Some ranks are still being given the state, which takes the others' time.
        last, self._last = self._last, (time, step)
        if last is None or last[1].size != step.size:
            return
        last_time, last_step = last
        is_warm = self._seconds >= 0
        self._seconds += max(time - last_time, 0.0)
        if is_warm:
            self._records += max(step.records_seen - last_step.records_seen, 0)
        elif self._seconds >= 0:
            self._seconds = 0.0
        if self._seconds >= SAMPLE_SECONDS:
            yield Sample(step.size, self._records / self._seconds, time)
            self._seconds, self._records = 0.0, 0
