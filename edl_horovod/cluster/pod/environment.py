"""What a pod's manifest says to the processes in it, read once into one value."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from edl_horovod.errors import ConfigError

__all__ = ["PodEnvironment"]


@dataclass(frozen=True, kw_only=True)
class PodEnvironment:
    """The variables of `cluster.pods`; empty where this kind of pod has none."""

    address: str
    namespace: str
    job: str
    host: str
    """A worker pod, by the name that host discovery uses."""
    secret_file: Path
    ready_file: Path
    """Exists while the worker of slot 0 is warm."""

    @classmethod
    def of(cls, variables: Mapping[str, str], *needed: str) -> Self:
        """Read the variables of a process, of which this kind of pod must have those `needed`.

        Raises:
            ConfigError: One of them is missing.
        """
        if missing := [name for name in needed if name not in variables]:
            raise ConfigError(
                f"The pod's manifest must set {missing[0]!r}.",
                hint="Make it with `edl train launch=kubernetes --dry-run -o yaml`.",
            )
        return cls(
            address=variables.get("EDL_POD_IP", ""),
            namespace=variables.get("EDL_NAMESPACE", ""),
            job=variables.get("EDL_JOB", ""),
            host=variables.get("EDL_HOST", ""),
            secret_file=Path(variables.get("EDL_SECRET_FILE", "")),
            ready_file=Path(variables.get("EDL_READY_FILE", "")),
        )
