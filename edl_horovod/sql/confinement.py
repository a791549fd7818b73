"""What statements of others may do: all that stays in the database, and nothing beyond it.

A service runs them with its own rights. So no statement may reach files, load code, or change how
the database itself runs. In PostgreSQL and MariaDB the rights of the service's user decide that.
"""

import sqlite3
from typing import Any

__all__ = ["DUCKDB_CONFIG", "MYSQL_ARGUMENTS", "confine_sqlite"]

DUCKDB_CONFIG: dict[str, Any] = {
    "enable_external_access": False,
    "allow_persistent_secrets": False,
    # Without this a name that is no table means a variable of ours.
    "python_enable_replacements": False,
    "lock_configuration": True,
}
"""Settings of DuckDB with which it opens the database's own files alone."""
MYSQL_ARGUMENTS: dict[str, Any] = {"local_infile": False}
"""Arguments of a connection that sends no file of this machine to the server."""

_READING = (
    *("application_id", "collation_list", "compile_options", "data_version", "database_list"),
    *("encoding", "freelist_count", "function_list", "journal_mode", "page_count", "page_size"),
    *("pragma_list", "schema_version", "table_list", "user_version"),
)
"""Pragmas of SQLite that may be read, and not set."""
_OF_A_TABLE = (
    *("foreign_key_check", "foreign_key_list", "index_info", "index_list", "index_xinfo"),
    *("integrity_check", "quick_check", "table_info", "table_list", "table_xinfo"),
)
"""Pragmas of SQLite whose value names a table or an index."""
_OF_A_CONNECTION = (
    *("case_sensitive_like", "defer_foreign_keys", "foreign_keys", "optimize", "query_only"),
)
"""Pragmas of SQLite that change no more than how statements of this connection run."""
_MODULES = ("fts3", "fts4", "fts4aux", "fts5", "fts5vocab", "rtree", "rtree_i32")
"""Virtual tables of SQLite that are in the database."""
_FUNCTIONS = ("edit", "fts3_tokenizer", "load_extension", "readfile", "writefile")
"""Functions of SQLite, or of its shell, that load code or reach files."""


def confine_sqlite(connection: sqlite3.Connection) -> None:
    """Have a connection refuse statements that reach beyond its database."""
    connection.set_authorizer(_authorize)


def _authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """What SQLite asks for each part of a statement before it runs it."""
    match action:
        case sqlite3.SQLITE_ATTACH:
            # VACUUM attaches a database without a name, and VACUUM INTO one with a name.
            is_allowed = first == ""
        case sqlite3.SQLITE_PRAGMA:
            is_allowed = _is_harmless(str(first).lower(), second)
        case sqlite3.SQLITE_FUNCTION:
            is_allowed = str(second).lower() not in _FUNCTIONS
        case sqlite3.SQLITE_CREATE_VTABLE:
            is_allowed = str(second).lower() in _MODULES
        case _:
            is_allowed = True
    return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY


def _is_harmless(pragma: str, value: str | None) -> bool:
    return (
        pragma in _OF_A_TABLE
        or pragma in _OF_A_CONNECTION
        or (pragma in _READING and value is None)
    )
