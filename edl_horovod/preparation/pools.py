"""The pools that convert files: processes of one machine, or the ranks that `mpirun` started.

Each process of this machine is a new interpreter and not a fork, because the calling program may
have threads and locks of TensorFlow. It is not started by `multiprocessing`'s spawn either, which
runs the caller's script again in each process (this fails without a `__main__` guard) and cannot
report at which file a process died.

The position of a process is three numbers in an unnamed file that the parent reads. The process
writes it before each input file, of which there may be millions. Messages would keep the parent
busy; this write takes a microsecond, and the last position survives a crash.
"""

import contextlib
import json
import os
import select
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, Self, TypeVar

from edl_horovod.errors import (
    ConfigError,
    EdlError,
    JobFailed,
    MissingDependency,
    error_of_kind,
    how_to_install,
)
from edl_horovod.preparation.groups import (
    ENVIRONMENT,
    Group,
    GroupDone,
    GroupSettings,
    OnWork,
    OpenPool,
    prepare_group,
    source_digest,
)

_READ_BYTES = 1 << 16
_POLL_SECONDS = 0.2
"""Interval at which the pool reads the positions of its processes while none finishes."""
_END_SECONDS = 5.0
ResultT = TypeVar("ResultT")
_WAIT_SECONDS = 0.5

_POSITION = struct.Struct("<qqq")
_NO_POSITION = (-1, 0, 0)


