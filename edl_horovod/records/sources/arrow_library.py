"""The check that PyArrow is installed, which the extra `arrow` provides."""

import importlib

from edl_horovod.errors import MissingDependency, how_to_install

__all__ = ["need_pyarrow"]


def need_pyarrow(format_name: str) -> None:
    """Check that the library for a format is installed.

    Raises:
        MissingDependency: PyArrow is not installed.
    """
    try:
        importlib.import_module("pyarrow")
    except ImportError as e:
        raise MissingDependency(
            f"Reading {format_name} files needs a package that is not installed: {e}.",
            received={"format": format_name},
            hint=f"To install it where the job runs, {how_to_install('arrow')}",
        ) from e
