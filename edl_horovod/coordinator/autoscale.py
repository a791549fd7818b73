"""Autoscaling: how many ranks a ring may have, decided by the throughput that added ranks bring.

The policy grows a ring step by step, as long as each step pays: the records/s that an added rank
brings must be at least a share (`elastic.autoscale_efficiency`) of those of a rank before. A step
that does not pay is taken back and halved, until no size is left between a ring that paid and one
that did not. A size that did not pay is tried again after a while, less often each time. If the
pace of an unchanged ring changes, the job has changed, so all sizes are measured again.
"""

import asyncio
import logging
import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from edl_horovod.config.tasks import TASKS, largest_ring
from edl_horovod.coordinator.settings import CoordinatorSettings
from edl_horovod.job import events
from edl_horovod.job.events import EventLog, Recorded, StepEvent

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 1.0
"""Training time of one sample; the times of single steps vary too much."""
WARM_UP_SECONDS = 1.0
"""Training time ignored after a change of the ring: prefetched batches make it too fast."""
MIN_SAMPLES = 6
"""Fewest samples for a decision; one comes about every second."""
MAX_SAMPLES = 30
"""Number of samples that suffice for a decision, however much they vary."""
SURE = 2.0
"""Distance of an efficiency from the bound, in standard errors, that allows an earlier decision."""
MARGIN = 0.1
"""A ring that has paid is given up only if its efficiency is below the bound by this much."""
CHANGED = 0.25
"""Relative difference from the measured pace at which the job counts as changed."""
RETRY_SECONDS = 600.0
"""Wait before a step that did not pay is tried again; doubled each time."""
MAX_RETRY_SECONDS = 7200.0


class RingLimit:
    """The largest ring that is allowed now, adjusted to the measured pace while `watch` runs."""

    def __init__(
        self, settings: CoordinatorSettings, events: EventLog, *, on_change: Callable[[str], None]
    ) -> None:
        self._path = settings.job_dir.events
        self._poll_seconds = settings.timings.events_poll_seconds
        self._events = events
        self._on_change = on_change
        self._policy: Autoscale | None = None
        config, elastic = settings.config, settings.elastic
        self.bound = TASKS[config.task].largest_ring(config)
        """The task's largest ring, which is never exceeded; `most` may be, for a moment."""
        self.most = largest_ring(config)
        """Most ranks that a ring may have now."""
        if elastic.autoscale:
            least, bound = elastic.min_np, elastic.autoscale_efficiency
            self._policy = Autoscale(
                min_np=least, max_np=self.most, start=config.launch.np, bound=bound
            )
            self.most = self._policy.limit

    async def watch(self) -> None:
        """Measure the ring until cancelled; returns at once without autoscaling."""
        if self._policy is None:
            return
        throughput, news = Throughput(), events.follow(self._path)
        while True:
            for sample in throughput.samples(next(news)):
                if decision := self._policy.note(sample.size, sample.rate, sample.time):
                    self.most = decision.limit
                    event = events.AutoscaleEvent(limit=self.most, reason=decision.reason)
                    self._events.write(event)
                    log.info("at most %d ranks: %s", self.most, decision.reason)
                    self._on_change(f"autoscale: {decision.reason}")
            await asyncio.sleep(self._poll_seconds)


@dataclass(frozen=True)
class Pace:
    """The speed of a ring."""

    rate: float
    """Records/s, the median of samples."""
    error: float
    """Its standard error, as a share of the rate."""


@dataclass(frozen=True)
class Decision:
    """A new limit for the ring's size."""

    limit: int
    reason: str


def efficiency(lower: int, lower_rate: float, upper: int, upper_rate: float) -> float:
    """The throughput of an added rank, as a share of that of a rank of the smaller ring.

    Args:
        lower: Ranks of the smaller ring.
        lower_rate: Its records/s.
        upper: Ranks of the larger ring.
        upper_rate: Its records/s.
    """
    return (upper_rate - lower_rate) / (upper - lower) / (lower_rate / lower)


