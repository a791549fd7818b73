"""The checks of `edl doctor`: what such a check gets, what it finds, and how it runs programs."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

__all__ = ["Check", "Finding", "Level", "Programs", "Scope"]

Level = Literal["OK", "NONE", "WARN", "FAIL"]
"""NONE: this part is optional and is not set up here, which is no fault.
WARN: something works in part, or only some jobs need it.
FAIL: no job can run, or a check that the user asked for fails. A check may always say FAIL; `edl
doctor` shows it as WARN where the check is neither needed nor asked for."""

_END_SECONDS = 5.0
"""Time that a program and the processes of its session have to end after SIGTERM."""
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Finding:
    """One line of `edl doctor`."""

    level: Level
    text: str
    fix: str = ""
    """What to do about it."""
    private: tuple[str, ...] = ()
    """Words, such as the names of hosts, that the block for a report must not show."""


class Programs:
    """Runs programs for checks, each in a session of its own; closing it ends those that run."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    def run(
        self, command: Sequence[str], *, seconds: float
    ) -> subprocess.CompletedProcess[str] | None:
        """Run a program to its end; returns None if that takes longer than `seconds`."""
        with self._lock:
            if self._is_closed:
                return None
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            # Not read to their end: a process that began another session may hold them open.
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            return None
        finally:
            self._running.discard(process)
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def close(self) -> None:
        """End the programs that still run; no other one starts after that."""
        with self._lock:
            self._is_closed = True
        for process in list(self._running):
            _end(process)


@dataclass(frozen=True)
class Scope:
    """What `edl doctor` is to look at, beside this machine."""

    programs: Programs
    context: str = ""
    """The context of the kubeconfig; empty for the current one."""
    namespace: str = ""
    """The namespace in the cluster; empty for the one of the context."""
    image_repository: str = ""
    """Where images are to be pushed; empty where the user gave none."""
    wanted: frozenset[str] = frozenset()
    """The names of the checks that the user asked for."""


@dataclass(frozen=True)
class Check:
    """A check of `edl doctor`, which the part registers that knows what it needs."""

    module: str
    """Imported only when the check runs."""
    function: str
    """The function in it: it takes a `Scope` and yields a `Finding` for each line. An `EdlError`
    that it raises is a finding, too."""
    seconds: float = 60.0
    """Time after which the check is given up."""
    is_needed: bool = False
    """Whether no job can run if it fails."""

    def findings(self, scope: Scope) -> Iterator[Finding]:
        """Run the check."""
        function: Callable[[Scope], Iterator[Finding]]
        function = getattr(import_module(self.module), self.function)
        return function(scope)


def _end(process: subprocess.Popen[str]) -> None:
    """End a program and the processes of its session, at last by SIGKILL."""
    # Until no process is left, which may be later than the end of the program itself.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline:
            process.poll()  # Until its exit code is read, a program that has ended counts as there.
            os.killpg(process.pid, 0)
            time.sleep(_POLL_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
