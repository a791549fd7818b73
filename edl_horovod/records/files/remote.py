"""Remote files (S3, Google Cloud Storage, HTTP), listed and read with fsspec.

Each read is one ranged request. Credentials and endpoints come from the usual configuration of each
system, never from our settings.

The file systems raise errors of their own libraries, which can be imported only if their extra is
installed. So an error is classified by its status, its Python base class, or its name.
"""

import contextlib
import enum
import errno
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edl_horovod.errors import DataError, MissingDependency, did_you_mean, how_to_install
from edl_horovod.records.files.input_file import FileState, InputFile

if TYPE_CHECKING:
    from tenacity import RetryCallState, Retrying

log = logging.getLogger(__name__)

NUM_TRIES = 6
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 8.0
CONNECT_SECONDS = 5.0
READ_SECONDS = 15.0
STATE_SECONDS = 60.0
"""How long the state of a file is cached: requesting it costs as much as a small read."""
_VERSION_KEYS = ("ETag", "etag", "md5Hash", "LastModified", "updated", "modified", "created")
"""The keys under which fsspec's file systems report a file's version, the most exact first."""

_LIBRARIES = ("aiobotocore", "aiohttp", "botocore", "gcsfs", "google", "requests", "s3fs")
_CREDENTIAL_WORDS = ("Credential", "ProfileNotFound", "SSO", "RefreshError", "TokenRetrieval")
_BUCKET_WORDS = ("nosuchbucket", "specified bucket does not exist")
_CONNECTION_WORDS = ("Connect", "Disconnected", "Payload", "IncompleteRead", "Streaming")
_BUSY_NUMBERS = (errno.EBUSY, getattr(errno, "EREMOTEIO", errno.EIO))


@dataclass(frozen=True)
class _System:
    protocol: str
    extra: str
    """The extra of edl_horovod that installs its packages."""
    num_tries: int = 1
    """Number of our own tries; 1 if the file system retries by itself."""
    has_folders: bool = True


_S3 = _System("s3", "s3", num_tries=NUM_TRIES)
_GCS = _System("gs", "gcs")
_HTTP = _System("http", "remote", num_tries=NUM_TRIES, has_folders=False)
_SYSTEMS = {"s3": _S3, "s3a": _S3, "gs": _GCS, "gcs": _GCS, "http": _HTTP, "https": _HTTP}
_SYSTEMS |= {"memory": _System("memory", "remote")}


class _FailureKind(enum.Enum):
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


_TRANSIENT = (_FailureKind.TIMEOUT, _FailureKind.UNREACHABLE, _FailureKind.BUSY)


class RemoteFile(InputFile):
    """A file that is read by ranged requests; thread-safe. Opening it sends no request."""

    @functools.cached_property
    def size_bytes(self) -> int:
        """Size of the file.

        Raises:
            DataError: The file does not exist, may not be read, or has an unknown size.
        """
        return state_of(self.path).size_bytes

    def read_at(self, offset: int, *, num_bytes: int) -> bytes:
        """Read bytes with one request; returns fewer than requested only at the end of the file."""
        if not num_bytes:
            return b""
        end = offset + num_bytes
        data: bytes = _request(self.path, "cat_file", self.path, start=offset, end=end)
        if len(data) > num_bytes:
            raise DataError(
                f"{self.path} cannot be read in parts: its server sends the whole file.",
                received=f"{len(data)} bytes instead of {num_bytes}",
                hint="Use a server that supports HTTP ranges, or copy the file to a local disk.",
            )
        return data

    def state(self) -> FileState:
        """Return the state of the file, at most `STATE_SECONDS` old."""
        request_times = _request_times(_system(self.path))
        now = time.monotonic()
        if now - request_times.setdefault(self.path, now) >= STATE_SECONDS:
            request_times[self.path] = now
            _infos(_system(self.path)).pop(self.path, None)
            _request(self.path, "invalidate_cache", self.path)
        return state_of(self.path)

    def close(self) -> None:
        """Do nothing: connections belong to the file system, not to the file."""


def is_remote(path: str) -> bool:
    """Whether a path or pattern has a scheme."""
    return "://" in path


def reconnect() -> None:
    """Discard connections and cached listings, so that new files and credentials are noticed."""
    _file_system.cache_clear()
    _infos.cache_clear()
    _request_times.cache_clear()


def state_of(path: str) -> FileState:
    """Return the size and the version of a file.

    No request is sent if the file was listed since the last `reconnect`.

    Raises:
        DataError: The file does not exist, may not be read, or has an unknown size.
    """
    infos = _infos(_system(path))
    info = infos.get(path)
    if info is None:
        info = infos[path] = _request(path, "info", path)
    if info["size"] is None:
        problem = f"The size of {path} is unknown, so it cannot be read in parts."
        hint = "Use a server that sends Content-Length."
        raise DataError(problem, received={"path": path}, hint=hint)
    versions = (info[key] for key in _VERSION_KEYS if info.get(key))
    return FileState(int(info["size"]), str(next(versions, "")).strip('"'))


