"""Statements in SQL that train models on tables, predict into them, and list trained models.

The package can be called: `edl_horovod.sql("SELECT ...", db="sqlite:///hr.db")`.
"""

import sys
from types import ModuleType
from typing import Any


class _Sql(ModuleType):
    """The type of the package, which can be called like the function of the same name."""

    def __call__(self, text: str, **settings: Any) -> Any:
        """Run statements; `api.sql` describes the arguments."""
        from edl_horovod.sql.api import sql

        return sql(text, **settings)


sys.modules[__name__].__class__ = _Sql
