"""The cell magic of notebooks: `%load_ext edl_horovod.sql.magic`, then `%%edl db=...`."""

import atexit
import shlex
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from edl_horovod.errors import ConfigError, EdlError
from edl_horovod.sql.api import open_program, run_program, settings_of
from edl_horovod.sql.session import Session
from edl_horovod.sql.statements import Result


class _Magic:
    """Runs the statements of cells; settings of a cell also apply to later cells.

    Cells with the same database share a session, with its transaction and temporary tables.
    """

    def __init__(self) -> None:
        self._keywords: dict[str, Any] = {}
        self._session: Session | None = None
        self._stack = ExitStack()

    def __call__(self, line: str, cell: str) -> Result:
        try:
            self._keywords |= _keywords_of(line)
            settings = settings_of(self._keywords)
            if self._session is None or self._session.context.settings.db != settings.db:
                self.close()
                self._session = self._stack.enter_context(open_program(settings, progress=True))
            self._session.context = replace(self._session.context, settings=settings)
            return run_program(self._session, cell)
        except EdlError as error:
            message = f"error: {error}"
            # IPython shows what this returns instead of a traceback.
            error._render_traceback_ = lambda: [message]  # type: ignore[attr-defined]
            raise

    def close(self) -> None:
        """End the session, if there is one."""
        self._session = None
        self._stack.close()


def _keywords_of(line: str) -> dict[str, str]:
    """The settings after `%%edl`.

    Raises:
        ConfigError: A word is not of the form key=value.
    """
    keywords = {}
    for word in shlex.split(line):
        key, equals, value = word.partition("=")
        if not equals:
            hint = "Write for example %%edl db=sqlite:///hr.db."
            raise ConfigError("A setting is written key=value.", received=repr(word), hint=hint)
        keywords[key] = value
    return keywords


def load_ipython_extension(ipython: Any) -> None:
    """Register the magic `%%edl`; IPython calls this."""
    magic = _Magic()
    atexit.register(magic.close)
    ipython.register_magic_function(magic, "cell", "edl")
