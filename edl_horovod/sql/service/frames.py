"""The protocol between the service and the process of a session.

The process reads a `CallRequest` as a line of JSON from stdin, and writes frames to stdout.
"""

import struct
from dataclasses import dataclass, field
from enum import IntEnum

from edl_horovod import errors
from edl_horovod.sql.models import ModelNotFound

HEADER = struct.Struct(">BI")
"""The header of a frame: its kind and the size of its content in bytes."""


class FrameKind(IntEnum):
    """The kinds of frames."""

    RESPONSE = 0
    """A `Response` of the protocol, serialized."""
    FAILURE = 1
    """The name of a gRPC status code, a line feed and a message; it ends the call."""
    DONE = 2
    """All statements have succeeded; it ends the call."""
    STATE = 3
    """Sent before the end of a call: what the end of the process would lose, as a phrase. If it is
    empty the process ends."""


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """The command's settings for the statements of all calls."""

    models: str = ""
    """Folder of the trained models; empty for the default."""
    overrides: tuple[str, ...] = ()
    config_dir: str = ""
    config_name: str = ""


@dataclass(frozen=True, kw_only=True)
class CallRequest:
    """The statements of a call and their settings."""

    sql: str
    db: str = field(repr=False)
    """It may contain a password, so it is only sent through the pipe."""
    settings: ServiceSettings
    exit_on_submit: bool = False
    """Whether the client asked not to wait for jobs, which is not supported."""


_CODES: dict[str, tuple[type[errors.EdlError], ...]] = {
    "NOT_FOUND": (ModelNotFound,),  # Also a ConfigError.
    "INVALID_ARGUMENT": (errors.ConfigError,),
    "FAILED_PRECONDITION": (
        *(errors.DataError, errors.UserCodeError, errors.OutputError),
        *(errors.MissingDependency, errors.TrainingError),
    ),
    "RESOURCE_EXHAUSTED": (errors.NotEnoughWorkers,),
    "UNAVAILABLE": (errors.ClusterError,),
    "DEADLINE_EXCEEDED": (errors.TimedOut,),
    "CANCELLED": (errors.Interrupted,),
}


def status_code(error: errors.EdlError) -> str:
    """The name of the gRPC status code for an error."""
    return next((code for code, kinds in _CODES.items() if isinstance(error, kinds)), "INTERNAL")
