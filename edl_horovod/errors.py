"""The exception tree: one class for each exit code, so a script can tell failures apart.

A message says what is wrong, where, what was received and what to do next.
"""

import difflib
import errno
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Self

__all__ = [
    "ClusterError",
    "ClusterForbidden",
    "ClusterUnreachable",
    "ConfigError",
    "CredentialsRefused",
    "DataError",
    "EdlError",
    "ImageError",
    "ManifestRefused",
    "MissingDependency",
    "NoCluster",
    "NoMPIJobs",
    "ObjectConflict",
    "ObjectNotFound",
    "QuotaExceeded",
    "Interrupted",
    "JobFailed",
    "NotEnoughWorkers",
    "OutputError",
    "ProofFailed",
    "RegistryError",
    "TimedOut",
    "TrainingError",
    "UserCodeError",
    "hint_of",
    "did_you_mean",
    "how_to_install",
    "kind_of",
    "meaning_of",
    "of_kind",
]


class EdlError(Exception):
    """Base of every error that a user is meant to read. Never raised itself.

    Args:
        what: What is wrong and where, in sentences.
        received: The settings at fault with their values, or a phrase where no setting is.
        hint: What to do about it, in sentences.
    """

    exit_code = 1

    def __init__(
        self, what: str, *, received: Mapping[str, object] | str = "", hint: str = ""
    ) -> None:
        self.what = what.strip()
        self.received = received
        self.hint = hint.strip(" ")
        if isinstance(received, Mapping):
            received = _settings(received)
        received_text = f"Received: {received.removesuffix('.')}." if received else ""
        # A hint may begin a line of its own.
        parts = filter(None, (self.what, received_text, self.hint))
        super().__init__(" ".join(parts).replace(" \n", "\n").strip())

    def with_more_hint(self, more: str) -> Self:
        """The same error with more sentences about what to do; they bring their own space."""
        return type(self)(self.what, received=self.received, hint=f"{self.hint}{more}")

    def with_received(self, more: Mapping[str, object]) -> Self:
        """The same error with more settings at fault."""
        if isinstance(self.received, Mapping):
            return type(self)(self.what, received={**self.received, **more}, hint=self.hint)
        received = f"{self.received.removesuffix('.')}; " if self.received else ""
        return type(self)(self.what, received=f"{received}{_settings(more)}", hint=self.hint)

    def reworded(self, change: Callable[[str], str]) -> Self:
        """The same error with all of its texts changed, and the values that show such a text."""
        received = self.received
        if isinstance(received, str):
            received = change(received)
        else:
            received = {
                key: value if change(_shown(value)) == _shown(value) else change(str(value))
                for key, value in received.items()
            }
        return type(self)(change(self.what), received=received, hint=change(self.hint))


class JobFailed(EdlError):
    """The job ended without a result, for a reason that none of the classes below names."""

    exit_code = 1


class ConfigError(EdlError):
    """A setting is unknown, missing, malformed or contradicts another."""

    exit_code = 2


class UserCodeError(EdlError):
    """The user's model file cannot be loaded, or what it returned cannot be used."""

    exit_code = 3


class DataError(EdlError):
    """Input data is missing, damaged or does not fit the model."""

    exit_code = 4


class TrainingError(EdlError):
    """Training itself went wrong: a loss or gradients that are not finite."""

    exit_code = 5


class NotEnoughWorkers(EdlError):
    """The ring stayed below elastic.min_np for longer than elastic.wait_seconds."""

    exit_code = 6


class OutputError(EdlError):
    """The output cannot be written, or holds something that must not be overwritten."""

    exit_code = 7


class MissingDependency(EdlError):
    """Something that the request needs is not installed or not built in on this machine."""

    exit_code = 8


class ProofFailed(EdlError):
    """A job's ledger does not show that each record was applied exactly once."""

    exit_code = 9


class ClusterError(EdlError):
    """The cluster refused a request or failed at it, for a reason that no code below names."""

    exit_code = 10


class NoCluster(ClusterError):
    """No cluster is configured: no usable kubeconfig or context, and this is no pod."""

    exit_code = 11


