"""The run loop of a rank: work in a ring, and join the next one when it changes (D7, D10)."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.world import World
from edl_horovod.job.events import EventLog, GenerationEvent, ResetEvent, WorkerEvent
from edl_horovod.job.outcome import Success
from edl_horovod.ring.membership.base import Dismissed, Membership
from edl_horovod.ring.state import RingState, StateLost

__all__ = ["Work", "run"]

log = logging.getLogger(__name__)


class Work(ABC):
    """The work of one rank of a job; created warm: models built, steps traced, data open."""

    state: RingState

    @abstractmethod
    def run(self, world: World, membership: Membership) -> bool:
        """Work from `state.step` on, as one rank of a ring.

        Returns:
            Whether the work is done; false if the ring must change first.

        Raises:
            CollectiveFailed: A member was lost. The state is that of the last whole step.
        """

    @abstractmethod
    def finish(self, world: World) -> Success:
        """Write the job's result; all ranks call it, and the leader writes.

        If a rank is lost during it, the survivors call it again.

        Returns:
            The job's result.

        Raises:
            CollectiveFailed: A member was lost.
        """

    def expect(self, world: World, step: int) -> None:
        """Start to prepare `run` for a ring that is about to form; another may form instead."""

    def check(self, world: World) -> None:
        """Check that the ranks of a ring fit together, before they share a state.

        All ranks call it, once after each forming of a ring of several.

        Raises:
            EdlError: This rank does not fit the others.
            CollectiveFailed: Another one does not, or a member was lost.
        """

    def writes_files(self, world: World) -> bool:
        """Whether this rank writes events and results: by default only the leader does."""
        return world.is_leader

    def dismissed(self, *, has_state: bool) -> None:
        """Save what would be lost: this rank is dismissed, and maybe all others are as well.

        Args:
            has_state: Whether this rank must save the job's state; the coordinator chooses one.
        """

    def records_seen(self) -> int:
        """Number of records in the steps that are done."""
        return 0


def run(work: Work, membership: Membership, events: EventLog) -> Success:
    """Work until the job is done, through as many rings as it takes.

    Returns:
        The job's result.

    Raises:
        Dismissed: This rank is no longer wanted, or has lost the state.
        EdlError: The job cannot go on.
    """
    state, size, left_at, reason = work.state, 0, time.monotonic(), "start"
    members: list[str] = []
    is_broken = False
    membership.expect = work.expect
    while True:
        try:
            with membership.doing("joins", "joining the next ring", "forming"):
                world = membership.join(state.own_step)
            join_seconds = time.monotonic() - left_at
            with membership.doing("joins", f"the state of generation {world.generation}", "state"):
                if not world.is_alone:
                    # All ranks call them: each has just formed the ring.
                    work.check(world)
                    state.sync(world, may_stream=membership.can_stream_state())
                else:
                    state.begin_alone()
            membership.formed(world, has_state=state.is_whole)
            if membership.own_name:
                before = members if is_broken else []
                with membership.doing("joins", "who is in the ring", "state"):
                    world, members = _introduced(world, state, membership)
                if work.writes_files(world):
                    _report_members(events, members, before, world=world, reason=reason)
            seconds = time.monotonic() - left_at
            took = (join_seconds, seconds)
            _report(events, work, world, old_size=size, took=took, reason=reason)
            size = world.size
            with membership.doing("unwatched", "beginning", "between"):
                is_done = work.run(world, membership)
            if is_done:
                with membership.doing("unwatched", "writing the result", "ending"):
                    return work.finish(world)
            reason, is_broken = "membership changed", False
        except Dismissed as dismissal:
            with membership.doing("unwatched", "saving the state", "checkpoint"):
                work.dismissed(has_state=dismissal.has_state)
            raise
        except CollectiveFailed as failure:
            reason, is_broken = str(failure), True
            log.warning("the ring broke after step %d: %s", state.step, reason)
            membership.failed(failure)
        except StateLost as lost:
            # This process has no initial state any more; one that is started in its place has it.
            raise Dismissed(str(lost), is_final=False) from lost
        left_at = time.monotonic()


def _introduced(world: World, state: RingState, membership: Membership) -> tuple[World, list[str]]:
    """The ring with the number that its ranks agree on, and who is in it.

    A rank that came later has counted fewer rings than the others.
    """
    text = f"{world.generation} {membership.own_name}"
    # All ranks call it: each has just formed the ring.
    texts = [text] if world.is_alone else state.texts_of_all(text, "edl.members")
    numbers, _, members = zip(*(text.partition(" ") for text in texts), strict=True)
    generation = max(map(int, numbers))
    membership.agree(generation)
    return replace(world, generation=generation), list(members)


def _report_members(
    events: EventLog, members: Sequence[str], before: Sequence[str], *, world: World, reason: str
) -> None:
    """Write who is in the ring, and who was in the one that broke and is not in this one."""
    for name in before:
        if name not in members:
            message = "it was in the ring that broke, and is not in the next one"
            events.write(WorkerEvent(worker=name, state="lost", message=message))
    ring = GenerationEvent(
        generation=world.generation,
        size=world.size,
        members=tuple(members),
        reason=reason,
        is_formed=True,
    )
    events.write(ring)


def _report(
    events: EventLog,
    work: Work,
    world: World,
    *,
    old_size: int,
    took: tuple[float, float],
    reason: str,
) -> None:
    """Log and write a reset; it `took` so many seconds until the ring was formed, and in all."""
    join_seconds, seconds = (round(it, 4) for it in took)
    event = ResetEvent(
        generation=world.generation,
        old_size=old_size,
        new_size=world.size,
        step=work.state.step,
        records_seen=work.records_seen(),
        seconds=seconds,
        reason=reason,
        join_seconds=join_seconds,
    )
    log.info(
        "generation %d: size %d -> %d, rank %d, step %d, records_seen %d, %.3f s (%s)",
        *(event.generation, event.old_size, event.new_size, world.rank),
        *(event.step, event.records_seen, event.seconds, event.reason),
    )
    if work.writes_files(world):
        events.write(event)
