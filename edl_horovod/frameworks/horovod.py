"""The only adapter to Horovod: it forms and leaves rings and translates Horovod's errors.

Each framework has its own half of Horovod (`horovod.tensorflow`, `horovod.torch`) and passes it to
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

from edl_horovod.coordinator.messages import RANK_FIELDS, Place
from edl_horovod.coordinator.wire import VANISHED_SECONDS
from edl_horovod.errors import ConfigError
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.world import World

NEEDED_PATCH = 4
"""The version of our patch that this package needs: its `horovod_edl_patch_version`."""
POLL_SECONDS = 0.25

_GRAPH_LOCATION = re.compile(r"\{\{function_node [^}]*\}\} ?")
_SOURCE_LOCATION = re.compile(r"\[[^][]*\.(?:cc|h):\d+\] ")
_UNREACHED = re.compile(
    r"\[([0-9a-fA-F.:]+)\]:\d+: "
    r"(?:Connection timed out|Connection refused|No route to host|Network is unreachable)"
)
"""Gloo's reports of a peer that it could not reach.

A closed connection is not among them: a peer also closes it because of a third member's failure.
"""


class Horovod:
    """Horovod with the bindings of one framework."""

    def __init__(self, hvd: ModuleType, *, op_errors: tuple[type[Exception], ...] = ()) -> None:
        """Use a framework's half of Horovod.

        Args:
            hvd: `horovod.tensorflow` or `horovod.torch`.
            op_errors: The errors that the framework raises if an op inside a graph fails. Only the
                text of such an error distinguishes a failed collective from a failed op of the
                user.
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
        """Form the ring that the coordinator, or horovodrun's driver, has described.

        Args:
            place: This rank's place, as the coordinator or the driver assigned it.
            timeout_seconds: For forming the ring, and for the transfers of each later collective.
            is_abandoned: Returns whether the ring can no longer form. It is called in another
                thread. None if this cannot be known.

        Raises:
            CollectiveFailed: A member did not connect. With an unpatched Horovod the process aborts
                instead.
        """
        self.leave()
        world = World.of(place)
        if world.is_alone:
            return world
        os.environ.update(
            {f"HOROVOD_{name.upper()}": str(getattr(place, name)) for name in RANK_FIELDS},
            HOROVOD_HOSTNAME=place.host,
            HOROVOD_CONTROLLER="gloo",
            HOROVOD_CPU_OPERATIONS="gloo",
            **_rendezvous(place),
            HOROVOD_GLOO_TIMEOUT_SECONDS=str(max(1, round(timeout_seconds))),
            HOROVOD_GLOO_TCP_USER_TIMEOUT_MS=str(round(VANISHED_SECONDS * 1000)),
        )
        # With HOROVOD_ELASTIC=1 a second init would ask Horovod's own driver for its rank. But
        # tracing a collective needs 1: otherwise the traced graph contains the ring's size.
        os.environ["HOROVOD_ELASTIC"] = "0"
        try:
            with self._abort_if(is_abandoned):
                self._init()
        finally:
            os.environ["HOROVOD_ELASTIC"] = "1"
        return world

    def form_inherited(self, communicator: Any = None) -> World:
        """Form the ring that this process' launcher has described, by variables or by MPI.

        Args:
            communicator: An mpi4py communicator; None for the launcher's environment variables.

        Raises:
            CollectiveFailed: A member did not connect.
        """
        self.leave()
        self._init(communicator)
        return World(rank=self._hvd.rank(), size=self._hvd.size(), generation=0)

    def leave(self) -> None:
        """Leave the ring, in any state; without a ring this does nothing."""
        self._hvd.shutdown()

    def has_mpi(self) -> bool:
        """Whether this Horovod was built with MPI."""
        return bool(self._hvd.mpi_built())

    def require_gpu_of_its_own(self, slot: int, num_gpus: int) -> None:
        """Check that NCCL, if this Horovod reduces by it, finds a GPU for each slot of this host.

        It refuses ranks that share one, and a ring would try to form again and again.

        Args:
            slot: This worker's slot.
            num_gpus: The GPUs that this worker sees.

        Raises:
            ConfigError: There are fewer GPUs than slots.
        """
        if num_gpus and slot >= num_gpus and self._hvd.nccl_built():
            raise ConfigError(
                "This Horovod reduces by NCCL, which needs a GPU for each slot of a host.",
                received=f"slot {slot}, counted from 0, and GPUs: {num_gpus}",
                hint="Give each host as many slots as it has GPUs (launch.np, elastic.spares), or"
                " build Horovod without HOROVOD_GPU_OPERATIONS.",
            )

    def listen_to_driver(self, listener: Any) -> None:
        """Register `listener.on_hosts_updated` with horovodrun's driver, for changes of hosts."""
        notification_manager.init()
        notification_manager.register_listener(listener)

    @contextmanager
    def catch_failures(self) -> Iterator[None]:
        """Translate the errors that Horovod and the framework raise for a broken ring.

        Raises:
            CollectiveFailed: A collective in the block failed.
        """
        try:
            yield
        except HorovodInternalError as error:
            raise _failed(str(error)) from error
        except self._op_errors as error:
            # Every such report contains paths of our own files.
            if "orovod" not in str(error).replace("edl_horovod", ""):
                raise
            raise _failed(_cause(str(getattr(error, "message", error)))) from error

    def patch_version(self) -> int:
        """Return the version of our patch in this Horovod; 0 without a patch or a version."""
        try:
            return ctypes.c_int.in_dll(self._library(), "horovod_edl_patch_version").value
        except ValueError:
            return 0

    def _init(self, communicator: Any = None) -> None:
        try:
            self._hvd.init(communicator)
        except ValueError as error:
            # The patched Horovod raises this where the released one aborts the process.
            self.leave()
            raise _failed(f"the ring could not be formed: {error}") from error

    @contextmanager
    def _abort_if(self, is_abandoned: Callable[[], bool] | None) -> Iterator[None]:
        """Abort the forming of a ring in the block soon after `is_abandoned` returns true.

        Gloo itself does not notice that a member died before it connected.
        """
        if is_abandoned is None:
            yield
            return
        is_done = threading.Event()

        def poll() -> None:
            while not is_done.wait(POLL_SECONDS):
                if is_abandoned():
                    # It makes connecting fail in a thread that waits for members. Without our patch
                    # Horovod does not have it.
                    getattr(self._library(), "horovod_edl_give_up_connecting", lambda: None)()

        thread = threading.Thread(target=poll, name="forming", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_done.set()
            thread.join()

    def _library(self) -> Any:
        """The shared library that this half of Horovod has loaded."""
        folder = Path(str(self._hvd.__file__)).parent
        return ctypes.CDLL(str(next(folder.glob("mpi_lib*"))))


def patch_warning(patch_version: int) -> str | None:
    """Return a warning if the patch of the installed Horovod is too old or missing; else None."""
    if patch_version >= NEEDED_PATCH:
        return None
    has = f"patch {patch_version}" if patch_version else "no patch, or one without a number"
    return (
        f"This Horovod has {has}, but this version of edl_horovod needs patch {NEEDED_PATCH}. "
        "If a member dies or hangs while a ring forms or in a large collective, all other members "
        "may be killed; a lost member may block the others until a timeout; and a ring may not "
        "form over hosts whose own names resolve to 127.0.0.1. Rebuild Horovod: `edl"
        " setup-horovod`."
    )


def _rendezvous(place: Place) -> dict[str, str]:
    """Horovod's variables for the rendezvous, which it asks for http://ADDR:PORT/scope/key.

    Horovod does not check the address or the port. So the token of our own rendezvous becomes part
    of the address, and port 0 begins the path; horovodrun's rendezvous has no token.
    """
    address, port = place.rendezvous_address, place.rendezvous_port
    if place.rendezvous_token:
        address, port = f"{address}:{port}/{place.rendezvous_token}", 0
    return {"HOROVOD_GLOO_RENDEZVOUS_ADDR": address, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}


def _failed(message: str) -> CollectiveFailed:
    """Create the error without source locations in Gloo, which do not help the reader."""
    short_message = _SOURCE_LOCATION.sub("", message)
    return CollectiveFailed(short_message, unreached=_UNREACHED.findall(message))


def _cause(message: str) -> str:
    """Extract Horovod's own message from TensorFlow's report about the graph around it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    horovod_lines = [line for line in lines if "orovod" in line and not line.startswith("File ")]
    # After its first sentence Horovod only lists possible causes.
    cause = (horovod_lines or lines)[-1].partition(" This was caused by ")[0]
    return _GRAPH_LOCATION.sub("", cause)[:300]
