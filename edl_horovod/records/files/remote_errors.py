"""Classification of errors of remote files, with one message for each kind.

The file systems raise errors of their own libraries, which can be imported only if their extra is
installed. So an error is classified by its status, its Python base class, or its name.
"""

import contextlib
import enum
import errno
from collections.abc import Iterator

from edl_horovod.errors import DataError

__all__ = ["FailureKind", "as_data_errors", "failure_kind"]


class FailureKind(enum.Enum):
    """Kinds of failure of a remote request; each value is the message about a `{url}`."""

    CREDENTIALS = (
        "{url} cannot be read: no usable credentials were found. For s3:// set AWS_PROFILE, or"
        " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for gs:// set"
        " GOOGLE_APPLICATION_CREDENTIALS or log in with gcloud; on every host that reads."
    )
    FORBIDDEN = (
        "{url} may not be read with the current credentials (403). Request permission to read and"
        " list it, or use other credentials."
    )
    NO_BUCKET = "The bucket of {url} does not exist (404). Check its name, account and endpoint."
    MISSING = "{url} does not exist (404). Check its name."
    TIMEOUT = (
        "The server did not respond in time for {url}. Check that this host can reach the server,"
        " and whether the server is overloaded."
    )
    UNREACHABLE = (
        "The server of {url} cannot be reached, or broke the connection. Check the network, the"
        " proxy and the endpoint (AWS_ENDPOINT_URL for s3://)."
    )
    BUSY = "The server of {url} is temporarily unavailable (5xx or 429). Try again later."
    OTHER = "{url} cannot be read. Try to read it with another tool for this storage."


_LIBRARIES = ("aiobotocore", "aiohttp", "botocore", "gcsfs", "google", "requests", "s3fs")
_CREDENTIAL_WORDS = ("Credential", "ProfileNotFound", "SSO", "RefreshError", "TokenRetrieval")
_BUCKET_WORDS = ("nosuchbucket", "specified bucket does not exist")
_CONNECTION_WORDS = ("Connect", "Disconnected", "Payload", "IncompleteRead", "Streaming")
_BUSY_NUMBERS = (errno.EBUSY, getattr(errno, "EREMOTEIO", errno.EIO))


def failure_kind(error: BaseException) -> FailureKind | None:
    """Classify an error; None if it is a bug of ours or of a library."""
    chain = list(_chain(error))
    if not any(isinstance(e, OSError) or _library(e) in _LIBRARIES for e in chain):
        return None
    names = [type(e).__name__ for e in chain]
    statuses = [status for e in chain for status in _status(e)]
    if any(word in name for name in names for word in _CREDENTIAL_WORDS):
        return FailureKind.CREDENTIALS
    if any(isinstance(e, PermissionError) for e in chain) or {401, 403} & set(statuses):
        return FailureKind.FORBIDDEN
    if any(word in f"{type(e).__name__} {e}".lower() for e in chain for word in _BUCKET_WORDS):
        return FailureKind.NO_BUCKET
    if any(isinstance(e, TimeoutError) or "Timeout" in type(e).__name__ for e in chain):
        return FailureKind.TIMEOUT
    if any(isinstance(e, OSError) and e.errno in _BUSY_NUMBERS for e in chain):
        return FailureKind.BUSY
    if any(status == 429 or status >= 500 for status in statuses):
        return FailureKind.BUSY
    if any(isinstance(e, ConnectionError) for e in chain) or any(
        word in name for name in names for word in _CONNECTION_WORDS
    ):
        return FailureKind.UNREACHABLE
    if isinstance(error, FileNotFoundError) or 404 in statuses:
        return FailureKind.MISSING
    return FailureKind.OTHER


@contextlib.contextmanager
def as_data_errors(url: str) -> Iterator[None]:
    """Convert failures of remote requests to a `DataError` with the original error as cause.

    Raises:
        DataError: A remote request failed.
    """
    try:
        yield
    except Exception as e:  # The libraries may not be installed, so their classes are unknown.
        kind = failure_kind(e)
        if kind is None:
            raise
        message = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise DataError(
            kind.value.format(url=url), received=f"path={url!r}, {type(e).__name__}: {message}"
        ) from e


def _chain(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__


def _library(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def _status(error: BaseException) -> Iterator[int]:
    # aiohttp has `status`, and a deprecated `code`; gcsfs has `code`.
    value = getattr(error, "status", None) or getattr(error, "code", None)
    if isinstance(value, int):
        yield value
    # gcsfs reports 403 only in the message.
    if _library(error) == "builtins" and str(error).startswith("Forbidden"):
        yield 403
