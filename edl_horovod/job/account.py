"""Where the time of a job's ranks went: each moment of a rank's life has one cause."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from edl_horovod.job.events import AccountEvent, JobEvent, Recorded, WorkerEvent

__all__ = ["CAUSES", "LOST", "STEP_CAUSES", "Account", "Cause", "RankAccount"]

Cause = Literal[
    "importing",  # Python and its packages; a forked worker has them already.
    "building",  # Opening the data, building the model, trying a step.
    "warm",  # Ready, without a place in a ring: a spare worker, or one whose ring is not due yet.
    "below_min_np",  # The ring may not form, as there are fewer workers than `elastic.min_np`.
    "coordinator_away",  # Out of a ring, and the coordinator, which forms the next, is not there.
    "forming",  # Leaving a ring, waiting for the members of the next one, forming it.
    "state",  # Receiving or sending the job's state, so that a newcomer has it.
    "input",  # Waiting for examples.
    "computing",  # The model's passes of a step.
    "exchange",  # In the step's collective, after all of this rank's own work.
    "applying",  # Updating the model.
    "redone",  # This rank's own work in a step that broke with its ring and is done again.
    "broken",  # In that step's collective, after all of this rank's own work, until it broke.
    "evaluation",
    "callbacks",
    "checkpoint",  # As long as a rank waits for it: most of it is written beside the steps.
    "between",  # Between two steps: counting, reports, asking whether the ring must change.
    "writing",  # Writing predictions.
    "hung",  # Without progress, until it was ended because of that.
    "ending",  # Writing the result, and waiting until all have reported.
]
"""What a rank spends its time on."""

CAUSES: tuple[Cause, ...] = get_args(Cause)
"""All causes, in the order in which a rank meets them."""
_MOST_SECONDS = 1e11
"""Some thousand years, from 1970 on."""
LOST = "lost"
"""The time between the last account of a rank and its sudden end, or that of its job."""
STEP_CAUSES: tuple[Cause, ...] = ("computing", "exchange", "applying")
"""The causes that make the steps of a training."""


@dataclass(frozen=True)
class RankAccount:
    """The account of one process of a rank."""

    worker: str
    """`host:slot`"""
    pid: int
    began: float
    """Seconds since the epoch."""
    until: float
    """The end of the account, in seconds since the epoch."""
    age: float
    """Seconds from its begin to the end of the account, also where a clock was set in between."""
    seconds: Mapping[str, float]
    """Those of the whole life until then, by cause; `LOST` is one of them after a sudden end."""
    doing: str = ""
    """The cause that continues; empty for a process that has ended."""
    hung_since: float | None = None
    """When it made its last progress, in seconds since the epoch; None unless it hangs."""

    @property
    def process(self) -> tuple[str, int, float]:
        """What no other process of the job has: pids are used again."""
        return self.worker, self.pid, self.began

    @property
    def begin(self) -> float:
        """`began` by the clock of its end, which may have been set since then."""
        return self.until - self.age

    def lost(self, at: float) -> "RankAccount":
        """The account of a process that was missed at a time, in seconds since the epoch."""
        since = max(0.0, at - self.until)
        # The rest is a part of a step that went on when it wrote its account.
        missing = max(0.0, since + self.age - sum(self.seconds.values()))
        hung = 0.0 if self.hung_since is None else min(missing, max(0.0, at - self.hung_since))
        more = {"hung": hung, LOST: missing - hung} if hung else {LOST: missing}
        return replace(
            self,
            until=self.until + since,
            age=self.age + since,
            seconds={**self.seconds, **more},
            doing="",
        )


@dataclass(frozen=True)
class Account:
    """The account of a job: those of all processes that were ranks of it, or waited for a place."""

    processes: Mapping[tuple[str, int, float], RankAccount] = field(default_factory=dict)
    """In the order in which they were first heard of."""

    @property
    def ranks(self) -> tuple[RankAccount, ...]:
        """The accounts of all processes, in the order in which they were first heard of."""
        return tuple(self.processes.values())

    def after(self, recorded: Recorded) -> "Account":
        """The account after one more event; most events do not change it."""
        time, source, event = recorded
        match event:
            case AccountEvent() if _is_sound(event):
                # Earlier versions wrote no age.
                age = max(0.0, time - event.began) if event.age is None else event.age
                newest = RankAccount(
                    source, event.pid, event.began, time, age, event.seconds, event.doing
                )
                # A worker is one process at a time. An older one has ended without a word.
                older = {} if newest.process in self.processes else self._ended(source)
                return Account({**self.processes, **older, newest.process: newest})
            case WorkerEvent(state="hung", seconds=float() | int() as seconds):
                # One that makes progress again writes another account.
                since = time - seconds
                hung = {
                    it.process: replace(it, hung_since=since) for it in self._doing(event.worker)
                }
                return Account({**self.processes, **hung}) if hung else self
            case WorkerEvent(state="left" | "lost" | "failed"):
                # A process that says itself that it leaves has written its last account.
                return self._without(self._doing(event.worker), time)
            case JobEvent(state="finished" | "failed" | "suspended" | "lost"):
                # One that writes its last account later, as beside plain horovodrun, replaces this.
                return self._without(self._doing(), time)
        return self

    def _doing(self, worker: str | None = None) -> list[RankAccount]:
        """The processes, or those of one worker, that have not ended."""
        ranks = [it for it in self.processes.values() if it.doing]
        return [it for it in ranks if worker in (None, it.worker)]

    def _without(self, ranks: Iterable[RankAccount], at: float) -> "Account":
        """The account after processes were missed at a time, in seconds since the epoch."""
        lost = {it.process: it.lost(at) for it in ranks}
        return Account({**self.processes, **lost}) if lost else self

    def _ended(self, worker: str) -> dict[tuple[str, int, float], RankAccount]:
        return {it.process: replace(it, doing="") for it in self._doing(worker)}

    @property
    def seconds(self) -> dict[str, float]:
        """Rank-seconds by cause, in the order of the causes; only those that there are."""
        sums: dict[str, float] = dict.fromkeys((*CAUSES, LOST), 0.0)
        for rank in self.processes.values():
            for cause, seconds in rank.seconds.items():
                sums[cause] = sums.get(cause, 0.0) + seconds
        return {cause: seconds for cause, seconds in sums.items() if seconds}

    @property
    def goodput(self) -> float | None:
        """The share of all rank-seconds that went into steps which count; None without any."""
        seconds = self.seconds
        if not (total := sum(seconds.values())):
            return None
        return sum(seconds.get(cause, 0.0) for cause in STEP_CAUSES) / total

    def for_programs(self) -> dict[str, Any]:
        """All of it as objects and lists."""
        ranks = [asdict(rank) for rank in self.ranks]
        return {"goodput": self.goodput, "seconds": self.seconds, "ranks": ranks}


def _is_sound(event: AccountEvent) -> bool:
    """Whether the numbers can be those of a process: anybody may have written a job's events."""
    numbers = [event.began, event.age or 0.0, *event.seconds.values()]
    return all(0 <= number < _MOST_SECONDS for number in numbers)
