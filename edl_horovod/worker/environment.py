"""The environment of a worker: variables of its launcher, and the container it may run in."""

import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from edl_horovod.coordinator.messages import RANK_FIELDS, Place
from edl_horovod.job.identity import WorkerIdentity

GLOO_SECONDS = 30.0
"""Gloo's own time-out; `horovodrun --gloo-timeout-seconds` sets another."""


@dataclass(frozen=True, kw_only=True)
class WorkerEnvironment:
    """The variables of our launchers, of horovodrun and of mpirun."""

    identity: WorkerIdentity
    coordinator_port: int = 0
    """0 for a job without a coordinator."""
    secret_file: Path | None = None
    token_file: Path | None = None
    """The token of a party of a federated training, in place of a secret."""
    is_static: bool = False
    """Whether the ranks that mpirun started are the only ring."""
    ready_file: Path | None = None
    """A file that exists while this worker is warm, for a pod's readiness probe."""
    driver_place: Place | None = None
    """This rank's first place, from horovodrun; its rendezvous is the elastic driver."""
    driver_timeout_seconds: float = GLOO_SECONDS

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Self:
        """Read the variables of a process."""
        get = variables.get
        host, _, port = get("EDL_COORDINATOR", "").rpartition(":")
        slot = get("EDL_SLOT") or get("HOROVOD_LOCAL_RANK") or get("OMPI_COMM_WORLD_LOCAL_RANK")
        identity = WorkerIdentity(
            host=get("EDL_HOST") or get("HOROVOD_HOSTNAME") or socket.gethostname(),
            slot=int(slot or 0),
            coordinator_host=host,
            training=get("EDL_FEDERATED_TRAINING", ""),
        )
        return cls(
            identity=identity,
            coordinator_port=int(port or 0),
            secret_file=_path(get("EDL_SECRET_FILE")),
            token_file=_path(get("EDL_PARTY_TOKEN")),
            is_static=get("EDL_MEMBERSHIP") == "static",
            ready_file=_path(get("EDL_READY_FILE")),
            driver_place=_driver_place(variables),
            driver_timeout_seconds=float(get("HOROVOD_GLOO_TIMEOUT_SECONDS", GLOO_SECONDS)),
        )

    @property
    def membership(self) -> str:
        """Who assigns the ranks: `static`, `coordinator`, `horovodrun`, or empty for none."""
        if self.is_static:
            return "static"
        if self.coordinator_port:
            return "coordinator"
        return "horovodrun" if self.driver_place is not None else ""

    @property
    def has_launcher(self) -> bool:
        """Whether one of our launchers has checked the job; plain horovodrun checks nothing."""
        return self.membership in ("static", "coordinator")


def _path(name: str | None) -> Path | None:
    return Path(name) if name else None


def _driver_place(variables: Mapping[str, str]) -> Place | None:
    """Read the place in horovodrun's variables; None if it has not launched this process."""
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in variables:
        return None
    ranks: dict[str, Any] = {n: int(variables[f"HOROVOD_{n.upper()}"]) for n in RANK_FIELDS}
    host = variables["HOROVOD_HOSTNAME"]
    return Place(
        worker=f"{host}:{ranks['local_rank']}",
        generation=0,
        step=0,
        host=host,
        rendezvous_address=variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"],
        rendezvous_port=int(variables["HOROVOD_GLOO_RENDEZVOUS_PORT"]),
        **ranks,
    )


def begin_container(ready_file: Path | None) -> None:
    """Handle SIGTERM as process 1, and remove the ready file of a killed process.

    Args:
        ready_file: The file that a pod's readiness probe looks for; None outside of pods.
    """
    if os.getpid() == 1:
        # The kernel ignores SIGTERM for process 1 unless it has a handler.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)


@contextmanager
def shown_as_ready(ready_file: Path | None) -> Iterator[None]:
    """Show a pod as ready within the block.

    Args:
        ready_file: The file that a pod's readiness probe looks for; None outside of pods.
    """
    if ready_file is not None:
        ready_file.parent.mkdir(parents=True, exist_ok=True)
        ready_file.touch()
    try:
        yield
    finally:
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
