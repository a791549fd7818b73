"""Files of other systems (S3, Google Cloud Storage, HTTP), by fsspec: found, and read in ranges.

Each read is one ranged request. Credentials and endpoints come from where each system's own tools
look for them, never from our settings.
"""

import functools
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edl_horovod.errors import DataError, MissingDependency, did_you_mean, how_to_install
from edl_horovod.records.files.input_file import FileState, InputFile
from edl_horovod.records.files.names import without_part
from edl_horovod.records.files.remote_errors import FailureKind, as_data_errors, failure_kind

if TYPE_CHECKING:
    from tenacity import RetryCallState, Retrying

__all__ = [
    "RemoteFile",
    "is_remote",
    "list_folder",
    "matches",
    "read_if_there",
    "reconnect",
    "state_of",
]

log = logging.getLogger(__name__)

NUM_TRIES = 6
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 8.0
CONNECT_SECONDS = 5.0
READ_SECONDS = 15.0
STATE_SECONDS = 60.0
"""What a store says of a file counts for so long: to ask costs as much as a small read."""
_VERSION_KEYS = ("ETag", "etag", "md5Hash", "LastModified", "updated", "modified", "created")
"""What file systems of fsspec call what changes with a file, the most exact first."""
_PASSING = (FailureKind.TIMEOUT, FailureKind.UNREACHABLE, FailureKind.BUSY)


@dataclass(frozen=True)
class _System:
    protocol: str
    extra: str
    """The extra of ours that brings what it needs."""
    num_tries: int = 1
    """Ours; 1 for a file system that tries again by itself."""
    has_folders: bool = True


_S3 = _System("s3", "s3", num_tries=NUM_TRIES)
_GCS = _System("gs", "gcs")
_HTTP = _System("http", "remote", num_tries=NUM_TRIES, has_folders=False)
_SYSTEMS = {
    "s3": _S3,
    "s3a": _S3,
    "gs": _GCS,
    "gcs": _GCS,
    "http": _HTTP,
    "https": _HTTP,
    "memory": _System("memory", "remote"),
}


class RemoteFile(InputFile):
    """A file that is read by ranged requests, from any thread; opening it asks for nothing."""

    @functools.cached_property
    def size_bytes(self) -> int:
        """Size of the file.

        Raises:
            DataError: It is not there, may not be read, or has no known size.
        """
        return state_of(self.path).size_bytes

    def read_at(self, offset: int, *, num_bytes: int) -> bytes:
        """Read bytes by one request; fewer than asked for only where the file ends."""
        if not num_bytes:
            return b""
        data: bytes = _ask(self.path, "cat_file", self.path, start=offset, end=offset + num_bytes)
        if len(data) > num_bytes:
            raise DataError(
                f"{self.path} cannot be read in parts: its server sends the whole file.",
                received=f"{len(data)} bytes where {num_bytes} were asked for",
                cure="Use a server that knows HTTP ranges, or copy the file to a disk.",
            )
        return data

    def state(self) -> FileState:
        """What the store said of the file in the last minute, or says now."""
        asked = _asked(_system(self.path))
        now = time.monotonic()
        if now - asked.setdefault(self.path, now) >= STATE_SECONDS:
            asked[self.path] = now
            _infos(_system(self.path)).pop(self.path, None)
            _ask(self.path, "invalidate_cache", self.path)
        return state_of(self.path)

    def close(self) -> None:
        """Do nothing: a connection belongs to the file system, not to the file."""


def is_remote(path: str) -> bool:
    """Whether a path or pattern has a scheme."""
    return "://" in path


def reconnect() -> None:
    """Forget connections and listings, so that changed files and credentials are seen."""
    _file_system.cache_clear()
    _infos.cache_clear()
    _asked.cache_clear()


def state_of(path: str) -> FileState:
    """The size of a file, and what changes whenever its content does.

    Nothing is asked for where the file was listed since the last `reconnect`.

    Raises:
        DataError: The file is not there, may not be read, or has no known size.
    """
    known = _infos(_system(path))
    info = known.get(path)
    if info is None:
        info = known[path] = _ask(path, "info", path)
    if info["size"] is None:
        raise DataError(
            f"{path} has no known size, so it cannot be read in parts.",
            received={"path": path},
            cure="Serve it from a place that says Content-Length.",
        )
    found = (info[key] for key in _VERSION_KEYS if info.get(key))
    return FileState(int(info["size"]), str(next(found, "")).strip('"'))


def read_if_there(path: str) -> bytes | None:
    """All of a file; None where the server refuses it, whatever it says.

    S3 answers 403, not 404, where something is not there and this user may not list the bucket.

    Raises:
        DataError: The server cannot be reached, or fails.
    """
    try:
        content: bytes = _ask(path, "cat_file", path)
    except DataError as e:
        if e.__cause__ is None or failure_kind(e.__cause__) in _PASSING:
            raise
        log.debug("%s is not there: %s", path, e)
        return None
    return content


