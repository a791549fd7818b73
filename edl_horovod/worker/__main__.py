"""The process of one rank: `python -m edl_horovod.worker --config config.yaml`.

It gets warm first (imports, model, traced steps, open data), and only then asks for a place in a
ring. Its environment variables say who assigns places: the job's coordinator, horovodrun or mpirun.
"""

import argparse
import contextlib
import faulthandler
import gc
import importlib
import json
import logging
import os
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from edl_horovod.config import resolved
from edl_horovod.config.frameworks import FRAMEWORKS
from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import TASKS
from edl_horovod.errors import EdlError
from edl_horovod.job import earlier, lifeline
from edl_horovod.job import log as logs
from edl_horovod.job.warm_workers import MAX_MESSAGE_BYTES, READY
from edl_horovod.models.framework_name import framework_name
from edl_horovod.worker.environment import WorkerEnvironment, begin_container

log = logging.getLogger("edl_horovod.worker")

LAST_WORDS_SECONDS = 5.0
"""Longest wait for the last output of this process to be read."""
_MAX_PID_BYTES = 32


def main() -> int:
    """Run a worker until it is dismissed; returns the process' exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", type=Path, required=True, help="the job's resolved config.yaml")
    parser.add_argument(
        "--wait", action="store_true", help="get warm, then wait for edl_horovod.worker.shim"
    )
    parser.add_argument(
        "--fork-server", type=int, metavar="FD", help="fork a worker for each request from a socket"
    )
    args = parser.parse_args()
    if args.fork_server is not None:
        import_all(resolved.load(args.config))
        command = serve(socket.socket(fileno=args.fork_server))
        # From here on this is a forked worker: the server itself does not return.
        args = parser.parse_args(command[command.index("--config") :])
    faulthandler.enable()
    environment = WorkerEnvironment.of(os.environ)
    lifeline.end_with_parent()
    begin_container(environment.ready_file)
    try:
        config = earlier.with_checkpoint_lanes(resolved.load(args.config))
        logs.setup(environment.identity.label, level=config.log_level)
        import_all(config)
        # Imported only now, because these import the slow packages.
        from edl_horovod.worker.rank import work
        from edl_horovod.worker.stand_in import work_when_launched

        return (work_when_launched if args.wait else work)(config, args.config, environment)
    except EdlError as error:
        log.error("%s", error)
        return error.exit_code


def import_all(config: JobConfig) -> None:
    """Import the packages that a worker needs, without the user's code and without threads.

    Raises:
        ConfigError: The framework's ring does not work with the environment.
    """
    entry = FRAMEWORKS[framework_name(config)]
    entry.check_environment(os.environ)
    # Horovod reads its variable at every trace of a collective.
    for name, value in (*entry.environment.items(), ("HOROVOD_LOG_LEVEL", "error")):
        os.environ.setdefault(name, value)
    os.environ["HOROVOD_ELASTIC"] = "1"
    # A bucket is one message already; fusing several would only enlarge Horovod's buffer.
    os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", str(config.train.bucket_bytes))
    # Keras imports pandas, and that PyArrow, where they are installed; its allocator would begin a
    # thread.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    gc.disable()
    try:
        importlib.import_module("edl_horovod.worker.stand_in")
        importlib.import_module("edl_horovod.tasks.warm").framework_of(config)
        for name in entry.training_imports if TASKS[config.task].keeps_state else ():
            importlib.import_module(name)
        # The modules live as long as the process, so exclude them from garbage collection.
        gc.freeze()
    finally:
        gc.enable()


def code_of(main: Callable[[], int]) -> int:
    """Run a process' main function; returns its exit code, whatever it raises."""
    try:
        return main()
    except SystemExit as ending:  # From argparse.
        return int(ending.code or 0)
    except BaseException:  # Not left to the interpreter, whose end may hang.
        traceback.print_exc()
        return 1


def end(code: int, *, last_words_seconds: float = LAST_WORDS_SECONDS) -> NoReturn:
    """End this process at once, without the interpreter's own end; everything is closed by now.

    The interpreter's end would destroy TensorFlow's iterators, which wait for their threads; a
    thread that is about to run the user's Python code then waits for the interpreter forever. An
    error here would lead there as well, and the reader of the output may be gone or stuck.
    """
    last = threading.Timer(last_words_seconds, os._exit, [code])
    last.daemon = True
    last.start()
    for flush in (logging.shutdown, sys.stdout.flush, sys.stderr.flush):
        with contextlib.suppress(OSError):
            flush()
    os._exit(code)


def serve(channel: socket.socket) -> list[str]:
    """Fork a worker for each request, until the other end is closed; returns in the workers alone.

    A request is JSON with two descriptors, the worker's standard input and its output: `variables`
    beyond the server's own, and its `argv`. The answer is its pid, or a negative errno. The worker
    is a child of the requesting process as long as that one is a subreaper. A message without
    descriptors says after how many `idle_seconds` without another one the server ends.

    Returns:
        The command of the worker.
    """
    channel.send(READY)
    while True:
        message, files = b"", list[int]()
        with contextlib.suppress(TimeoutError):
            message, files, _, _ = socket.recv_fds(channel, MAX_MESSAGE_BYTES, 2)
        if not message:
            os._exit(0)
        request = json.loads(message)
        channel.settimeout(request.get("idle_seconds"))
        if not files:
            continue
        pid_read, pid_write = os.pipe()
        status = _fork_twice()
        if status is None:
            os.setsid()
            _take_files(files)
            os.environ.update(request["variables"])
            # It was looked up for the job that started the server.
            tempfile.tempdir = None
            os.write(pid_write, str(os.getpid()).encode())
            for descriptor in (pid_read, pid_write):
                os.close(descriptor)
            channel.close()
            return list(request["argv"])
        for descriptor in (pid_write, *files):
            os.close(descriptor)
        channel.send(f"-{status}".encode() if status else os.read(pid_read, _MAX_PID_BYTES))
        os.close(pid_read)


def _fork_twice() -> int | None:
    """None in the grandchild, which has lost its parent by then; else 0, or the errno of a fork."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        child = os.fork()
    except OSError as error:
        return error.errno
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    between = os.getpid()
    try:
        grandchild = os.fork()
    except OSError as error:
        os._exit(error.errno or 1)
    if grandchild:
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.001)
    return None


def _take_files(files: list[int]) -> None:
    """Make the first the standard input, and the second the output."""
    standard_input, output = files
    for number, descriptor in enumerate((standard_input, output, output)):
        os.dup2(descriptor, number)
    for descriptor in files:
        os.close(descriptor)


if __name__ == "__main__":
    end(code_of(main))
