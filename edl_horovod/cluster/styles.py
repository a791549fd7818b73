"""How the ranks of a job in a cluster are started, by `kubernetes.style`."""

from dataclasses import dataclass

from edl_horovod.cluster.hosts import Names
from edl_horovod.config.schema import JobConfig

__all__ = ["Style", "style_of"]


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
