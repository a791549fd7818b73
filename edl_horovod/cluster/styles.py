"""The styles (`kubernetes.style`) of starting ranks in a cluster."""

from dataclasses import dataclass
from typing import Literal

from edl_horovod.config.schema import JobConfig

Names = Literal["uid", "address"]
"""The form of host names: `<pod>.<UID>`, which is unique, or an address for `ssh`."""


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
