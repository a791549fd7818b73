"""Programs of Python that start in some milliseconds: forked from a process that has imported all.

A job's launcher, coordinator and workers are such programs. Each is started by its module, in an
environment, folder and session of its own, as `python -m` would; what starts them has a forker, a
child that has done nothing yet, and the launcher of a job gets one of its own.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import json
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

import pytest

from edl_horovod.supervisor import forks, processes
from edl_horovod.supervisor.plan import Command
from edl_horovod.worker.__main__ import import_all
from tests.forked import quiet_fork
from tests.frameworks import HALVES, is_there
from tests.jobs import config_of

MAX_BYTES, MAX_FILES = 1 << 20, 16
IMPORTED = ("KERAS_BACKEND", "OMP_NUM_THREADS", "TF_ENABLE_ONEDNN_OPTS", "PYTHONPATH")
"""Variables that imports read: a program with other values starts as a new process."""
HIDDEN_WARNINGS = (DeprecationWarning, ImportWarning, PendingDeprecationWarning, ResourceWarning)
NEEDED = ("data=d", "output=o", "model_def=m")
CLONE_NEWNET = 0x40000000
FROM_REPOSITORY = str(Path(__file__).resolve().parents[1])
OURS = ("edl_horovod", "tests.parallel.")


class Forker:
    """Forks programs; the child that does so is forked when this is made, before any thread."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._imported = _imported(os.environ)
        self.pid = quiet_fork()
        if self.pid == 0:
            self._channel.close()
            _serve(theirs)
        theirs.close()

    def start(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: str | os.PathLike[str] | None = None,
        files: tuple[int, int, int],
        pass_fds: Collection[int] = (),
        namespace: str = "",
    ) -> "Forked | None":
        """Fork `python -m MODULE ...`; None if another program or other imports are asked for.

        Args:
            argv: The command.
            environment: All of its variables.
            cwd: Its working directory; None for that of this process.
            files: Its standard input, output and errors.
            pass_fds: Further files that it gets under the same numbers.
            namespace: The network that it is in, by the name that `ip` has for it.
        """
        is_ours = argv[0] == sys.executable and argv[1] == "-m" and argv[2].startswith(OURS)
        if not is_ours or _imported(environment) != self._imported:
            return None
        request = {
            "argv": [str(word) for word in argv],
            "environment": dict(environment),
            "cwd": os.fspath(cwd or os.getcwd()),
            "pass_fds": list(pass_fds),
            "namespace": namespace,
        }
        with processes.signals_held(), forks._subreaper():
            message = json.dumps(request).encode()
            socket.send_fds(self._channel, [message], [*files, *pass_fds])
            return Forked(int(self._channel.recv(MAX_BYTES)), argv)