def read_if_there(path: str) -> bytes | None:
    """Read a whole file; None if the server refuses it for any reason.

    S3 responds with 403, not 404, to a missing file if the user may not list the bucket.

    Raises:
        DataError: The server cannot be reached, or fails.
    """
    try:
        content: bytes = _request(path, "cat_file", path)
    except DataError as error:
        if error.__cause__ is None or _failure_kind(error.__cause__) in _TRANSIENT:
            raise
        log.debug("%s does not exist or is refused: %s", path, error)
        return None
    return content


def matches(part: str, *, is_selected: Callable[[str], bool], is_recursive: bool) -> Iterator[str]:
    """Yield the files that match a URL of a file, folder or glob, in any order.

    Args:
        part: The URL.
        is_selected: Whether a file of a folder is yielded, given its name.
        is_recursive: Whether a folder stands for the files in its subfolders, too.

    Raises:
        DataError: The folder cannot be listed.
        MissingDependency: The extra of its scheme is not installed.
    """
    if not _system(part).has_folders:
        if part.endswith("/"):
            problem = "A folder cannot be listed over HTTP."
            hint = "List the URLs of all files, separated by commas."
            raise DataError(problem, received={"pattern": part}, hint=hint)
        yield part
        return
    for name, info in _find(part).items():
        if info["type"] != "directory":
            yield _url(part, name)
            continue
        depth = None if is_recursive else 1
        folder = _url(part, name)
        for file in _request(part, "find", folder, maxdepth=depth):
            base = file.rpartition("/")[2]
            if is_selected(base) and not base.startswith("."):
                yield _url(part, file)


def list_folder(part: str) -> tuple[str, list[str]]:
    """Return the nearest existing folder above a remote path, and the names in it.

    Raises:
        DataError: Not even the bucket exists.
    """
    scheme, _, folder = part.rstrip("/").partition("://")
    while "/" in folder:
        folder = folder.rpartition("/")[0]
        url = f"{scheme}://{folder}"
        try:
            names = _request(url, "ls", url, detail=False)
        except DataError as e:
            if "/" in folder and _is_missing(e):
                continue
            raise
        return url, sorted(name.rstrip("/").rpartition("/")[2] for name in names)
    return f"{scheme}://{folder}", []


def _find(part: str) -> Mapping[str, Any]:
    """Return the entries that match a path or glob, by name with their properties."""
    try:
        if any(mark in part for mark in "*?["):
            matches_by_name: dict[str, Any] = _request(part, "glob", part, detail=True)
            return matches_by_name
        url = part.rstrip("/")
        info = _infos(_system(part))[url] = _request(part, "info", url)
        return {info["name"]: info}
    except DataError as error:
        # The caller reports the error with the names that do exist.
        if _is_missing(error):
            return {}
        raise


def _is_missing(error: DataError) -> bool:
    return error.__cause__ is not None and _failure_kind(error.__cause__) is _FailureKind.MISSING


def _url(part: str, name: str) -> str:
    return f"{part.partition('://')[0]}://{name}"


def _system(url: str) -> _System:
    scheme = url.partition("://")[0]
    system = _SYSTEMS.get(scheme)
    if system is None:
        known = ["file", *_SYSTEMS]
        raise DataError(
            f"Data cannot be read from {scheme}://.",
            received={"path": url},
            hint="Use a path, or one of"
            f" {', '.join(f'{name}://' for name in known)}.{did_you_mean(scheme, known)}",
        )
    return system


@functools.cache
def _infos(system: _System) -> dict[str, dict[str, Any]]:
    """The cached properties of single files, by URL; the file system caches listings itself."""
    return {}


@functools.cache
def _request_times(system: _System) -> dict[str, float]:
    """The time of the last request for the properties of single files, by URL."""
    return {}


@functools.cache
def _file_system(system: _System) -> Any:
    # Imported here: fsspec and its file systems are extras that local data does not need.
    import fsspec

    # fsspec caches one instance per thread; ours shares its connections between all threads.
    fs = fsspec.filesystem(system.protocol, skip_instance_cache=True, **_options(system))
    if system is _S3:
        fs.retries = 1  # The retries of s3fs multiply with botocore's, to up to 25 requests.
    if system is _GCS:
        # gcsfs logs a traceback of each failure that it also raises.
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    return fs


