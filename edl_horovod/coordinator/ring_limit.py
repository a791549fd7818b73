"""The most ranks that a ring may have now: `max_np`, or fewer where added ones do not pay."""

import asyncio
import logging
from collections.abc import Callable

from edl_horovod.coordinator.autoscale import Autoscale
from edl_horovod.coordinator.settings import CoordinatorSettings
from edl_horovod.coordinator.throughput import Throughput
from edl_horovod.job.events import AutoscaleEvent, EventLog, follow

__all__ = ["RingLimit"]

log = logging.getLogger(__name__)


class RingLimit:
    """Adjusts the limit to the ring's measured pace while `watch` runs."""

    def __init__(
        self, settings: CoordinatorSettings, events: EventLog, *, on_change: Callable[[str], None]
    ) -> None:
        self._path = settings.job_dir.events
        self._poll_seconds = settings.timings.events_poll_seconds
        self._events = events
        self._on_change = on_change
        self._policy: Autoscale | None = None
        if settings.autoscale_efficiency is not None:
            self._policy = Autoscale(
                min_np=settings.min_np,
                max_np=settings.max_np,
                start=settings.num_start,
                bound=settings.autoscale_efficiency,
            )
        self.most = settings.max_np if self._policy is None else self._policy.limit
        """Most ranks that a ring may have now."""

    async def watch(self) -> None:
        """Measure the ring as long as the job lives; returns at once without autoscaling."""
        if self._policy is None:
            return
        throughput, news = Throughput(), follow(self._path)
        while True:
            for sample in throughput.samples(next(news)):
                if decision := self._policy.note(sample.size, sample.rate, sample.time):
                    self.most = decision.limit
                    self._events.write(AutoscaleEvent(limit=self.most, reason=decision.reason))
                    log.info("at most %d ranks: %s", self.most, decision.reason)
                    self._on_change(f"autoscale: {decision.reason}")
            await asyncio.sleep(self._poll_seconds)
