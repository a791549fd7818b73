"""How a rank learns its ring: what the coordinator, horovodrun and mpirun have in common."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from edl_horovod.errors import EdlError
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.horovod import Horovod
from edl_horovod.frameworks.world import World
from edl_horovod.job.outcome import Success

__all__ = ["EXIT_AT_SIGTERM", "Dismissed", "Membership"]

EXIT_AT_SIGTERM = 143


class Dismissed(Exception):
    """This worker is no longer wanted, or the job is over."""

    def __init__(self, reason: str, *, is_final: bool = True, has_state: bool = False) -> None:
        """Describe the dismissal.

        Args:
            reason: For people.
            is_final: Whether no other process is needed in its place: the job is over, or the
                place is given up.
            has_state: Whether it is the one of all workers that has the job's state and must keep
                it, as far as the coordinator knows: no ring trains.
        """
        super().__init__(reason)
        self.is_final = is_final
        self.has_state = has_state


class Membership(ABC):
    """A rank's source of rings. A change is a level, asked each step: none is missed (D10)."""

    def __init__(self, horovod: Horovod) -> None:
        self._horovod = horovod

    expect: Callable[[World, int], None] = staticmethod(lambda world, step: None)
    """Called with this rank's next place, and with the step that its ring is likely to begin at,
    before the ring is formed."""

    @abstractmethod
    def join(self, step: int) -> World:
        """Wait for this rank's place in the next ring and form it.

        Args:
            step: Steps of the job that this rank has; -1 for a newcomer.

        Raises:
            Dismissed: This rank will not get a place again.
            CollectiveFailed: The ring could not be formed; report it with `failed` and join again.
        """

    def formed(self, world: World, *, has_state: bool = True) -> None:
        """Report that this rank is in the ring, and whether it has the ring's state.

        One that has not is given it while the ring goes on, and then reports again.
        """

    def keeps_holders(self) -> bool:
        """Whether the ranks that have the state stay in the ring until others have it."""
        return False

    @abstractmethod
    def wants_change(self) -> bool:
        """Whether this rank knows that its ring is to be replaced; asked before each step."""

    @abstractmethod
    def failed(self, failure: CollectiveFailed, step: int) -> None:
        """Report why and at which step the ring broke, before joining the next one."""

    def doing(
        self, state: str, phase: str, *, is_waiting: Callable[[], bool] | None = None
    ) -> AbstractContextManager[None]:
        """Record what this rank does within a block, so that a hang can be found.

        After the block it does again what it did before. Costs a microsecond.

        Args:
            state: `works` (the others wait for it), `waits` (in a collective), or `unwatched` (may
                take any time).
            phase: The same for people.
            is_waiting: Asked from another thread, now and then, whether a rank that works has come
                to the step's collective and so waits.
        """
        return nullcontext()

    def progress(self, step: int) -> None:
        """Report how many steps are done; at most about once a second."""

    def finished(self, result: Success) -> None:
        """Report that the job is done; every rank does so."""

    def report_error(self, error: EdlError) -> None:
        """Report that the job cannot go on."""

    def leave_soon(self) -> None:
        """Ask to be left out of the next ring, then end; without a coordinator, end now."""
        os._exit(EXIT_AT_SIGTERM)

    def close(self) -> None:
        """Leave the ring and release everything."""
        self._horovod.leave()
