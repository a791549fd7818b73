"""The process of one rank: `python -m edl_horovod.worker --config config.yaml`.

It gets warm first (imports, model, traced steps, open data), and only then asks for a place in a
ring. Who deals the places shows in its environment: the job's coordinator, horovodrun, or mpirun.
"""

import argparse
import contextlib
import faulthandler
import gc
import importlib
import logging
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from edl_horovod.config import resolved
from edl_horovod.config.frameworks import require_backend
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import EdlError
from edl_horovod.job import log as logs
from edl_horovod.job.earlier import with_checkpoint_lanes
from edl_horovod.job.lifeline import end_with_parent
from edl_horovod.models.framework_name import framework_name
from edl_horovod.worker import fork_server
from edl_horovod.worker.environment import WorkerEnvironment, begin_container

__all__ = [
    "code_of",
    "end",
    "import_all",
    "main",
]

log = logging.getLogger("edl_horovod.worker")

LAST_WORDS_SECONDS = 5.0
"""Longest wait for the reader of this process' output."""


def main() -> int:
    """Be a worker until dismissed; returns the process' exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", type=Path, required=True, help="the job's resolved config.yaml")
    parser.add_argument(
        "--wait", action="store_true", help="get warm, then wait for edl_horovod.worker.shim"
    )
    parser.add_argument(
        "--fork-server", type=int, metavar="FD", help="be forked as often as is asked over a socket"
    )
    args = parser.parse_args()
    if args.fork_server is not None:
        import_all(resolved.load(args.config))
        command = fork_server.serve(socket.socket(fileno=args.fork_server))
        # From here on this is a worker like any other: the server itself never comes back.
        args = parser.parse_args(command[command.index("--config") :])
    faulthandler.enable()
    environment = WorkerEnvironment.of(os.environ)
    end_with_parent()
    begin_container(environment.ready_file)
    try:
        config = with_checkpoint_lanes(resolved.load(args.config))
        logs.setup(environment.identity.label, level=config.log_level)
        import_all(config)
        # Only now: these import what takes long.
        from edl_horovod.worker.rank import work
        from edl_horovod.worker.stand_in import work_when_launched

        return (work_when_launched if args.wait else work)(config, args.config, environment)
    except EdlError as error:
        log.error("%s", error)
        return error.exit_code


def import_all(config: JobConfig) -> None:
    """Import nothing of the user's, and nothing that starts a thread.

    Raises:
        ConfigError: Keras is asked to compute with a backend that the ring does not have.
    """
    require_backend(framework_name(config), os.environ)
    # Read at import by TensorFlow, and at every trace of a collective by Horovod.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("HOROVOD_LOG_LEVEL", "error")
    os.environ["HOROVOD_ELASTIC"] = "1"
    # A bucket is one message already: fusing several would only make Horovod's buffer larger.
    os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", str(config.train.bucket_bytes))
    gc.disable()
    try:
        importlib.import_module("edl_horovod.worker.stand_in")
        importlib.import_module("edl_horovod.tasks.warm").framework_of(config)
        # It lives as long as the process: the collector need not look through it again.
        gc.freeze()
    finally:
        gc.enable()


def code_of(main: Callable[[], int]) -> int:
    """The exit code of a process' main function, whatever it raises."""
    try:
        return main()
    except SystemExit as ending:  # Of argparse.
        return int(ending.code or 0)
    except BaseException:  # The interpreter would print it and end, and that end may never come.
        traceback.print_exc()
        return 1


def end(code: int, *, last_words_seconds: float = LAST_WORDS_SECONDS) -> NoReturn:
    """End this process at once; everything that must be closed is closed by now.

    The interpreter's own end would destroy TensorFlow's iterators. They wait for their threads, and
    a thread that is about to run the user's Python waits for the interpreter for ever. An error
    here would have the same effect, and the reader of the output may be gone or stuck.
    """
    last = threading.Timer(last_words_seconds, os._exit, [code])
    last.daemon = True
    last.start()
    for say in (logging.shutdown, sys.stdout.flush, sys.stderr.flush):
        with contextlib.suppress(OSError):
            say()
    os._exit(code)


if __name__ == "__main__":
    end(code_of(main))
