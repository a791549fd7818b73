"""Statements in SQL that train models on tables, predict into them, and say what was trained.

The package can be called: `edl_horovod.sql("SELECT ...", db="sqlite:///hr.db")`.
"""

import sys
from types import ModuleType
from typing import Any


class _Sql(ModuleType):
    """The package, which has the name of the function that users call."""

    def __call__(self, text: str, **settings: Any) -> Any:
        """See `calling.sql`."""
        from edl_horovod.sql.calling import sql

        return sql(text, **settings)


sys.modules[__name__].__class__ = _Sql
