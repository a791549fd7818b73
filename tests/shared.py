"""Servers that all processes of a run share; each is started by the first test that needs it."""

import contextlib
import ctypes
import functools
import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from multiprocessing.connection import Client, Listener

from tests.forked import quiet_fork

VARIABLE = "EDL_TESTS_SHARED"
"""The address of the process that keeps the servers, for the workers of a run."""
_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """Start a process that keeps what the workers of this context need, until they have ended."""
    with (
        tempfile.TemporaryDirectory(prefix="edl-shared-") as folder,
        Listener(address := f"{folder}/socket", "AF_UNIX") as listener,
    ):
        pid = quiet_fork()
        if pid == 0:
            _keep(listener)
        os.environ[VARIABLE] = address
        try:
            yield
        finally:
            del os.environ[VARIABLE]
            with Client(address, "AF_UNIX") as connection:
                connection.send(None)
            os.waitpid(pid, 0)


@contextlib.contextmanager
def shared(start: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    """What a function of a module yields: one for all processes of the run.

    Args:
        start: A context manager; what it yields must be a text, such as a URL.
    """
    address = os.environ.get(VARIABLE)
    if address is None:
        with start() as value:
            yield value
        return
    with Client(address, "AF_UNIX") as connection:
        connection.send((start.__module__, start.__qualname__))
        is_started, value = connection.recv()
    assert is_started, value
    yield value


def _keep(listener: Listener) -> None:
    """Serve the workers until the first process says that they have ended, or is dead."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        # The workers, which get it as well, still need the servers while they end.
        signal.signal(signal.SIGINT, lambda *_: None)
        with ExitStack() as stack:
            started = functools.cache(lambda module, name: _start(stack, module, name))
            while True:
                with listener.accept() as connection, contextlib.suppress(EOFError, OSError):
                    if (wanted := connection.recv()) is None:
                        break
                    connection.send(started(*wanted))
        code = 0
    finally:
        os._exit(code)


def _start(stack: ExitStack, module: str, name: str) -> tuple[bool, str]:
    try:
        start = getattr(importlib.import_module(module), name)
        return True, stack.enter_context(start())
    except Exception as error:
        return False, f"{name} cannot be started: {error}"