@dataclass
class _PoolProcess:
    child: "subprocess.Popen[bytes]"
    pidfd: int
    """Becomes readable when the process ends, without reaping it, so its ID is not reused."""
    position_file: BinaryIO
    unread: bytes = b""
    group: Group | None = None

    def position(self) -> tuple[int, int]:
        """Return the number of the current file in the group, and the records before it."""
        group, file, num_records = read_position(self.position_file.fileno())
        return (file, num_records) if self.group and self.group.number == group else (0, 0)

    def has_ended(self, *, seconds: float | None = 0.0) -> bool:
        """Wait up to this time for the process to end; None waits without a limit."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    def end(self) -> int:
        """Kill the process and its children if they are running; return the exit code."""
        if self.child.returncode is None:
            # Kill before reaping: afterwards the IDs of the process and its group may be reused.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)
        return self.child.wait()


class ProcessPool:
    """Processes that each handle one group at a time; a `with` block ends all of them."""

    def __init__(self, settings: GroupSettings, num_processes: int) -> None:
        self._settings = settings
        self._num_processes = num_processes
        self._processes: list[_PoolProcess] = []
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        try:
            for _ in range(self._num_processes):
                self._start()
            # Send after starting all: a long write blocks until its reader has started.
            for process in self._processes:
                _send(process, asdict(self._settings))
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                for process in self._processes:
                    _send(process, None)
                deadline = time.monotonic() + _END_SECONDS
                for process in self._processes:
                    process.has_ended(seconds=max(0.0, deadline - time.monotonic()))
        finally:
            self._kill()

    def source(self) -> str:
        """Wait until one process has loaded the model code; return the digest of the code.

        Raises:
            UserCodeError: The code cannot be loaded.
            JobFailed: A process died.
        """
        while True:
            for _, message in self._messages():
                if "source" in message:
                    return str(message["source"])

    def work(self, groups: Iterator[Group], on_work: OnWork) -> Iterator[GroupDone]:
        """Process the groups; yield the result of each when it is done, in any order.

        Raises:
            EdlError: A process reported a fatal error; `JobFailed` if a process died.
        """
        self._assign(groups)
        while any(process.group is not None for process in self._processes):
            for process, message in self._messages():
                if "done" in message:
                    process.group = None
                    yield GroupDone.from_dict(message["done"])
            self._assign(groups)
            positions = [process.position() for process in self._processes]
            on_work(sum(file for file, _ in positions), sum(records for _, records in positions))

    def _assign(self, groups: Iterator[Group]) -> None:
        """Send a group to each idle process; a process that is still starting reads it later."""
        for process in self._processes:
            if process.group is None:
                process.group = next(groups, None)
                if process.group is not None:
                    _send(process, asdict(process.group))

    def _start(self) -> None:
        position_file = open_position_file()
        child = subprocess.Popen(
            [sys.executable, "-m", "edl_horovod.preparation.worker", str(position_file.fileno())],
            pass_fds=[position_file.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ENVIRONMENT},
            # Ctrl-C in a terminal must reach only this process, which ends the others.
            start_new_session=True,
        )
        process = _PoolProcess(child, os.pidfd_open(child.pid), position_file)
        self._processes.append(process)
        assert child.stdout is not None
        self._selector.register(child.stdout, selectors.EVENT_READ, process)

    def _messages(self) -> Iterator[tuple[_PoolProcess, dict[str, Any]]]:
        """Yield the messages that have arrived, after a short wait for the first one."""
        for key, _ in self._selector.select(_POLL_SECONDS):
            process: _PoolProcess = key.data
            piece = os.read(key.fd, _READ_BYTES)
            if not piece:
                process.has_ended(seconds=None)
                raise _death_error(process, len(self._processes))
            *lines, process.unread = (process.unread + piece).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "error" in message:
                    raise error_of_kind(message["error"], message["message"])
                yield process, message
        for process in self._processes:
            # A child of the user's code may keep the output pipe of a dead process open.
            if process.has_ended() and not any(
                key.data is process for key, _ in self._selector.select(0)
            ):
                raise _death_error(process, len(self._processes))

    def _kill(self) -> None:
        for process in self._processes:
            process.end()
            os.close(process.pidfd)
            for stream in (process.child.stdin, process.child.stdout, process.position_file):
                assert stream is not None
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._selector.close()


def _send(process: _PoolProcess, message: Any) -> None:
    assert process.child.stdin is not None
    # Ignore a broken pipe: the death of a process is detected by the end of its output.
    with contextlib.suppress(BrokenPipeError):
        process.child.stdin.write(json.dumps(message).encode() + b"\n")
        process.child.stdin.flush()


def _death_error(process: _PoolProcess, num_processes: int) -> JobFailed:
    code = process.end()
    description = (
        f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    )
    location = "before it received a file"
    if (group := process.group) is not None:
        number, num_files = process.position()[0], len(group.files)
        place = f"file {number + 1} of {num_files} of group {group.number}"
        location = f"at {group.files[number]} ({place})"
    problem, advice = f"A process {description} {location}.", ""
    if code == -signal.SIGKILL:
        advice = " It may have run out of memory; use fewer processes."
    return JobFailed(problem, received={"processes": num_processes}, hint=advice)


def is_first_rank() -> bool:
    """Whether this rank assigns the groups; the other ranks process them.

    Raises:
        MissingDependency: mpi4py or an MPI library is not installed.
        ConfigError: There is no other rank.
    """
    return int(_world().Get_rank()) == 0


def on_all_ranks(lead: Callable[[OpenPool], ResultT]) -> ResultT:
    """Call `lead` on rank 0 with a pool of the other ranks; return its result on every rank.

    Raises:
        EdlError: The error that `lead` raised on rank 0; all ranks raise it.
    """
    from mpi4py.futures import MPICommExecutor

    world = _world()
    outcome: ResultT | EdlError = JobFailed("Rank 0 of prepare failed; see its traceback.")
    if world.Get_rank() != 0:
        os.environ.update(ENVIRONMENT)
    try:
        # Collective: every rank gets here before any rank can fail.
        with MPICommExecutor(world, root=0) as executor:
            if executor is not None:
                num_workers = world.Get_size() - 1
                outcome = lead(
                    lambda settings, num_groups: contextlib.nullcontext(
                        _MpiPool(executor, settings, min(num_workers, num_groups))
                    )
                )
    except EdlError as e:
        outcome = e
    finally:
        # Also after an unexpected error on rank 0, so that no rank waits for ever.
        outcome = world.bcast(outcome, root=0)
    if isinstance(outcome, EdlError):
        raise outcome
    return outcome


@dataclass
class _MpiPool:
    executor: Any
    """Untyped, because mpi4py does not declare it as a `concurrent.futures.Executor`."""
    settings: GroupSettings
    num_workers: int

    def source(self) -> str:
        model_zoo, model_def = self.settings.model_zoo, self.settings.model_def
        return str(self.executor.submit(source_digest, model_zoo, model_def).result())

    def work(self, groups: Iterator[Group], on_work: OnWork) -> Iterator[GroupDone]:
        running: set[Future[GroupDone]] = set()
        try:
            while True:
                while len(running) < self.num_workers and (group := next(groups, None)):
                    running.add(self.executor.submit(prepare_group, self.settings, group))
                if not running:
                    return
                done, running = wait(running, _WAIT_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                on_work(0, 0)
        finally:
            for future in running:
                future.cancel()


def _world() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as e:
        raise MissingDependency(
            f"launch=mpi needs mpirun and mpi4py, but one of them is missing: {e}.",
            hint=f"Use launch=local; or {how_to_install('mpi')}",
        ) from e
    if MPI.COMM_WORLD.Get_size() < 2:
        raise ConfigError(
            "launch=mpi needs at least two ranks: the first one assigns the work to the others.",
            received="1 rank",
            hint="Start it with mpirun -n 5 edl prepare launch=mpi ... .",
        )
    return MPI.COMM_WORLD


def open_position_file() -> BinaryIO:
    """Create the file for one process; it disappears once both processes have closed it."""
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (the caller closes it)
    write_position(file.fileno(), *_NO_POSITION)
    return file


def write_position(descriptor: int, group: int, file: int, num_records: int) -> None:
    """Write the position: a file of a group, and the number of records of earlier files."""
    os.pwrite(descriptor, _POSITION.pack(group, file, num_records), 0)


def read_position(descriptor: int) -> tuple[int, int, int]:
    """Read the last position: group, file and records; the group is -1 before the first write."""
    group, file, num_records = _POSITION.unpack(os.pread(descriptor, _POSITION.size, 0))
    return group, file, num_records
