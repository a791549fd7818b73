"""The environment variables of a pod, read into one value."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from edl_horovod.errors import ConfigError

__all__ = ["PodEnvironment"]


@dataclass(frozen=True, kw_only=True)
class PodEnvironment:
    """The variables that `cluster.pods` sets; empty if this kind of pod lacks one."""

    address: str
    namespace: str
    job: str
    host: str
    """The name of a worker pod in host discovery."""
    secret_file: Path
    ready_file: Path
    """A file that exists while the worker of slot 0 is warm."""

    @classmethod
    def of(cls, variables: Mapping[str, str], *needed: str) -> Self:
        """Read the variables of a process; those in `needed` must be set.

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