def _options(system: _System) -> dict[str, Any]:
    """Return options for one try and finite timeouts; the user's fsspec config has priority."""
    from fsspec.config import conf

    if system is _S3:
        single_try = {"retries": {"total_max_attempts": 1}}
        return {"config_kwargs": {**single_try, **conf.get("s3", {}).get("config_kwargs", {})}}
    if system is _HTTP:
        from aiohttp import ClientTimeout

        timeout = ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
        client_options: dict[str, Any] = {}
        for scheme in ("http", "https"):
            client_options |= conf.get(scheme, {}).get("client_kwargs", {})
        # Compression by the server would change the byte ranges.
        headers = {**client_options.get("headers", {}), "Accept-Encoding": "identity"}
        return {"client_kwargs": {"timeout": timeout, **client_options, "headers": headers}}
    return {}


def _request(url: str, method: str, *arguments: object, **options: object) -> Any:
    """Call a method of the file system, and retry transient failures."""
    system = _system(url)
    with _as_data_errors(url):
        try:
            fs = _file_system(system)
            retrying = _retrying(url, num_tries=system.num_tries)
        except ImportError as e:
            raise MissingDependency(
                f"Reading from {url.partition('://')[0]}:// needs a package that is not installed:"
                f" {e}.",
                received={"path": url},
                hint=f"To install it where the job runs, {how_to_install(system.extra)}",
            ) from e
        return retrying(getattr(fs, method), *arguments, **options)


def _retrying(url: str, *, num_tries: int) -> "Retrying":
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

    def log_retry(state: "RetryCallState") -> None:
        error = state.outcome and state.outcome.exception()
        number, pause = state.attempt_number, state.upcoming_sleep
        text = "%s: try %d of %d failed, the next in %.1f s: %s"
        log.warning(text, url, number, num_tries, pause, error or "")

    return Retrying(
        retry=retry_if_exception(lambda e: _failure_kind(e) in _TRANSIENT),
        stop=stop_after_attempt(num_tries),
        wait=wait_exponential_jitter(
            multiplier=FIRST_WAIT_SECONDS, max=LONGEST_WAIT_SECONDS, jitter=FIRST_WAIT_SECONDS
        ),
        before_sleep=log_retry,
        reraise=True,
    )


def _failure_kind(error: BaseException) -> _FailureKind | None:
    """Classify an error; None if it is a bug of ours or of a library."""
    chain = list(_causes(error))
    if not any(isinstance(e, OSError) or _library(e) in _LIBRARIES for e in chain):
        return None
    names = [type(e).__name__ for e in chain]
    statuses = [status for e in chain for status in _statuses(e)]
    texts = [f"{type(e).__name__} {e}".lower() for e in chain]

    def has(error_class: type[Exception], *words: str) -> bool:
        is_instance = any(isinstance(e, error_class) for e in chain)
        return is_instance or any(word in name for name in names for word in words)

    is_busy = any(isinstance(e, OSError) and e.errno in _BUSY_NUMBERS for e in chain)
    # The first that applies.
    kinds = {
        _FailureKind.CREDENTIALS: any(word in name for name in names for word in _CREDENTIAL_WORDS),
        _FailureKind.FORBIDDEN: has(PermissionError) or bool({401, 403} & set(statuses)),
        _FailureKind.NO_BUCKET: any(word in text for text in texts for word in _BUCKET_WORDS),
        _FailureKind.TIMEOUT: has(TimeoutError, "Timeout"),
        _FailureKind.BUSY: is_busy or any(code == 429 or code >= 500 for code in statuses),
        _FailureKind.UNREACHABLE: has(ConnectionError, *_CONNECTION_WORDS),
        _FailureKind.MISSING: isinstance(error, FileNotFoundError) or 404 in statuses,
    }
    return next((kind for kind, applies in kinds.items() if applies), _FailureKind.OTHER)


@contextlib.contextmanager
def _as_data_errors(url: str) -> Iterator[None]:
    """Convert failures of remote requests to a `DataError` with the original error as cause.

    Raises:
        DataError: A remote request failed.
    """
    try:
        yield
    except Exception as e:  # The libraries may not be installed, so their classes are unknown.
        kind = _failure_kind(e)
        if kind is None:
            raise
        message = str(e).splitlines()[0] if str(e) else type(e).__name__
        received = f"path={url!r}, {type(e).__name__}: {message}"
        raise DataError(kind.value.format(url=url), received=received) from e


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that, and so on."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__


def _library(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def _statuses(error: BaseException) -> Iterator[int]:
    # aiohttp has `status`, and a deprecated `code`; gcsfs has `code`.
    value = getattr(error, "status", None) or getattr(error, "code", None)
    if isinstance(value, int):
        yield value
    # gcsfs reports 403 only in the message.
    if _library(error) == "builtins" and str(error).startswith("Forbidden"):
        yield 403
