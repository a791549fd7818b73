"""Confine statements of other users to the database.

A service runs them with its own privileges. So no statement may access files, load code, or change
the configuration of the database engine. In PostgreSQL and MariaDB the privileges of the service's
database user decide this.
"""

import sqlite3
from typing import Any

DUCKDB_CONFIG: dict[str, Any] = {
    "enable_external_access": False,
    "allow_persistent_secrets": False,
    # Otherwise DuckDB resolves unknown table names to Python variables of this process.
    "python_enable_replacements": False,
    "lock_configuration": True,
}
"""Settings with which DuckDB opens only the files of the database."""
MYSQL_ARGUMENTS: dict[str, Any] = {"local_infile": False}
"""Arguments of a connection that cannot send local files to the server."""

_READ_ONLY_PRAGMAS = (
    *("application_id", "collation_list", "compile_options", "data_version", "database_list"),
    *("encoding", "freelist_count", "function_list", "journal_mode", "page_count", "page_size"),
    *("pragma_list", "schema_version", "table_list", "user_version"),
)
"""Pragmas that may be read but not set."""
_TABLE_PRAGMAS = (
    *("foreign_key_check", "foreign_key_list", "index_info", "index_list", "index_xinfo"),
    *("integrity_check", "quick_check", "table_info", "table_list", "table_xinfo"),
)
"""Pragmas whose value names a table or an index."""
_CONNECTION_PRAGMAS = (
    *("case_sensitive_like", "defer_foreign_keys", "foreign_keys", "optimize", "query_only"),
)
"""Pragmas that affect only this connection."""
_ALLOWED_TABLE_MODULES = ("fts3", "fts4", "fts4aux", "fts5", "fts5vocab", "rtree", "rtree_i32")
"""Modules of virtual tables that store their data in the database."""
_REFUSED_FUNCTIONS = ("edit", "fts3_tokenizer", "load_extension", "readfile", "writefile")
"""Functions of SQLite or its shell that load code or access files."""


def confine_sqlite(connection: sqlite3.Connection) -> None:
    """Make a connection refuse statements that access anything but its database."""
    connection.set_authorizer(_authorize)


def _authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """The callback by which SQLite asks whether it may run a part of a statement."""
    match action:
        case sqlite3.SQLITE_ATTACH:
            # VACUUM attaches a database without a name, and VACUUM INTO one with a name.
            is_allowed = first == ""
        case sqlite3.SQLITE_PRAGMA:
            pragma = str(first).lower()
            is_read = pragma in _READ_ONLY_PRAGMAS and second is None
            is_allowed = is_read or pragma in (*_TABLE_PRAGMAS, *_CONNECTION_PRAGMAS)
        case sqlite3.SQLITE_FUNCTION:
            is_allowed = str(second).lower() not in _REFUSED_FUNCTIONS
        case sqlite3.SQLITE_CREATE_VTABLE:
            is_allowed = str(second).lower() in _ALLOWED_TABLE_MODULES
        case _:
            is_allowed = True
    return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY
