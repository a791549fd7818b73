"""What a worker's environment says, read once into one value."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from edl_horovod.coordinator.messages import Place
from edl_horovod.ring.membership.horovodrun import NUMBERS

__all__ = ["WorkerEnvironment"]

GLOO_SECONDS = 30.0
"""Gloo's own time-out; `horovodrun --gloo-timeout-seconds` sets another."""


@dataclass(frozen=True, kw_only=True)
class WorkerEnvironment:
    """The variables of our launchers, of horovodrun and of mpirun."""

    host: str
    """By the name that host discovery uses; empty without a launcher that names it."""
    slot: str
    """Of the host; empty without a launcher that deals slots."""
    coordinator: str
    """`HOST:PORT`; empty for a job without one."""
    secret_file: Path | None
    is_static: bool
    """Whether mpirun's ranks are the one ring."""
    ready_file: Path | None
    """Is there while this worker is warm: a pod's readiness."""
    driver_place: Place | None
    """This rank's first place, as horovodrun gave it; its rendezvous is the elastic driver."""
    driver_timeout_seconds: float
    """Gloo's, as horovodrun sets it."""
    launched_host: str
    """The host by horovodrun's name; empty without horovodrun."""
    launched_slot: str
    """The local rank that horovodrun or mpirun gave; empty without either."""

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Self:
        """Read the variables of a process."""
        get = variables.get
        return cls(
            host=get("EDL_HOST", ""),
            slot=get("EDL_SLOT", ""),
            coordinator=get("EDL_COORDINATOR", ""),
            secret_file=_path(get("EDL_SECRET_FILE")),
            is_static=get("EDL_MEMBERSHIP") == "static",
            ready_file=_path(get("EDL_READY_FILE")),
            driver_place=_driver_place(variables),
            driver_timeout_seconds=float(get("HOROVOD_GLOO_TIMEOUT_SECONDS", GLOO_SECONDS)),
            launched_host=get("HOROVOD_HOSTNAME", ""),
            launched_slot=get("HOROVOD_LOCAL_RANK", ""),
        )


def _path(name: str | None) -> Path | None:
    return Path(name) if name else None


def _driver_place(variables: Mapping[str, str]) -> Place | None:
    """The place in horovodrun's variables; None where it has not launched this process."""
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in variables:
        return None
    numbers: dict[str, Any] = {name: int(variables[f"HOROVOD_{name.upper()}"]) for name in NUMBERS}
    host = variables["HOROVOD_HOSTNAME"]
    return Place(
        worker=f"{host}:{numbers['local_rank']}",
        generation=0,
        step=0,
        host=host,
        rendezvous_address=variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"],
        rendezvous_port=int(variables["HOROVOD_GLOO_RENDEZVOUS_PORT"]),
        **numbers,
    )
