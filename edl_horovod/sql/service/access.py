"""Access to the service: its token, its address and the allowed databases."""

import hmac
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edl_horovod.errors import ConfigError

HOST = "127.0.0.1"
PORT = 50051
"""The default port of SQLFlow clients."""
TOKEN_VARIABLE = "EDL_SQL_TOKEN"
"""Environment variable of the token; a command line would show it to other users."""
MIN_TOKEN_LENGTH = 16
"""Minimum number of characters in a token."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """The token that clients send and the databases that they may name."""

    token: str = field(repr=False)
    db: str = field(repr=False)
    """URL of the database of clients that do not name one."""
    databases: tuple[str, ...] = field(default=(), repr=False)
    """Other URLs that a client may name verbatim."""

    def is_token(self, candidate: str) -> bool:
        """Whether a client sent the token, compared in constant time."""
        return _is_equal(candidate, self.token)

    def database(self, url: str) -> str | None:
        """The URL of a client's database; None if it is not allowed.

        Args:
            url: The URL that the client sent, or an empty text for the default.
        """
        if not url:
            return self.db
        matches = [allowed for allowed in (self.db, *self.databases) if _is_equal(url, allowed)]
        return matches[0] if matches else None


@dataclass(frozen=True, kw_only=True)
class ListenAddress:
    """The address and TLS files with which the service listens.

    Raises:
        ConfigError: A network would carry tokens and rows unencrypted, or TLS lacks the certificate
            or the key.
    """

    host: str = HOST
    port: int = PORT
    """0 selects a free port."""
    certificate: bytes = b""
    """Certificate chain of the server in PEM; empty without TLS."""
    key: bytes = field(default=b"", repr=False)
    allows_plaintext: bool = False
    """Whether other machines may connect without TLS."""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise ConfigError(
                "TLS needs a certificate and its key.",
                received="--certificate" if self.certificate else "--key",
                hint="Give both --certificate FILE and --key FILE.",
            )
        if not (self.certificate or self.allows_plaintext or _is_loopback(self.host)):
            raise ConfigError(
                "Other machines would send the token and receive rows without encryption.",
                received={"--host": self.host},
                hint="Give --certificate FILE and --key FILE; or --without-tls if the network"
                " itself is secure.",
            )
        if not 0 <= self.port <= 65_535:
            raise ConfigError("A port must be between 0 and 65535.", received={"--port": self.port})


def read_token(file: Path | None) -> str:
    """Read the token from a file, or from the environment if there is no file.

    Raises:
        ConfigError: The token is missing or too short.
        OSError: The file cannot be read.
    """
    text = os.environ.get(TOKEN_VARIABLE, "") if file is None else _read(file)
    token = text.strip()
    if not token:
        problem = "The service needs a token, which its clients must send."
        hint = f"Write one to a file and give --token-file FILE, or set {TOKEN_VARIABLE}."
        raise ConfigError(problem, received="" if file is None else f"an empty {file}", hint=hint)
    if len(token) < MIN_TOKEN_LENGTH:
        problem = f"The token must have at least {MIN_TOKEN_LENGTH} characters."
        hint = "Create one with: openssl rand -hex 32."
        raise ConfigError(problem, received=f"{len(token)} characters", hint=hint)
    return token


def read_databases(file: Path | None) -> tuple[str, ...]:
    """Read database URLs from a file with one URL a line; empty without a file.

    Raises:
        OSError: The file cannot be read.
    """
    lines: Sequence[str] = [] if file is None else _read(file).splitlines()
    return tuple(line.strip() for line in lines if line.strip() and line.lstrip()[0] != "#")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise ConfigError("The file is not UTF-8 text.", received=str(file)) from e


def _is_equal(candidate: str, secret: str) -> bool:
    return hmac.compare_digest(candidate.encode(), secret.encode())


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
