"""Where the time of a job's ranks went: each moment of a rank's life has one cause."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from edl_horovod.job.events import AccountEvent, Recorded, WorkerEvent

__all__ = ["CAUSES", "LOST", "STEP_CAUSES", "Account", "Cause", "RankAccount"]

Cause = Literal[
    "importing",  # Python and its packages; a forked worker has them already.
    "building",  # Opening the data, building the model, trying a step.
    "warm",  # Ready, without a place in a ring: a spare worker, or one whose ring is not due yet.
    "forming",  # Leaving a ring, waiting for the members of the next one, forming it.
    "state",  # Receiving or sending the job's state, so that a newcomer has it.
    "input",  # Waiting for examples.
    "computing",  # The model's passes of a step.
    "exchange",  # In the step's collective, after all of this rank's own work.
    "applying",  # Updating the model.
    "redone",  # In the step that broke with its ring and is done again.
    "evaluation",
    "callbacks",
    "checkpoint",  # As long as a rank waits for it: most of it is written beside the steps.
    "between",  # Between two steps: counting, reports, asking whether the ring must change.
    "writing",  # Writing predictions.
    "ending",  # Writing the result, and waiting until all have reported.
]
"""What a rank spends its time on."""

CAUSES: tuple[Cause, ...] = get_args(Cause)
"""All causes, in the order in which a rank meets them."""
LOST = "lost"
"""The time between the last account of a rank and its sudden end."""
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
    seconds: Mapping[str, float]
    """Those of the whole life until then, by cause; `LOST` is one of them after a sudden end."""
    doing: str = ""
    """The cause that continues; empty for a process that has ended."""

    @property
    def process(self) -> tuple[str, int, float]:
        """What no other process of the job has: pids are used again."""
        return self.worker, self.pid, self.began

    def lost(self, at: float) -> "RankAccount":
        """The account of a process that was missed at a time, in seconds since the epoch."""
        seconds = {**self.seconds, LOST: max(0.0, at - self.until)}
        return replace(self, until=max(at, self.until), seconds=seconds, doing="")


@dataclass(frozen=True)
class Account:
    """The account of a job: those of all processes that were ranks of it, or waited for a place."""

    ranks: tuple[RankAccount, ...] = ()
    """In the order in which they were first heard of."""

    def after(self, recorded: Recorded) -> "Account":
        """The account after one more event; most events do not change it."""
        time, source, event = recorded
        match event:
            case AccountEvent():
                newest = RankAccount(
                    source, event.pid, event.began, time, event.seconds, event.doing
                )
                return self._with(newest)
            case WorkerEvent(state="lost" | "failed" | "hung"):
                running = [it for it in self.ranks if it.worker == event.worker and it.doing]
                return self._with(running[-1].lost(time)) if running else self
        return self

    def _with(self, newest: RankAccount) -> "Account":
        ranks = {it.process: it for it in self.ranks} | {newest.process: newest}
        return Account(tuple(ranks.values()))

    @property
    def seconds(self) -> dict[str, float]:
        """Rank-seconds by cause, in the order of the causes; only those that there are."""
        sums: dict[str, float] = dict.fromkeys((*CAUSES, LOST), 0.0)
        for rank in self.ranks:
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
