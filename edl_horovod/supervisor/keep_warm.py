"""Warm workers for plain horovodrun: `python -m edl_horovod.supervisor.keep_warm --config C`.

It runs on each host that may get ranks. A worker in each slot gets warm and waits, until a process
that horovodrun launches there (`edl_horovod.worker.shim`) takes it over. When a worker ends, the
next one gets warm.
"""

import argparse
import logging
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from edl_horovod.config import resolved
from edl_horovod.errors import EdlError, Interrupted
from edl_horovod.job import log as logs
from edl_horovod.job.events import EventLog
from edl_horovod.job.warm_workers import private_folder, socket_folder
from edl_horovod.supervisor.plan import Command
from edl_horovod.supervisor.processes import end_all
from edl_horovod.supervisor.slots import Slots

__all__ = ["main"]

log = logging.getLogger("edl_horovod.keep_warm")  # Run as a program, it is called __main__.

POLL_SECONDS = 0.2


def main() -> int:
    """Keep workers warm until SIGTERM; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", type=Path, required=True, help="the job's resolved config.yaml")
    parser.add_argument("--slots", type=int, default=1, help="ranks that this host may have")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        config = resolved.load(args.config)
        logs.setup("keep_warm", level=config.log_level)
        _keep(args.config, args.slots, backoff_seconds=config.elastic.restart_backoff_seconds)
    except KeyboardInterrupt:
        return Interrupted.exit_code
    except EdlError as error:
        log.error("%s", error)
        return error.exit_code


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _keep(config: Path, num_slots: int, *, backoff_seconds: float) -> NoReturn:
    folder = private_folder(socket_folder(config))
    worker = (sys.executable, "-m", "edl_horovod.worker", "--config", str(config), "--wait")
    with EventLog(folder / "keep_warm.jsonl", os.uname().nodename) as events:
        command = Command(argv=worker, can_fork=True)
        slots = Slots(command, folder, events, backoff_seconds=backoff_seconds)
        slots.num_wanted = num_slots
        try:
            while True:
                slots.keep()
                time.sleep(POLL_SECONDS)
        finally:
            end_all(slots.processes)


if __name__ == "__main__":
    sys.exit(main())
