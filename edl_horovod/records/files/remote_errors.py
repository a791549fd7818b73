"""What went wrong with a remote file, told apart by kind, in one clear message for each.

The file systems raise errors of their own libraries, which cannot be imported unless their extra
is installed. So an error is known by its status, by Python's class above it, or by its name.
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
        " GOOGLE_APPLICATION_CREDENTIALS or log in by gcloud; on every host that reads."
    )
    FORBIDDEN = (
        "{url} may not be read with the present credentials (403). Ask for the right to read and"
        " list it, or use other credentials."
    )
    NO_BUCKET = "The bucket of {url} does not exist (404). Check its name, account and endpoint."
    MISSING = "{url} is not there (404). Check its name."
    TIMEOUT = (
        "{url} was not answered in time. Check that this host reaches the server, and how busy"
        " the server is."
    )
    UNREACHABLE = (
        "The server of {url} cannot be reached, or broke the connection. Check the network, the"
        " proxy and the endpoint (AWS_ENDPOINT_URL for s3://)."
    )
    BUSY = "The server of {url} failed or refused for now (5xx or 429). Try again later."
    OTHER = "{url} cannot be read. Check it with another tool of the same system."


_LIBRARIES = ("aiobotocore", "aiohttp", "botocore", "gcsfs", "google", "requests", "s3fs")
_CREDENTIAL_WORDS = ("Credential", "ProfileNotFound", "SSO", "RefreshError", "TokenRetrieval")
_BUCKET_WORDS = ("nosuchbucket", "specified bucket does not exist")
_CONNECTION_WORDS = ("Connect", "Disconnected", "Payload", "IncompleteRead", "Streaming")
_BUSY_NUMBERS = (errno.EBUSY, getattr(errno, "EREMOTEIO", errno.EIO))


def failure_kind(error: BaseException) -> FailureKind | None:
    """What kind of failure an error is; None for a bug, ours or a library's."""
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
    """Turn failures of remote requests into errors that a user can read.

    Raises:
        DataError: With the library's error as its cause.
    """
    try:
        yield
    except Exception as e:  # At the border to libraries that may not be there to be named.
        kind = failure_kind(e)
        if kind is None:
            raise
        said = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise DataError(
            kind.value.format(url=url), received=f"path={url!r}, {type(e).__name__}: {said}"
        ) from e


def _chain(error: BaseException) -> Iterator[BaseException]:
    here: BaseException | None = error
    while here is not None:
        yield here
        here = here.__cause__


def _library(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def _status(error: BaseException) -> Iterator[int]:
    # aiohttp says `status`, and warns of its `code`; gcsfs says `code`.
    value = getattr(error, "status", None) or getattr(error, "code", None)
    if isinstance(value, int):
        yield value
    # gcsfs says 403 in words only.
    if _library(error) == "builtins" and str(error).startswith("Forbidden"):
        yield 403