class ClusterUnreachable(ClusterError):
    """The cluster's API server cannot be reached, is too busy, or did not answer in time."""

    exit_code = 12


class CredentialsRefused(ClusterError):
    """The cluster does not accept the credentials (401)."""

    exit_code = 13


class ClusterForbidden(ClusterError):
    """The credentials may not do this in the cluster (403)."""

    exit_code = 14


class ObjectNotFound(ClusterError):
    """The cluster has no such job, pod or other object (404)."""

    exit_code = 15


class ObjectConflict(ClusterError):
    """An object of that name exists, or it was changed or replaced in between (409)."""

    exit_code = 16


class QuotaExceeded(ClusterError):
    """A quota of the namespace refuses what was asked for."""

    exit_code = 17


class ManifestRefused(ClusterError):
    """The API server, or a policy in it, finds a manifest not valid."""

    exit_code = 18


class NoMPIJobs(ClusterError):
    """The cluster knows no MPIJobs: mpi-operator is not installed there."""

    exit_code = 19


class TimedOut(EdlError):
    """What was waited for did not happen in the time that was given."""

    exit_code = 20


class ImageError(EdlError):
    """An image cannot be built."""

    exit_code = 30


class RegistryError(EdlError):
    """An image's registry does not answer, or refuses to take or to give it."""

    exit_code = 31


class Interrupted(EdlError):
    """The user ended the job (Ctrl-C or SIGTERM to the launcher)."""

    exit_code = 130


def _settings(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={_shown(value)}" for key, value in values.items())


def _shown(value: object) -> str:
    return repr(os.fspath(value)) if isinstance(value, str | os.PathLike) else str(value)


def kind_of(error: EdlError) -> str:
    """The name of an error's kind, for another process: the nearest class that has an exit code."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in __all__)


def of_kind(kind: str, message: str) -> EdlError:
    """The error that another process had, by `kind_of` there; an unknown kind is a `JobFailed`."""
    error_type = globals()[kind] if kind in __all__ else None
    if isinstance(error_type, type) and issubclass(error_type, EdlError):
        return error_type(message)
    return JobFailed(message)


def meaning_of(exit_code: int) -> str:
    """What a job's exit code says of its end, as a phrase; empty for one that says nothing."""
    for kind in EdlError.__subclasses__():
        if kind.exit_code == exit_code and kind is not JobFailed:
            sentence = (kind.__doc__ or "").partition("\n")[0].removesuffix(".")
            return sentence[:1].lower() + sentence[1:]
    return ""


def hint_of(error: OSError) -> str:
    """What to do about something that cannot be written, as a sentence."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Make room on its disk, or choose another place."
    if error.errno in (errno.EACCES, errno.EPERM):
        return "Have this user allowed to write there, or choose another place."
    if error.errno == errno.EROFS:
        return "Its file system is read-only: choose another place, or have it made writable."
    if error.errno == errno.ENAMETOOLONG:
        return "Choose a shorter name."
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return (
            "A file stands where a folder is needed, or the other way round: choose another place."
        )
    if error.errno == errno.ENOENT:
        return "Make the folder that it is to be in, or choose another place."
    return "See to its disk, or choose another place."


def did_you_mean(
    word: str, allowed: Iterable[str], *, instead: Mapping[str, str] | None = None
) -> str:
    """A sentence with the allowed word nearest to the one that a user wrote, or an empty string.

    Args:
        word: As the user wrote it.
        allowed: What it may be.
        instead: What the sentence says for an allowed word; None says the word.
    """
    by_lower_case = {
        word_allowed.lower(): (instead or {}).get(word_allowed, word_allowed)
        for word_allowed in allowed
    }
    near = difflib.get_close_matches(word.lower(), by_lower_case, n=1)
    return f" Did you mean {by_lower_case[near[0]]!r}?" if near else ""


def how_to_install(extra: str) -> str:
    """A clause on how to get the packages of an extra; edl_horovod is on no package index."""
    return f"in a clone of edl_horovod, run pip install -c constraints.txt '.[{extra}]'"
