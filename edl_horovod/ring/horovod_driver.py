"""Membership by Horovod's own elastic driver, for jobs that `horovodrun` launched (D12).

Its limits are Horovod's (docs/how-to/horovodrun.md): survivors wait for a newcomer's cold start,
and a host that failed is not used again.
"""

import logging
import os
from typing import Any

from horovod.common.elastic import notification_manager

from edl_horovod.ring.membership import Membership
from edl_horovod.ring.world import World, form_inherited

__all__ = ["HorovodDriverMembership", "is_launched_by_horovodrun"]

log = logging.getLogger(__name__)


def is_launched_by_horovodrun() -> bool:
    """Whether horovodrun's variables are there."""
    return "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ


class HorovodDriverMembership(Membership):
    """A rank of a ring whose membership is the elastic driver's.

    Only rank 0 is told of new hosts, and only once; the flag stays up until the next forming, and
    the step's collective carries it to all ranks.
    """

    def __init__(self) -> None:
        """Prepare; `join` talks to the driver."""
        self._num_formings = 0
        self._is_told = False

    def join(self, step: int) -> World:
        """Form the ring; after the first time, the driver deals the ranks anew."""
        world = form_inherited(self._num_formings)
        self._num_formings += 1
        self._is_told = False
        notification_manager.init()
        notification_manager.register_listener(self)
        return world

    def on_hosts_updated(self, timestamp: int, update_res: Any) -> None:
        """Called by Horovod's notification service, in its thread."""
        self._is_told = True

    def wants_change(self) -> bool:
        """Whether the driver told this rank of other hosts."""
        return self._is_told

    def failed(self, reason: str, step: int) -> None:
        """The driver sees failures by the processes' ends; here they are only logged."""
        log.warning("the ring broke after step %d: %s", step, reason)
