"""The one adapter to Horovod: forms rings, leaves them, and turns Horovod's errors into ours.

Each framework has its own half of Horovod (`horovod.tensorflow`, `horovod.torch`) and hands it to
`Horovod`; this module imports no framework.
"""

import ctypes
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from horovod.common.elastic import notification_manager
from horovod.common.exceptions import HorovodInternalError

from edl_horovod.coordinator.keepalive import VANISHED_SECONDS
from edl_horovod.coordinator.messages import RANK_FIELDS, Place
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.world import World

__all__ = ["NEEDED_PATCH", "Horovod", "patch_warning"]

NEEDED_PATCH = 4
"""The patch's number that this package was written for: `horovod_edl_patch_version` in it."""
POLL_SECONDS = 0.25

_GRAPH_PLACE = re.compile(r"\{\{function_node [^}]*\}\} ?")
_SOURCE_PLACE = re.compile(r"\[[^][]*\.(?:cc|h):\d+\] ")
_UNREACHED = re.compile(
    r"\[([0-9a-fA-F.:]+)\]:\d+: "
    r"(?:Connection timed out|Connection refused|No route to host|Network is unreachable)"
)
"""How Gloo names the peer; one that only closed its connection need not be to blame."""


class Horovod:
    """Horovod as one framework sees it."""

    def __init__(self, hvd: ModuleType, *, op_errors: tuple[type[Exception], ...] = ()) -> None:
        """Take a framework's half of Horovod.

        Args:
            hvd: `horovod.tensorflow` or `horovod.torch`.
            op_errors: What the framework raises when an op inside a graph fails. Only the text of
                such an error tells a failed collective from an error of the user's own ops.
        """
        self._hvd: Any = hvd
        self._op_errors = op_errors

    def form_assigned(
        self,
        place: Place,
        *,
        timeout_seconds: float,
        is_abandoned: Callable[[], bool] | None = None,
    ) -> World:
        """Form the ring that the coordinator, or horovodrun's driver, described.

        Args:
            place: This rank's, as the coordinator or the driver gave it.
            timeout_seconds: For the forming and for each collective's transfers afterwards.
            is_abandoned: Says whether this ring will not be formed any more. Another thread calls
                it. None where nobody knows.

        Raises:
            CollectiveFailed: A member did not show up; with an unpatched Horovod the process
                aborts instead.
        """
        self.leave()
        world = World.of(place)
        if world.is_alone:
            return world
        os.environ.update(
            {f"HOROVOD_{name.upper()}": str(getattr(place, name)) for name in RANK_FIELDS}
        )
        os.environ.update(
            HOROVOD_HOSTNAME=place.host,
            HOROVOD_CONTROLLER="gloo",
            HOROVOD_CPU_OPERATIONS="gloo",
            **_rendezvous(place),
            HOROVOD_GLOO_TIMEOUT_SECONDS=str(max(1, round(timeout_seconds))),
            HOROVOD_GLOO_TCP_USER_TIMEOUT_MS=str(round(VANISHED_SECONDS * 1000)),
        )
        # With HOROVOD_ELASTIC=1 a second init would ask Horovod's own driver for its rank; every
        # trace of a collective, however, must see 1, or the ring's size is baked into it.
        os.environ["HOROVOD_ELASTIC"] = "0"
        try:
            with self._given_up_if(is_abandoned):
                self._init()
        finally:
            os.environ["HOROVOD_ELASTIC"] = "1"
        return world

    def form_inherited(self, communicator: Any = None) -> World:
        """Form the ring that the launcher of this process described by variables or MPI.

        Args:
            communicator: An mpi4py communicator; None where the launcher's variables count.

        Raises:
            CollectiveFailed: A member did not show up.
        """
        self.leave()
        self._init(communicator)
        return World(rank=self._hvd.rank(), size=self._hvd.size(), generation=0)

    def leave(self) -> None:
        """Leave the ring, whatever state it is in."""
        self._hvd.shutdown()

    def has_mpi(self) -> bool:
        """Whether this Horovod was built with MPI."""
        return bool(self._hvd.mpi_built())

    def listen_to_driver(self, listener: Any) -> None:
        """Have horovodrun's driver tell `listener.on_hosts_updated` of other hosts."""
        notification_manager.init()
        notification_manager.register_listener(listener)

    @contextmanager
    def catch_failures(self) -> Iterator[None]:
        """Turn what Horovod and the framework raise for a broken ring into `CollectiveFailed`."""
        try:
            yield
        except HorovodInternalError as error:
            raise _failed(str(error)) from error
        except self._op_errors as error:
            # Paths of our own files stand in every such report.
            if "orovod" not in str(error).replace("edl_horovod", ""):
                raise
            raise _failed(_cause(str(getattr(error, "message", error)))) from error

    def patch_version(self) -> int:
        """The number of our patch in this Horovod; 0 without a patch, or one without a number."""
        try:
            return ctypes.c_int.in_dll(self._library(), "horovod_edl_patch_version").value
        except ValueError:
            return 0

    def _init(self, communicator: Any = None) -> None:
        try:
            self._hvd.init(communicator)
        except ValueError as error:
            # What the patched Horovod raises where the released one aborts.
            self.leave()
            raise _failed(f"the ring could not be formed: {error}") from error

    @contextmanager
    def _given_up_if(self, is_abandoned: Callable[[], bool] | None) -> Iterator[None]:
        """End the forming in the block soon after it is known that it cannot succeed.

        Gloo does not hear of a member that died before it connected.
        """
        if is_abandoned is None:
            yield
            return
        is_done = threading.Event()

        def poll() -> None:
            while not is_done.wait(POLL_SECONDS):
                if is_abandoned():
                    self._give_up_connecting()

        thread = threading.Thread(target=poll, name="forming", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_done.set()
            thread.join()

    def _give_up_connecting(self) -> None:
        """Make a forming in another thread fail soon if it still waits for members to connect.

        Nothing happens where none does, and with a Horovod that is not patched.
        """
        give_up = getattr(self._library(), "horovod_edl_give_up_connecting", None)
        if give_up is not None:
            give_up()

    def _library(self) -> Any:
        """The library that this half of Horovod has loaded."""
        folder = Path(str(self._hvd.__file__)).parent
        return ctypes.CDLL(str(next(folder.glob("mpi_lib*"))))


def patch_warning(patch_version: int) -> str | None:
    """What a Horovod cannot do for this package; None where nothing is missing."""
    if patch_version >= NEEDED_PATCH:
        return None
    has = f"patch {patch_version}" if patch_version else "no patch, or one without a number"
    return (
        f"This Horovod has {has}, and this version of edl_horovod needs patch {NEEDED_PATCH}. "
        "A member that dies or hangs while a ring forms or in a large collective may end every "
        "survivor, a lost one may hold up the others until a time-out, and no ring may form over "
        "hosts whose own names lead to 127.0.0.1. Build Horovod again: "
        "`python docker/horovod/build_wheel.py --install`."
    )


def _rendezvous(place: Place) -> dict[str, str]:
    """Horovod's variables; it asks for http://ADDR:PORT/scope/key, and checks neither of the two.

    So the token of our own rendezvous goes between port and scope; horovodrun's has none.
    """
    address, port = place.rendezvous_address, place.rendezvous_port
    if place.rendezvous_token:
        address, port = f"{address}:{port}/{place.rendezvous_token}", 0
    return {"HOROVOD_GLOO_RENDEZVOUS_ADDR": address, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}


def _failed(message: str) -> CollectiveFailed:
    """The failure, without the places in Gloo's source, which mean nothing to a reader."""
    return CollectiveFailed(_SOURCE_PLACE.sub("", message), unreached=_UNREACHED.findall(message))


def _cause(message: str) -> str:
    """What Horovod said, out of TensorFlow's report of the graph around it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    said = [line for line in lines if "orovod" in line and not line.startswith("File ")]
    # After its first sentence Horovod guesses what may have been.
    cause = (said or lines)[-1].partition(" This was caused by ")[0]
    return _GRAPH_PLACE.sub("", cause)[:300]
