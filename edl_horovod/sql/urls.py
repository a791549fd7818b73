"""Parse database URLs: the engine, its driver, and a label without secrets."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from edl_horovod.errors import ConfigError, DataError, did_you_mean


@dataclass(frozen=True)
class Driver:
    """An engine of databases, and how to connect to it."""

    dialect: str
    """sqlglot's name of the dialect."""
    full_name: str
    """SQLAlchemy's name of the dialect with its driver."""
    module: str
    extra: str
    """The extra of this project that installs the module."""


_SQLITE = Driver("sqlite", "sqlite+pysqlite", "sqlite3", "sql")
_DRIVERS = {
    name: driver
    for driver in (
        _SQLITE,
        Driver("postgres", "postgresql+psycopg", "psycopg", "postgresql"),
        Driver("mysql", "mysql+pymysql", "pymysql", "mysql"),
        Driver("mysql", "mariadb+pymysql", "pymysql", "mysql"),
        Driver("duckdb", "duckdb", "duckdb_engine", "duckdb"),
    )
    for name in (driver.full_name.partition("+")[0], driver.full_name)
}
"""The drivers by the beginning of a URL, with or without the driver's name."""
_EXAMPLES = (
    "sqlite:///hr.db, postgresql://user:password@host/database, mariadb://user:password@host/"
    "database or duckdb:///file.duckdb"
)


@dataclass(frozen=True, kw_only=True)
class DatabaseURL:
    """A parsed database URL; its representation shows no secret."""

    url: sa.URL = field(repr=False)
    label: str
    """The URL without user, password and options."""
    driver: Driver
    secrets: tuple[str, ...] = field(repr=False)
    """Parts of the URL that no message may show."""

    @property
    def dialect(self) -> str:
        """The name of the dialect in sqlglot."""
        return self.driver.dialect

    def without_secrets(self, text: str) -> str:
        """The text with every secret of the URL replaced."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def parse_url(text: str) -> DatabaseURL:
    """Parse a database URL.

    Raises:
        ConfigError: The URL is malformed or names an unsupported engine.
        DataError: The database file does not exist.
    """
    scheme = text.partition("://")[0] if "://" in text else ""
    driver = _DRIVERS.get(scheme.lower())
    if driver is None:
        shown = f"db={scheme}://..." if re.fullmatch(r"[\w+.-]+", scheme) else "a db without ://"
        problem = f"db= must name a supported engine: {', '.join(sorted(_DRIVERS))}."
        hint = f"Write it as {_EXAMPLES}.{did_you_mean(scheme, _DRIVERS)}"
        raise ConfigError(problem, received=shown, hint=hint)
    try:
        url = sa.make_url(text).set(drivername=driver.full_name)
    except (sa.exc.ArgumentError, ValueError):
        # Without its cause, which shows parts of the URL.
        problem = "db= cannot be read as a database URL."
        hint = f"Write it as {_EXAMPLES}; %40 stands for an @ in a password, %3A for a colon."
        raise ConfigError(problem, received=f"db={scheme}://...", hint=hint) from None
    if driver is _SQLITE:
        _require_file(url)
    port = f":{url.port}" if url.port else ""
    label = f"{scheme.lower()}://{url.host or ''}{port}/{url.database or ''}"
    return DatabaseURL(url=url, label=label, driver=driver, secrets=_secrets(url))


def _secrets(url: sa.URL) -> tuple[str, ...]:
    """The password and secret options, the longest first, because one may contain another."""
    options = (
        secret
        for name, value in url.query.items()
        if re.search("pass|secret|token|key", name, re.IGNORECASE)
        for secret in ((value,) if isinstance(value, str) else value)
    )
    secrets = (str(secret) for secret in (url.password, *options) if secret)
    return tuple(sorted(secrets, key=len, reverse=True))


def _require_file(url: sa.URL) -> None:
    if not url.database or url.database == ":memory:" or url.host:
        raise ConfigError(
            "db= names no database file.",
            received=f"db=sqlite://{url.host or ''}",
            hint="Write three slashes before a relative path, sqlite:///hr.db, and four before an"
            " absolute one.",
        )
    if not Path(url.database).is_file():
        problem = f"There is no database file {url.database}."
        hint = "Name a file that exists; a relative path starts in the current folder."
        raise DataError(problem, received={"db": f"sqlite:///{url.database}"}, hint=hint)
