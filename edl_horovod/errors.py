"""The exception tree: one class for each exit code, so a script can tell failures apart.

A message says what is wrong, where, what was received and what to do next.
"""

import difflib
import errno
import os
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Self

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
    "PartyError",
    "ProofFailed",
    "RegistryError",
    "TimedOut",
    "TrainingError",
    "UserCodeError",
    "SEE_DOCTOR",
    "TOO_MANY_FILES",
    "hint_of",
    "did_you_mean",
    "how_to_install",
    "error_kind",
    "meaning_of",
    "error_of_kind",
]


TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
"""Numbers of the system's errors for a process, or a machine, that may open no more files."""
SEE_DOCTOR = "(To look at this environment, run: edl doctor)"
"""The end of an error's message where the cause is not the job but the environment."""


class EdlError(Exception):
    """Base of all errors for users; it is not raised itself.

    Args:
        problem: What is wrong and where, in sentences.
        received: The settings at fault with their values, or a phrase where no setting is.
        hint: What the user can do about it, in sentences.
    """

    exit_code = 1
    is_about_environment: ClassVar[bool] = False
    """Whether such an error is about a machine or a cluster, at which `edl doctor` looks."""

    def __init__(
        self, problem: str, *, received: Mapping[str, object] | str = "", hint: str = ""
    ) -> None:
        self.problem = problem.strip()
        self.received = received
        self.hint = hint.strip(" ")
        parts = [self.facts, self.hint]
        # The text of another process's error has the pointer already.
        if self.is_about_environment and SEE_DOCTOR not in f"{problem} {hint}":
            parts.append(SEE_DOCTOR)
        # A hint may begin a line of its own.
        super().__init__(" ".join(filter(None, parts)).replace(" \n", "\n").strip())

    @property
    def facts(self) -> str:
        """What is wrong and what was received, without the hint."""
        received = self.received
        if isinstance(received, Mapping):
            received = _settings(received)
        received_text = f"Received: {received.removesuffix('.')}." if received else ""
        return " ".join(filter(None, (self.problem, received_text)))

    def with_more_hint(self, more: str) -> Self:
        """The same error with more text after its hint; the text begins with a space if needed."""
        return type(self)(self.problem, received=self.received, hint=f"{self.hint}{more}")

    def with_received(self, more: Mapping[str, object]) -> Self:
        """The same error with more settings and values."""
        if isinstance(self.received, Mapping):
            return type(self)(self.problem, received={**self.received, **more}, hint=self.hint)
        received = f"{self.received.removesuffix('.')}; " if self.received else ""
        return type(self)(self.problem, received=f"{received}{_settings(more)}", hint=self.hint)

    def reworded(self, change: Callable[[str], str]) -> Self:
        """The same error with all its texts changed, including the values of its settings."""
        received = self.received
        if isinstance(received, str):
            received = change(received)
        else:
            received = {
                key: value if change(_shown(value)) == _shown(value) else change(str(value))
                for key, value in received.items()
            }
        return type(self)(change(self.problem), received=received, hint=change(self.hint))


class JobFailed(EdlError):
    """The job ended without a result, for a reason that no other exit code names."""

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
    """Training failed: the loss or the gradients are not finite."""

    exit_code = 5


class NotEnoughWorkers(EdlError):
    """The ring stayed below elastic.min_np for longer than elastic.wait_seconds."""

    exit_code = 6


class OutputError(EdlError):
    """The output cannot be written, or holds something that must not be overwritten."""

    exit_code = 7


class MissingDependency(EdlError):
    """A required program or package is not installed on this machine, or lacks a feature."""

    exit_code = 8
    is_about_environment = True


class ProofFailed(EdlError):
    """A job's ledger does not show that each record was applied exactly once."""

    exit_code = 9


class ClusterError(EdlError):
    """The cluster refused a request or failed, for a reason that no other exit code names."""

    exit_code = 10


class NoCluster(ClusterError):
    """No cluster is configured: there is no usable kubeconfig or context, and this is not a pod."""

    exit_code = 11
    is_about_environment = True


class ClusterUnreachable(ClusterError):
    """The cluster's API server cannot be reached, is too busy, or did not answer in time."""

    exit_code = 12
    is_about_environment = True


