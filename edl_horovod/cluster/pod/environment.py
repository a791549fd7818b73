"""The environment variables that `cluster.pods` sets for the programs of a pod."""

from collections.abc import Mapping

from edl_horovod.errors import ConfigError


def require_variables(variables: Mapping[str, str], names: tuple[str, ...]) -> None:
    """Check that the environment of a process has these variables.

    Raises:
        ConfigError: One of them is missing.
    """
    if missing := [name for name in names if name not in variables]:
        raise ConfigError(
            f"The pod's manifest must set {missing[0]!r}.",
            hint="Make it with `edl train launch=kubernetes --dry-run -o yaml`.",
        )