class Autoscale:
    """Measures rings of different sizes and decides how large a ring may be."""

    def __init__(self, *, min_np: int, max_np: int, start: int, bound: float) -> None:
        """Begin without measurements.

        Args:
            min_np: Fewest ranks of a ring.
            max_np: Most ranks of a ring.
            start: Ranks to start with.
            bound: Least efficiency of an added rank.
        """
        self._min_np, self._max_np, self._bound = min_np, max_np, bound
        self.limit = max(min_np, min(start, max_np))
        """Most ranks that a ring may have now."""
        self._ceiling = max_np
        self._paces: dict[int, Pace] = {}
        self._paid = self.limit
        """Largest size that needs no proof: the initial one, or one that has paid."""
        self._is_going_down = False
        """Whether smaller rings are tried because the ring has become slower."""
        self._size = 0
        self._is_judged = False
        """Whether the pace of the present ring is known."""
        self._is_doubted = False
        """Whether the last samples of a judged ring contradict that pace."""
        self._samples: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._retry_at, self._retry_seconds = math.inf, RETRY_SECONDS

    def note(self, size: int, rate: float, now: float) -> Decision | None:
        """Add one sample; returns the new limit if the samples lead to one.

        Args:
            size: Ranks of the ring.
            rate: Records/s of the ring, over a time in which it did nothing but train.
            now: Seconds of any monotonic clock.
        """
        if size != self._size:
            # Samples of another size say nothing about this one.
            self._size = size
            self._samples.clear()
            self._is_judged = self._is_doubted = False
        self._samples.append(rate)
        if len(self._samples) < MIN_SAMPLES:
            return None
        pace = _pace(list(self._samples))
        if self._is_judged:
            return self._watch(size, now)
        if self._is_going_down:
            return self._judge_smaller(size, pace, now)
        return self._judge(size, pace, now)

    def _judge(self, size: int, pace: Pace, now: float) -> Decision | None:
        """Decide whether a ring pays, by comparing it with the next smaller measured one."""
        lower = max((known for known in self._paces if known < size), default=0)
        if size > self._paid and lower:
            share, is_sure = self._compare(lower, self._paces[lower], size, pace)
            if not is_sure:
                return None
            if share < self._bound:
                self._ceiling, self._is_judged = size - 1, True
                self._wait_longer(now)
                return self._go(max(lower, self._min_np), _story(lower, size, share))
        self._paces[size], self._is_judged = pace, True
        self._paid = max(self._paid, size)
        return self._grow(size)

    def _judge_smaller(self, size: int, pace: Pace, now: float) -> Decision | None:
        """Decide whether the larger ring pays, which was left only for this comparison."""
        upper = min((known for known in self._paces if known > size), default=0)
        self._paces[size] = pace
        if upper:
            share, is_sure = self._compare(size, pace, upper, self._paces[upper])
            if not is_sure:
                return None
            if share >= self._bound - MARGIN:
                self._is_going_down, self._is_judged, self._paid = False, True, upper
                return self._go(upper, _story(size, upper, share))
            self._ceiling = upper - 1
            self._wait_longer(now)
        self._is_judged, self._paid = True, size
        if size <= self._min_np:
            self._is_going_down = False
            return self._grow(size)
        fewer = max(self._min_np, size - _step(size))
        return self._go(fewer, f"{size} ranks are enough: {fewer} are tried")

    def _watch(self, size: int, now: float) -> Decision | None:
        """Check whether a ring that was judged keeps its pace; try a larger one after a while."""
        known = self._paces.get(size)
        pace = _pace(list(self._samples)[-MIN_SAMPLES:])
        if known is not None and abs(pace.rate - known.rate) > CHANGED * known.rate:
            if not self._is_doubted:
                # Some samples may be from before the change, so collect new ones first.
                self._is_doubted = True
                self._samples.clear()
                return None
            return self._measure_again(size, pace, is_slower=pace.rate < known.rate)
        self._is_doubted = False
        if size == self.limit == self._ceiling < self._max_np and now >= self._retry_at:
            self._ceiling = self._max_np
            self._paces = {size: _pace(list(self._samples))}
            return self._grow(size)
        return None

    def _measure_again(self, size: int, pace: Pace, *, is_slower: bool) -> Decision | None:
        """Forget the measurements; try a smaller ring if this one became slower, else a larger."""
        self._paces, self._paid, self._ceiling = {size: pace}, size, self._max_np
        self._retry_at, self._retry_seconds = math.inf, RETRY_SECONDS
        self._is_doubted = False
        if not is_slower:
            return self._grow(size)
        if size <= self._min_np:
            return None
        self._is_going_down = True
        smaller = max(self._min_np, size - _step(size))
        return self._go(smaller, f"{size} ranks have become slower: {smaller} are tried")

    def _grow(self, size: int) -> Decision | None:
        """Allow a larger ring, unless the cluster provides fewer ranks than are allowed now."""
        if size < self.limit or size >= self._ceiling:
            return None
        is_halving = self._ceiling < self._max_np
        step = max(1, (self._ceiling - size + 1) // 2) if is_halving else _step(size)
        larger = min(size + step, self._ceiling)
        return self._go(larger, f"{size} ranks pay: up to {larger} are tried")

    def _go(self, limit: int, reason: str) -> Decision | None:
        if limit == self.limit:
            return None
        self.limit = limit
        return Decision(limit, reason)

    def _compare(self, lower: int, slow: Pace, upper: int, fast: Pace) -> tuple[float, bool]:
        """The efficiency, and whether the samples suffice to compare it with the bound."""
        share = efficiency(lower, slow.rate, upper, fast.rate)
        error = fast.rate / slow.rate * lower / (upper - lower) * math.hypot(slow.error, fast.error)
        is_sure = abs(share - self._bound) > SURE * error
        return share, is_sure or len(self._samples) >= MAX_SAMPLES

    def _wait_longer(self, now: float) -> None:
        self._retry_at = now + self._retry_seconds
        self._retry_seconds = min(self._retry_seconds * 2, MAX_RETRY_SECONDS)


def _step(size: int) -> int:
    """Number of ranks by which a ring changes at a time: half of its size."""
    return max(1, size // 2)


def _pace(samples: list[float]) -> Pace:
    # Robust estimates, as a few samples contain a pause: 1.4826 makes the median deviation that of
    # a normal distribution, 1.2533 is the error of its median over that of its mean.
    middle = statistics.median(samples)
    scatter = 1.4826 * statistics.median(abs(sample - middle) for sample in samples)
    return Pace(middle, 1.2533 * scatter / math.sqrt(len(samples)) / max(middle, 1e-9))


def _story(lower: int, upper: int, share: float) -> str:
    return f"from {lower} to {upper} ranks an added one brings {share:.0%} of one before"


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

    def samples(self, recorded: Iterable[Recorded]) -> Iterator[Sample]:
        """The samples that new events complete."""
        for time, _, event in recorded:
            match event:
                case events.GenerationEvent(size=size) | events.ResetEvent(new_size=size):
                    self._size = size
                    self._last, self._seconds, self._records = None, -WARM_UP_SECONDS, 0
                case events.EvaluationEvent():
                    self._last = None  # The time of an evaluation does not count as that of a step.
                case StepEvent():
                    yield from self._step(time, event)

    def _step(self, time: float, step: StepEvent) -> Iterator[Sample]:
        if step.size < self._size:
            return  # Some ranks still receive the state, which slows down the others.
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
