"""Commands of Git: no terminal to ask at, nothing of a repository around us, a limited time."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence

from edl_horovod.errors import ConfigError
from edl_horovod.models.git_url import VOUCHED_SCHEMES, GitZoo

__all__ = ["GitError", "environment", "git"]

FETCH_SECONDS = 300.0
"""How long one command of Git may take."""

_OF_ANOTHER_REPOSITORY = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_DIR", "GIT_INDEX_FILE",
    "GIT_NAMESPACE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_WORK_TREE",
)  # fmt: skip


class GitError(ConfigError):
    """A command of Git that failed."""


def git(zoo: GitZoo, arguments: Sequence[str], *, seconds: float = FETCH_SECONDS) -> str:
    """What a command of Git printed.

    Raises:
        GitError: It failed, or took too long.
    """
    # A session of its own: nothing can ask at the terminal, and all its helpers end with it.
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
                raise GitError(_failure(zoo, f"no answer within {seconds:.0f} s")) from e
            raise
    if process.returncode != 0:
        raise GitError(_failure(zoo, complaints))
    return printed


def environment(zoo: GitZoo) -> dict[str, str]:
    """What a command of Git for a zoo is given."""
    inherited = {k: v for k, v in os.environ.items() if k not in _OF_ANOTHER_REPOSITORY}
    schemes = (*VOUCHED_SCHEMES, "http", "git") if zoo.is_pinned else VOUCHED_SCHEMES
    return inherited | {
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "SSH_ASKPASS_REQUIRE": "never",
        # Also for what a server redirects to: `ext::` and its like run commands, and what http
        # says of a branch anybody on the way may have said.
        "GIT_ALLOW_PROTOCOL": ":".join(schemes),
    }


def _failure(zoo: GitZoo, complaints: str) -> str:
    lines = [line.strip() for line in complaints.replace(zoo.url, zoo.shown_url).splitlines()]
    lines = [line for line in lines if line] or ["it said nothing"]
    # What ssh says of a host comes before git's own account of it, which names no reason.
    told = (line for line in lines if line.startswith(("ssh:", "fatal:", "error:")))
    said = next(told, lines[-1])
    return (
        f"The Git repository of the model zoo cannot be read: {said.rstrip('.')}."
        f" Received: model_zoo={str(zoo)!r}. Check the URL, the network and your access to it."
    )
