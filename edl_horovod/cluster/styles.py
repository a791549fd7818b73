"""The styles (`kubernetes.style`) of starting ranks in a cluster, and which pods are hosts."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from edl_horovod.config.schema import JobConfig

__all__ = ["Names", "WorkerPod", "hosts_of", "pod_of", "style_of"]

Names = Literal["uid", "address"]
"""The form of host names: `<pod>.<UID>`, which is unique, or an address for `ssh`."""


@dataclass(frozen=True, slots=True)
class WorkerPod:
    """The facts about a worker pod that host discovery uses."""

    name: str
    uid: str
    address: str
    """Its IP address; empty if it does not have one yet."""
    is_usable: bool
    """Whether it is ready, which means warm, and not terminating."""
    has_failed: bool = False
    """Whether it has failed for good, for instance by an eviction, and still exists."""


def pod_of(manifest: dict[str, Any]) -> WorkerPod:
    """Extract the facts from a pod's manifest."""
    meta, status = manifest["metadata"], manifest.get("status") or {}
    is_ready = any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )
    address = status.get("podIP") or ""
    is_deleted = "deletionTimestamp" in meta
    is_staying = not is_deleted and status.get("phase") == "Running"
    return WorkerPod(
        meta["name"],
        meta["uid"],
        address,
        is_usable=is_ready and is_staying and bool(address),
        has_failed=not is_deleted and status.get("phase") == "Failed",
    )


def hosts_of(pods: Iterable[WorkerPod], slots: int, *, names: Names = "uid") -> dict[str, int]:
    """Slots by host name for the pods that can have ranks; `worker-2` before `worker-10`."""
    usable = sorted((pod for pod in pods if pod.is_usable), key=lambda p: (len(p.name), p.name))
    return {f"{pod.name}.{pod.uid}" if names == "uid" else pod.address: slots for pod in usable}


@dataclass(frozen=True, kw_only=True)
class Style:
    """A style: the facts about starting ranks on which a job's objects depend."""

    has_coordinator: bool = False
    """Whether there is a coordinator; if not, another program starts the ranks over ssh."""
    is_static: bool = False
    """Whether the ring cannot change, so that host discovery is not needed."""
    host_names: Names = "uid"
    """The form of host names in the hosts file."""


_STYLES = {
    "elastic": Style(has_coordinator=True),
    "horovodrun": Style(host_names="address"),
    "mpirun": Style(is_static=True),
}


def style_of(config: JobConfig) -> Style:
    """The style of a job."""
    return _STYLES[config.kubernetes.style]
