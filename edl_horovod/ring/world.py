"""The ring as one rank sees it: rebuilt at each reset, never read from the environment (rule 9)."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import horovod.tensorflow as hvd

from edl_horovod.coordinator.keepalive import VANISHED_SECONDS
from edl_horovod.frameworks.keras.collectives import CollectiveFailed
from edl_horovod.records.lanes import lanes_of_rank
from edl_horovod.ring.membership import horovod_patch

__all__ = ["World", "form_assigned", "form_inherited", "leave"]

LOOK_SECONDS = 0.25


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
    is_in_vain: Callable[[], bool] | None = None,
) -> World:
    """Form the ring that the coordinator, or horovodrun's driver, described.

    Args:
        place: What the coordinator's `assign` message holds.
        timeout_seconds: For the forming and for each collective's transfers afterwards.
        is_in_vain: Whether it is known by now that this ring will not be formed. It is asked by
            another thread; None where nobody knows.

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
        HOROVOD_GLOO_TCP_USER_TIMEOUT_MS=str(round(VANISHED_SECONDS * 1000)),
    )
    # With HOROVOD_ELASTIC=1 a second init would ask Horovod's own driver for its rank; every trace
    # of a collective, however, must see 1, or the ring's size is baked into it.
    os.environ["HOROVOD_ELASTIC"] = "0"
    try:
        with _given_up_if(is_in_vain):
            _init()
    finally:
        os.environ["HOROVOD_ELASTIC"] = "1"
    return world


@contextmanager
def _given_up_if(is_in_vain: Callable[[], bool] | None) -> Iterator[None]:
    """Let the forming in the block end soon after it is known to be in vain.

    Gloo does not hear of a member that died before it connected.
    """
    if is_in_vain is None:
        yield
        return
    is_done = threading.Event()

    def look() -> None:
        while not is_done.wait(LOOK_SECONDS):
            if is_in_vain():
                horovod_patch.give_up_connecting()

    thread = threading.Thread(target=look, name="forming", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


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