class CredentialsRefused(ClusterError):
    """The cluster does not accept the credentials (401)."""

    exit_code = 13
    is_about_environment = True


class ClusterForbidden(ClusterError):
    """The credentials may not do this in the cluster (403)."""

    exit_code = 14
    is_about_environment = True


class ObjectNotFound(ClusterError):
    """The cluster has no such job, pod or other object (404)."""

    exit_code = 15


class ObjectConflict(ClusterError):
    """An object with that name exists, or was changed or replaced at the same time (409)."""

    exit_code = 16


class QuotaExceeded(ClusterError):
    """A quota of the namespace does not allow the request."""

    exit_code = 17


class ManifestRefused(ClusterError):
    """The API server, or a policy in it, rejected a manifest as invalid."""

    exit_code = 18


class NoMPIJobs(ClusterError):
    """The cluster has no MPIJobs: mpi-operator is not installed there."""

    exit_code = 19
    is_about_environment = True


class TimedOut(EdlError):
    """The condition that was waited for was not met within the time limit."""

    exit_code = 20


class PartyError(EdlError):
    """A party does not fit the others of a federated training, or must not go on with them."""

    # Other parties see its text, so that must not name records or paths.
    exit_code = 21


class ImageError(EdlError):
    """An image cannot be built."""

    exit_code = 30


class RegistryError(EdlError):
    """An image's registry does not answer, or refuses a push or a pull."""

    exit_code = 31
    is_about_environment = True


class Interrupted(EdlError):
    """The user ended the job (Ctrl-C or SIGTERM to the launcher)."""

    exit_code = 130


def _settings(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={_shown(value)}" for key, value in values.items())


def _shown(value: object) -> str:
    return repr(os.fspath(value)) if isinstance(value, str | os.PathLike) else str(value)


def error_kind(error: EdlError) -> str:
    """The name of an error's class, or of its nearest base in this module, for other processes."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in __all__)


def error_of_kind(kind: str, message: str) -> EdlError:
    """Recreate another process's error from its kind and text; an unknown kind is a JobFailed."""
    error_type = globals()[kind] if kind in __all__ else None
    if isinstance(error_type, type) and issubclass(error_type, EdlError):
        return error_type(message)
    return JobFailed(message)


def meaning_of(exit_code: int) -> str:
    """The meaning of a job's exit code, as a phrase; empty for a code without a meaning."""
    for kind in EdlError.__subclasses__():
        if kind.exit_code == exit_code and kind is not JobFailed:
            sentence = (kind.__doc__ or "").partition("\n")[0].removesuffix(".")
            return sentence[:1].lower() + sentence[1:]
    return ""


def hint_of(error: OSError) -> str:
    """What to do about a path that cannot be written, as a sentence."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Make room on its disk, or choose another place."
    if error.errno in (errno.EACCES, errno.EPERM):
        return "Get write permission for this user, or choose another place."
    if error.errno == errno.EROFS:
        return "Its file system is read-only: choose another place, or mount it writable."
    if error.errno == errno.ENAMETOOLONG:
        return "Choose a shorter name."
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return (
            "There is a file where a folder is needed, or a folder where a file is needed: choose"
            " another place."
        )
    if error.errno in TOO_MANY_FILES:
        return f"Raise the limit of open files: ulimit -n 65536. {SEE_DOCTOR}"
    if error.errno == errno.ENOENT:
        return "Create the folder above it, or choose another place."
    return "Check its disk, or choose another place."


def did_you_mean(
    word: str, allowed: Iterable[str], *, instead: Mapping[str, str] | None = None
) -> str:
    """A sentence with the allowed word nearest to the user's word; empty if none is near.

    Args:
        word: The word that the user wrote.
        allowed: The allowed words.
        instead: The text to show for an allowed word; None shows the word itself.
    """
    by_lower_case = {
        word_allowed.lower(): (instead or {}).get(word_allowed, word_allowed)
        for word_allowed in allowed
    }
    near = difflib.get_close_matches(word.lower(), by_lower_case, n=1)
    return f" Did you mean {by_lower_case[near[0]]!r}?" if near else ""


def how_to_install(extra: str) -> str:
    """A clause on how to install an extra; edl_horovod is not on a package index."""
    return f"in a clone of edl_horovod, run pip install -c constraints.txt '.[{extra}]'"
