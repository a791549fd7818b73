"""What the process of a session is told on stdin, and the frames that it writes to stdout."""

import struct
from dataclasses import dataclass, field
from enum import IntEnum

from edl_horovod.errors import (
    ClusterError,
    ConfigError,
    DataError,
    EdlError,
    Interrupted,
    MissingDependency,
    NotEnoughWorkers,
    OutputError,
    TimedOut,
    TrainingError,
    UserCodeError,
)
from edl_horovod.sql.models import ModelNotFound

__all__ = ["HEADER", "CallOrder", "Kind", "Settings", "code_of"]

HEADER = struct.Struct(">BI")
"""Begins a frame: its kind, and the number of bytes that follow."""


class Kind(IntEnum):
    """The kinds of frames."""

    RESPONSE = 0
    """A `Response` of the protocol, serialized."""
    FAILURE = 1
    """The name of a status code of gRPC, a line feed and a text; it ends the call."""
    DONE = 2
    """All statements have been run; it ends the call."""
    STATE = 3
    """Before the end of a call: what the end of the process would lose, as a phrase. Without one
    the process ends."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is the same for all calls, as typed in the command."""

    models: str = ""
    """Folder of the trained models; empty takes the user's own."""
    overrides: tuple[str, ...] = ()
    config_dir: str = ""
    config_name: str = ""


@dataclass(frozen=True, kw_only=True)
class CallOrder:
    """What a call is to do."""

    sql: str
    db: str = field(repr=False)
    """It may hold a password, so it travels through the pipe alone."""
    settings: Settings
    is_exit_wanted: bool = False
    """Whether the client would rather not wait for jobs."""


_CODES: dict[type[EdlError], str] = {
    ModelNotFound: "NOT_FOUND",
    ConfigError: "INVALID_ARGUMENT",
    DataError: "FAILED_PRECONDITION",
    UserCodeError: "FAILED_PRECONDITION",
    OutputError: "FAILED_PRECONDITION",
    MissingDependency: "FAILED_PRECONDITION",
    TrainingError: "FAILED_PRECONDITION",
    NotEnoughWorkers: "RESOURCE_EXHAUSTED",
    ClusterError: "UNAVAILABLE",
    TimedOut: "DEADLINE_EXCEEDED",
    Interrupted: "CANCELLED",
}


def code_of(error: EdlError) -> str:
    """The name of the status code of gRPC that says what kind of error it is."""
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), "INTERNAL")
