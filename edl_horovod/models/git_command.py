"""Run Git without a terminal, apart from a surrounding repository, and with a time limit.

A password is passed in the environment, as Git's configuration: all users of a machine can see
command lines, but only the owner of a process can see its environment.
"""

import contextlib
import os
import signal
import subprocess
import urllib.parse
from collections.abc import Sequence

from edl_horovod.errors import ConfigError
from edl_horovod.files.url_secrets import without_secrets
from edl_horovod.models.git_url import AUTHENTICATED_SCHEMES, GitZoo

__all__ = ["GitError", "environment", "git"]

FETCH_SECONDS = 300.0
"""Time limit of one Git command."""

_REPOSITORY_VARIABLES = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
)


class GitError(ConfigError):
    """A Git command failed."""


def git(zoo: GitZoo, arguments: Sequence[str], *, seconds: float = FETCH_SECONDS) -> str:
    """Run a Git command and return its output.

    Raises:
        GitError: The command failed or took too long.
    """
    # A session of its own, so nothing can prompt at the terminal and all its helpers end with it.
    process = subprocess.Popen(
        ["git", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(zoo),
        text=True,
        errors="replace",
        start_new_session=True,
    )
    with process:
        try:
            printed, complaints = process.communicate(timeout=seconds)
        except BaseException as e:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(e, subprocess.TimeoutExpired):
                raise _failure(zoo, f"no answer within {seconds:.0f} s") from e
            raise
    if process.returncode != 0:
        raise _failure(zoo, complaints)
    return printed


_CREDENTIAL_HELPER = (
    "!f() { if test \"$1\" = get; then printf 'username=%s\\npassword=%s\\n'"
    ' "$EDL_GIT_USER" "$EDL_GIT_PASSWORD"; fi; }; f'
)
"""A credential helper for Git that stores nothing; the shell runs it."""


def environment(zoo: GitZoo) -> dict[str, str]:
    """The environment of a Git command for a zoo."""
    inherited = {k: v for k, v in os.environ.items() if k not in _REPOSITORY_VARIABLES}
    schemes = (*AUTHENTICATED_SCHEMES, "http", "git") if zoo.is_pinned else AUTHENTICATED_SCHEMES
    return (
        inherited
        | _login(zoo)
        | {
            "LC_ALL": "C",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "",
            "SSH_ASKPASS_REQUIRE": "never",
            # This covers redirects, too: `ext::` and others run commands, and over http an
            # attacker on the network can forge a branch.
            "GIT_ALLOW_PROTOCOL": ":".join(schemes),
        }
    )


def _login(zoo: GitZoo) -> dict[str, str]:
    """Configuration that gives a zoo's user and password to its server only."""
    server = "://".join(urllib.parse.urlsplit(zoo.url)[:2])
    settings: list[tuple[str, str]] = []
    if zoo.password:
        # The empty helper disables the user's own helpers, which would store the password.
        settings = [(f"credential.{server}.helper", helper) for helper in ("", _CREDENTIAL_HELPER)]
    elif zoo.user:
        settings = [(f"credential.{server}.username", zoo.user)]
    if not settings:
        return {}
    count = os.environ.get("GIT_CONFIG_COUNT", "")
    first = int(count) if count.isdecimal() else 0
    login = {"EDL_GIT_USER": zoo.user, "EDL_GIT_PASSWORD": zoo.password}
    for number, (key, value) in enumerate(settings, first):
        login |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return login | {"GIT_CONFIG_COUNT": str(first + len(settings))}


def _failure(zoo: GitZoo, complaints: str) -> GitError:
    lines = [line.strip() for line in without_secrets(complaints).splitlines()]
    lines = [line for line in lines if line] or ["git printed no reason"]
    # The message of ssh comes before that of git, which gives no reason.
    reasons = (line for line in lines if line.startswith(("ssh:", "fatal:", "error:")))
    reason = next(reasons, lines[-1])
    return GitError(
        f"The Git repository of the model zoo cannot be read: {reason.rstrip('.')}.",
        received={"model_zoo": str(zoo)},
        hint="Check the URL, the network and your access to it.",
    )
