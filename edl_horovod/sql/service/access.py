"""Who may use the service, from where, and with which databases."""

import hmac
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edl_horovod.errors import ConfigError

__all__ = ["HOST", "PORT", "TOKEN_VARIABLE", "Access", "Listen", "read_databases", "read_token"]

HOST = "127.0.0.1"
PORT = 50051
"""Where clients of SQLFlow look for it."""
TOKEN_VARIABLE = "EDL_SQL_TOKEN"
"""Holds the token where no file does: a command line is no place for it."""
LEAST_TOKEN = 16
"""Characters of a token."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """What a client must know, and may name."""

    token: str = field(repr=False)
    db: str = field(repr=False)
    """The database of clients that name none."""
    databases: tuple[str, ...] = field(default=(), repr=False)
    """Others that a client may name, letter for letter."""

    def is_token(self, given: str) -> bool:
        """Whether a client knows the token; the time that it takes does not tell how much of it."""
        return _is_same(given, self.token)

    def database(self, named: str) -> str | None:
        """The database of a client that names one, or none with an empty text; None refuses it."""
        if not named:
            return self.db
        found = [one for one in (self.db, *self.databases) if _is_same(named, one)]
        return found[0] if found else None


@dataclass(frozen=True, kw_only=True)
class Listen:
    """Where the service listens.

    Raises:
        ConfigError: Tokens and rows would cross a network in the clear, or half of TLS is there.
    """

    host: str = HOST
    port: int = PORT
    """0 takes a free one."""
    certificate: bytes = b""
    """PEM, of the server and what signed it; empty is without TLS."""
    key: bytes = field(default=b"", repr=False)
    is_clear_allowed: bool = False
    """Whether other machines may be served without TLS."""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise ConfigError(
                "TLS needs a certificate and its key.",
                received="--certificate" if self.certificate else "--key",
                hint="Give both, --certificate FILE --key FILE.",
            )
        if not (self.certificate or self.is_clear_allowed or _is_loopback(self.host)):
            raise ConfigError(
                "Other machines would send the token, and get rows, without encryption.",
                received={"--host": self.host},
                hint="Give --certificate FILE --key FILE, or --without-tls where the network keeps"
                " it secret.",
            )
        if not 0 <= self.port <= 65_535:
            raise ConfigError("A port is between 0 and 65535.", received={"--port": self.port})


def read_token(file: Path | None) -> str:
    """The token in a file, or else in the environment.

    Raises:
        ConfigError: There is none, or one that is easily guessed.
        OSError: The file cannot be read.
    """
    text = os.environ.get(TOKEN_VARIABLE, "") if file is None else _read(file)
    token = text.strip()
    if not token:
        raise ConfigError(
            "The service needs a token, which its clients send.",
            received="" if file is None else f"an empty {file}",
            hint=f"Write one to a file and give --token-file FILE, or set {TOKEN_VARIABLE}.",
        )
    if len(token) < LEAST_TOKEN:
        raise ConfigError(
            f"A token has at least {LEAST_TOKEN} characters.",
            received=f"{len(token)} characters",
            hint="Make one by openssl rand -hex 32.",
        )
    return token


def read_databases(file: Path | None) -> tuple[str, ...]:
    """The database URLs in a file, one a line; no file allows none.

    Raises:
        OSError: The file cannot be read.
    """
    lines: Sequence[str] = [] if file is None else _read(file).splitlines()
    return tuple(line.strip() for line in lines if line.strip() and line.lstrip()[0] != "#")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise ConfigError("The file is not text in UTF-8.", received=str(file)) from e


def _is_same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