class Forked:
    """A program that was forked, with what tests use of a `Popen`; a child of this process."""

    stdin: IO[bytes] | None = None

    def __init__(self, pid: int, argv: Sequence[str]) -> None:
        self.pid, self.args = pid, argv
        self.returncode: int | None = None
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        if self.returncode is None and _is_readable(self._end, 0.0):
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._end)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not _is_readable(self._end, timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._end, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Warmth:
    """The forker of this process, if the run of tests has one."""

    forker: Forker | None = None


def prepare(items: Sequence[pytest.Item]) -> bool:
    """Import what jobs and models of tests need, once for all processes that are forked now.

    Returns:
        Whether some of the tests start jobs, which a forker is for.
    """
    texts = {item.path: item.path.read_text(encoding="utf-8") for item in items}
    later = [text for text in texts.values() if "if LATER:" in text]
    # Those of jobs, of hosts that jobs run on, and of rings.
    fixtures = {"start", "can_have_hosts", "run_ranks"}
    jobs = [item for item in items if fixtures & {*getattr(item, "fixturenames", ())}]
    named = {item.callspec.params.get("framework") for item in jobs if hasattr(item, "callspec")}
    wanted = {
        "keras": bool(jobs) or any(re.search(r"import (keras|tensorflow)\b", t) for t in later),
        "torch": "torch" in named or any(re.search(r"import torch\b", t) for t in later),
    }
    for framework, is_wanted in wanted.items():
        if is_wanted and is_there(HALVES[framework]):
            before = dict(os.environ)
            import_all(config_of("train", [f"framework={framework}", *NEEDED]))
            os.environ.clear()
            os.environ.update(before)
    return bool(jobs)


def open_forker() -> None:
    """Fork the process that starts programs for this one, which must have no threads yet."""
    _Warmth.forker = Forker()


def start_program(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: str | os.PathLike[str] | None = None,
    output: IO[Any],
    errors: IO[Any] | None = None,
    is_warm: bool = True,
    namespace: str = "",
    has_input: bool = False,
) -> "Forked | subprocess.Popen[bytes]":
    """Start a program in a session of its own: warm if it is one of ours.

    Args:
        argv: The command.
        environment: All of its variables.
        cwd: Its working directory; None for that of this process.
        output: The file for its output.
        errors: The file for its errors; None for that of its output.
        is_warm: Whether it may be forked; it has the command of the tests then.
        namespace: The network that it is in, by the name that `ip` has for it.
        has_input: Whether its input is a pipe, `stdin`; without one it reads nothing.
    """
    errors = errors or output
    read, write = os.pipe() if has_input else (os.open(os.devnull, os.O_RDONLY), None)
    child: Forked | subprocess.Popen[bytes] | None = None
    try:
        if is_warm and _Warmth.forker is not None:
            child = _Warmth.forker.start(
                argv,
                environment=environment,
                cwd=cwd,
                files=(read, output.fileno(), errors.fileno()),
                namespace=namespace,
            )
        if child is None:
            child = subprocess.Popen(
                [*(("ip", "netns", "exec", namespace) if namespace else ()), *argv],
                stdin=read,
                stdout=output,
                stderr=errors,
                cwd=cwd,
                env=environment,
                start_new_session=True,
            )
    finally:
        os.close(read)
    if write is not None:
        child.stdin = os.fdopen(write, "wb", buffering=0)
    return child


def enter_network(name: str) -> None:
    """Move this thread, and what it starts, into a network namespace that `ip` knows by a name."""
    with open(f"/run/netns/{name}") as stream:
        status = ctypes.CDLL(None, use_errno=True).setns(stream.fileno(), CLONE_NEWNET)
    assert status == 0, os.strerror(ctypes.get_errno())


def _is_readable(file: int, seconds: float | None) -> bool:
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def _imported(environment: Mapping[str, str]) -> list[str]:
    values = [environment.get(name, "") for name in IMPORTED]
    # The repository is on the path anyway.
    return ["" if value == FROM_REPOSITORY else value for value in values]


def _serve(channel: socket.socket) -> NoReturn:
    """Fork a program for each request, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _close_all_but(channel.fileno())
    while True:
        message, files, _, _ = socket.recv_fds(channel, MAX_BYTES, MAX_FILES)
        if not message:
            os._exit(0)
        read, write = os.pipe()
        if (between := quiet_fork()) == 0:
            # A grandchild becomes a child of the process that asks, which is a subreaper now.
            middle = os.getpid()
            if quiet_fork() == 0:
                while os.getppid() == middle:
                    time.sleep(0.001)
                _run(json.loads(message), files, write)
            os._exit(0)
        os.waitpid(between, 0)
        for descriptor in (write, *files):
            os.close(descriptor)
        channel.send(os.read(read, 64))
        os.close(read)


def _close_all_but(kept: int) -> None:
    """Close what is open, except for the standard streams: files and sockets of pytest."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number != kept:
            with contextlib.suppress(OSError):
                os.close(number)


def _run(request: Mapping[str, Any], files: list[int], write: int) -> NoReturn:
    """Be the program, from its first statement to its end."""
    code = 1
    try:
        os.setsid()
        os.write(write, str(os.getpid()).encode())
        if request["namespace"]:
            enter_network(request["namespace"])
        _take_files(files, request["pass_fds"])
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        _begin()
        _, _, module, *words = request["argv"]
        if module == "edl_horovod":
            _start_others_warm()
        sys.argv[1:] = words
        sys.path.insert(0, os.getcwd())
        # It runs as __main__, whatever imported it before.
        for name in (module, f"{module}.__main__"):
            if not hasattr(sys.modules.get(name), "__path__"):
                sys.modules.pop(name, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        if isinstance(ending.code, str):
            sys.stderr.write(f"{ending.code}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        # As the interpreter's end would.
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _take_files(files: list[int], numbers: list[int]) -> None:
    """Give the received files the numbers that the program knows them by, and close all others."""
    above = 1 + max([*files, *numbers, 2])
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above) for descriptor in files]
    wanted = [0, 1, 2, *numbers]
    for descriptor, number in zip(moved, wanted, strict=True):
        os.dup2(descriptor, number)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in wanted:
            with contextlib.suppress(OSError):
                os.close(number)


def _begin() -> None:
    """Make this process like one that has just been started, except for its modules."""
    faulthandler.disable()
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit._clear()
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, buffering=1, errors=errors, closefd=False)
        for number, mode, errors in ((0, "r", None), (1, "w", None), (2, "w", "backslashreplace"))
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    warnings.resetwarnings()
    for category in HIDDEN_WARNINGS:
        warnings.simplefilter("ignore", category)
    tempfile.tempdir = None
    gc.enable()


def _start_others_warm() -> None:
    """Let a launcher fork the coordinator and the workers' fork server, too."""
    forker, start_cold = Forker(), processes.start_process

    def start(
        command: Command,
        variables: Mapping[str, str],
        output: IO[bytes] | None,
        *,
        pass_fds: Collection[int] = (),
    ) -> processes.Process:
        lifeline_end, lifeline = os.pipe()
        printed = 1 if output is None else output.fileno()
        try:
            forked = forker.start(
                command.argv,
                environment={**os.environ, **command.environment, **variables},
                files=(lifeline_end, printed, 2 if output is None else printed),
                pass_fds=pass_fds,
            )
        finally:
            os.close(lifeline_end)
        if forked is None:
            os.close(lifeline)
            return start_cold(command, variables, output, pass_fds=pass_fds)
        forked.stdin = os.fdopen(lifeline, "wb")
        return forked

    for module in (processes, forks):
        module.start_process = start
    processes.Child.__init__.__kwdefaults__["start"] = start
