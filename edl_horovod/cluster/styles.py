"""How the ranks of a job in a cluster are started, by `kubernetes.style`; which pods are hosts."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from edl_horovod.config.schema import JobConfig

__all__ = ["Names", "WorkerPod", "hosts_of", "pod_of", "style_of"]

Names = Literal["uid", "address"]
"""What a host is called: `<pod>.<UID>`, which no later pod has, or what `ssh` can reach."""


@dataclass(frozen=True, slots=True)
class WorkerPod:
    """The little that host discovery keeps of a pod."""

    name: str
    uid: str
    address: str
    """Its IP address; empty where it has none yet."""
    is_usable: bool
    """Ready, which is warm, and not terminating."""
    has_failed: bool = False
    """Ended for good, as by an eviction, and still there."""


def pod_of(manifest: dict[str, Any]) -> WorkerPod:
    """A worker pod as the API server describes it, reduced."""
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
    """Host name to slots, for each pod that can be given ranks; `worker-2` before `worker-10`."""
    usable = sorted((pod for pod in pods if pod.is_usable), key=lambda p: (len(p.name), p.name))
    return {f"{pod.name}.{pod.uid}" if names == "uid" else pod.address: slots for pod in usable}


@dataclass(frozen=True, kw_only=True)
class Style:
    """What the objects of a job must provide for its ranks to be started."""

    has_coordinator: bool = False
    """Whether the workers call our coordinator; else another program starts them over ssh."""
    is_static: bool = False
    """Whether the ring cannot change, so that host discovery is not needed."""
    host_names: Names = "uid"
    """What hosts are called in the hosts file."""


_STYLES = {
    "elastic": Style(has_coordinator=True),
    "horovodrun": Style(host_names="address"),
    "mpirun": Style(is_static=True),
}


def style_of(config: JobConfig) -> Style:
    """The style of a job."""
    return _STYLES[config.kubernetes.style]
