"""The ring as one rank sees it: rebuilt at each reset, never read from the environment (rule 9)."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import horovod.tensorflow as hvd

from edl_horovod.data.lanes import lanes_of_rank
from edl_horovod.keepalive import vanished_hosts_noticed
from edl_horovod.ring.collectives import CollectiveFailed

__all__ = ["World", "form_assigned", "form_inherited", "leave"]


@dataclass(frozen=True, kw_only=True)
class World:
    """This rank's place."""

    rank: int
    size: int
    generation: int

    @property
    def is_leader(self) -> bool:
        """Whether this rank writes what the ring writes once."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody to reduce with."""
        return self.size == 1

    def lanes(self, num_lanes: int) -> range:
        """The lanes that this rank owns."""
        return lanes_of_rank(self.rank, self.size, num_lanes)


def world_of(place: Mapping[str, Any]) -> World:
    """The ring that a place is in, once it is formed."""
    return World(rank=place["rank"], size=place["size"], generation=place["generation"])


def form_assigned(
    place: Mapping[str, Any],
    *,
    timeout_seconds: float,
    is_in_vain: Callable[[], bool] = lambda: False,
) -> World:
    """Form the ring that the coordinator, or horovodrun's driver, described.

    Args:
        place: What the coordinator's `assign` message holds.
        timeout_seconds: For the forming and for each collective's transfers afterwards.
        is_in_vain: Whether it is known by now that this ring will not be formed.

    Raises:
        CollectiveFailed: A member did not show up; with an unpatched Horovod the process aborts
        instead.
    """
    leave()
    world = world_of(place)
    if world.is_alone:
        return world
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    os.environ.update({f"HOROVOD_{name.upper()}": str(place[name]) for name in names})
    os.environ.update(
        HOROVOD_HOSTNAME=place["host"],
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        **_rendezvous(place),
        HOROVOD_GLOO_TIMEOUT_SECONDS=str(max(1, round(timeout_seconds))),
    )
    # With HOROVOD_ELASTIC=1 a second init would ask Horovod's own driver for its rank; every trace
    # of a collective, however, must see 1, or the ring's size is baked into it.
    os.environ["HOROVOD_ELASTIC"] = "0"
    try:
        # Who listens for a member to connect waits for five times the time-out in Gloo.
        with vanished_hosts_noticed(is_in_vain, patience_seconds=timeout_seconds):
            _init()
    finally:
        os.environ["HOROVOD_ELASTIC"] = "1"
    return world


def _rendezvous(place: Mapping[str, Any]) -> dict[str, str]:
    """Horovod's variables; it asks for http://ADDR:PORT/scope/key, and checks neither of the two.

    So the token of our own rendezvous goes between port and scope; horovodrun's has none.
    """
    address, port = place["rendezvous_address"], place["rendezvous_port"]
    if "rendezvous_token" in place:
        address, port = f"{address}:{port}/{place['rendezvous_token']}", 0
    return {"HOROVOD_GLOO_RENDEZVOUS_ADDR": address, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}


def form_inherited(communicator: Any = None) -> World:
    """Form the one ring that this process' launcher described (its variables, or MPI).

    Args:
        communicator: An mpi4py communicator; None where the launcher's variables count.

    Raises:
        CollectiveFailed: A member did not show up.
    """
    leave()
    _init(communicator)
    return World(rank=hvd.rank(), size=hvd.size(), generation=0)


def leave() -> None:
    """Leave the ring, whatever state it is in."""
    hvd.shutdown()


def _init(communicator: Any = None) -> None:
    try:
        hvd.init(communicator)
    except ValueError as error:
        # What the patched Horovod raises where the released one aborts.
        hvd.shutdown()
        raise CollectiveFailed(f"the ring could not be formed: {error}") from error
