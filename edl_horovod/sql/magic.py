"""The cell magic of notebooks: `%load_ext edl_horovod.sql.magic`, then `%%edl db=...`."""

import shlex
from typing import Any

from edl_horovod.errors import ConfigError
from edl_horovod.sql.calling import sql
from edl_horovod.sql.results import Result

__all__ = ["load_ipython_extension"]


class _Magic:
    """Runs a cell's statements; what a cell says of the database holds for those after it."""

    def __init__(self) -> None:
        self._settings: dict[str, Any] = {}

    def __call__(self, line: str, cell: str) -> Result:
        for word in shlex.split(line):
            key, equals, value = word.partition("=")
            if not equals:
                raise ConfigError(
                    "A setting is written key=value.",
                    received=repr(word),
                    cure="Write %%edl db=sqlite:///hr.db and so on.",
                )
            self._settings[key] = value
        return sql(cell, progress=True, **self._settings)


def load_ipython_extension(ipython: Any) -> None:
    """Make `%%edl` known; IPython calls this."""
    ipython.register_magic_function(_Magic(), "cell", "edl")