def matches(part: str, *, suffixes: tuple[str, ...], is_recursive: bool) -> Iterator[str]:
    """The files that a URL of a file, folder or glob means, in any order; see `expand`.

    Raises:
        DataError: The place cannot be listed.
        MissingDependency: The extra of its scheme is not installed.
    """
    if not _system(part).has_folders:
        if part.endswith("/"):
            raise DataError(
                "A folder cannot be listed over HTTP.",
                received={"pattern": part},
                cure="Name each file, with commas between.",
            )
        yield part
        return
    for name, about in _found(part).items():
        if about["type"] != "directory":
            yield _url(part, name)
            continue
        depth = None if is_recursive else 1
        folder = _url(part, name)
        for file in _ask(part, "find", folder, maxdepth=depth):
            base = file.rpartition("/")[2]
            if without_part(base).lower().endswith(suffixes) and not base.startswith("."):
                yield _url(part, file)


def list_folder(part: str) -> tuple[str, list[str]]:
    """The nearest folder above a remote path that holds anything, and the names in it.

    Raises:
        DataError: There is none, not even a bucket.
    """
    scheme, _, folder = part.rstrip("/").partition("://")
    while "/" in folder:
        folder = folder.rpartition("/")[0]
        url = f"{scheme}://{folder}"
        try:
            names = _ask(url, "ls", url, detail=False)
        except DataError as e:
            if "/" in folder and _is_missing(e):
                continue
            raise
        return url, sorted(name.rstrip("/").rpartition("/")[2] for name in names)
    return f"{scheme}://{folder}", []


def _found(part: str) -> Mapping[str, Any]:
    """What a path or glob names, with what is known of each; empty where nothing is there."""
    try:
        if any(mark in part for mark in "*?["):
            found: dict[str, Any] = _ask(part, "glob", part, detail=True)
            return found
        url = part.rstrip("/")
        about = _infos(_system(part))[url] = _ask(part, "info", url)
        return {about["name"]: about}
    except DataError as e:
        # The caller tells what is there instead.
        if _is_missing(e):
            return {}
        raise


def _is_missing(error: DataError) -> bool:
    return error.__cause__ is not None and failure_kind(error.__cause__) is FailureKind.MISSING


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
            cure="Use a path, or one of"
            f" {', '.join(f'{name}://' for name in known)}.{did_you_mean(scheme, known)}",
        )
    return system


@functools.cache
def _infos(system: _System) -> dict[str, dict[str, Any]]:
    """What was found out about single files, by URL; listings are kept by the file system."""
    return {}


@functools.cache
def _asked(system: _System) -> dict[str, float]:
    """When the store was last asked about single files, by URL."""
    return {}


@functools.cache
def _file_system(system: _System) -> Any:
    # Imported here: fsspec and its file systems are extras, and local data needs none of them.
    import fsspec

    # fsspec keeps one instance for each thread; ours serves all threads, with its connections.
    fs = fsspec.filesystem(system.protocol, skip_instance_cache=True, **_options(system))
    if system is _S3:
        fs.retries = 1  # s3fs's own tries, inside which are botocore's, are up to 25 together.
    if system is _GCS:
        # It logs a traceback of each failure that it raises.
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    return fs


def _options(system: _System) -> dict[str, Any]:
    """What makes each file system try once and not hang; the user's fsspec config comes first."""
    from fsspec.config import conf

    if system is _S3:
        once = {"retries": {"total_max_attempts": 1}}
        return {"config_kwargs": {**once, **conf.get("s3", {}).get("config_kwargs", {})}}
    if system is _HTTP:
        from aiohttp import ClientTimeout

        timeout = ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
        given: dict[str, Any] = {}
        for scheme in ("http", "https"):
            given |= conf.get(scheme, {}).get("client_kwargs", {})
        # A part of a compressed file is not the same part of the file.
        headers = {**given.get("headers", {}), "Accept-Encoding": "identity"}
        return {"client_kwargs": {"timeout": timeout, **given, "headers": headers}}
    return {}


def _ask(url: str, method: str, *arguments: object, **settings: object) -> Any:
    """What a method of the file system answers, tried a few times where the trouble may pass."""
    system = _system(url)
    with as_data_errors(url):
        try:
            fs = _file_system(system)
            retrying = _retrying(url, num_tries=system.num_tries)
        except ImportError as e:
            raise MissingDependency(
                f"Reading from {url.partition('://')[0]}:// needs a package that is not installed:"
                f" {e}.",
                received={"path": url},
                cure=f"To install it where the job runs, {how_to_install(system.extra)}",
            ) from e
        return retrying(getattr(fs, method), *arguments, **settings)


def _retrying(url: str, *, num_tries: int) -> "Retrying":
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

    def log_retry(state: "RetryCallState") -> None:
        error = state.outcome and state.outcome.exception()
        log.warning(
            "%s: try %d of %d failed, the next in %.1f s: %s",
            url,
            state.attempt_number,
            num_tries,
            state.upcoming_sleep,
            error or "",
        )

    return Retrying(
        retry=retry_if_exception(lambda e: failure_kind(e) in _PASSING),
        stop=stop_after_attempt(num_tries),
        wait=wait_exponential_jitter(
            multiplier=FIRST_WAIT_SECONDS, max=LONGEST_WAIT_SECONDS, jitter=FIRST_WAIT_SECONDS
        ),
        before_sleep=log_retry,
        reraise=True,
    )
