"""From a job's events to samples of its pace: records/s while the ring did nothing but train."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

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
    """Takes events as they come."""

    def __init__(self) -> None:
        """Nothing has been seen."""
        self._last: dict[str, Any] | None = None
        self._seconds, self._records = -WARM_UP_SECONDS, 0

    def samples(self, events: Iterable[dict[str, Any]]) -> Iterator[Sample]:
        """The samples that new events complete.

        Args:
            events: The new ones.
        """
        for event in events:
            if event["kind"] in ("generation", "reset"):
                self._last, self._seconds, self._records = None, -WARM_UP_SECONDS, 0
            elif event["kind"] == "evaluation":
                self._last = None  # Its time is not that of the steps around it.
            elif event["kind"] == "step":
                yield from self._step(event)

    def _step(self, event: dict[str, Any]) -> Iterator[Sample]:
        last, self._last = self._last, event
        if last is None or last["size"] != event["size"]:
            return
        is_warm = self._seconds >= 0
        self._seconds += max(event["time"] - last["time"], 0.0)
        if is_warm:
            self._records += max(event["records_seen"] - last["records_seen"], 0)
        elif self._seconds >= 0:
            self._seconds = 0.0
        if self._seconds >= SAMPLE_SECONDS:
            yield Sample(event["size"], self._records / self._seconds, event["time"])
            self._seconds, self._records = 0.0, 0
