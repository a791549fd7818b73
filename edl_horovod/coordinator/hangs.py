"""Pure functions that decide which workers hang, and say why (D11)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from edl_horovod.coordinator.messages import Pong

__all__ = ["Report", "Verdict", "find_hung"]


class Report(NamedTuple):
    """What a worker's main thread does, as its listening thread answers a ping.

    The report shows where a worker is stuck, while the answer itself shows that the process lives.
    """

    worker: str
    """Its incarnation."""
    pong: Pong


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The decision on a worker that has made no progress for too long."""

    worker: str
    phase: str
    """What it is in the middle of."""
    message: str
    is_end: bool = True
    """Whether it is to end; false where no other rank waits for it: it may take its time."""


def find_hung(
    members: Sequence[Report | None], outsiders: Sequence[Report | None], *, stall_seconds: float
) -> list[Verdict]:
    """Find workers that hang. A rank is ended only if others have waited for it for so long.

    In a ring all ranks begin a step together, so how long others wait is how much longer a rank
    takes than they did: a step that is long for all of them makes none of them suspect.

    Args:
        members: Reports of the ring's members, in the order of their ranks; None for one that has
            not reported anything yet.
        outsiders: Reports of workers that should have come out of an earlier ring.
        stall_seconds: How long is too long.
    """
    hung = []
    for report in outsiders:
        # Without a ring, who is still in an older one may be all that is left of the job.
        if not members or report is None or report.pong.seconds < stall_seconds:
            continue
        if (pong := report.pong).doing in ("works", "joins"):
            message = f"did not come back to the ring for {pong.seconds:.0f} s: {pong.phase}"
            hung.append(Verdict(worker=report.worker, phase=pong.phase, message=message))
    reports = [report for report in members if report is not None]
    if len(reports) < len(members) or any(r.pong.doing not in ("works", "waits") for r in reports):
        return hung
    return hung + _hung_members(reports, stall_seconds)


def _hung_members(reports: Sequence[Report], stall_seconds: float) -> list[Verdict]:
    stalled = [report for report in reports if report.pong.seconds >= stall_seconds]
    late = [report for report in stalled if report.pong.doing == "works"]
    waiting = [report for report in stalled if report.pong.doing == "waits"]
    if len(waiting) == len(reports) > 1:
        # No single rank is to blame, as in an error of the transport. One that ends breaks the
        # collective for all others, who have the state; ending all of them would lose it.
        worker, last = waiting[-1]
        message = f"all {len(waiting)} ranks waited for each other for {last.seconds:.0f} s in "
        message += f"{last.phase}; the last one ends, which frees the others"
        return [Verdict(worker=worker, phase=last.phase, message=message)]
    if waiting and late:
        others = "1 other" if len(waiting) == 1 else f"{len(waiting)} others"
        why = f"while {others} waited for it"
    elif late and len(late) == len(reports):
        why = "and no other rank waits for it, so it goes on"
    else:
        return []
    return [
        Verdict(
            worker=worker,
            phase=pong.phase,
            message=f"no progress for {pong.seconds:.0f} s in {pong.phase}, {why}",
            is_end=bool(waiting),
        )
        for worker, pong in late
    ]
