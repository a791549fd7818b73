"""Warm workers for plain horovodrun: `python -m edl_horovod.supervisor.keep_warm --config C`.

It runs on each host that may get ranks. A worker in each slot gets warm and waits, until a process
that horovodrun launches there (`edl_horovod.worker.shim`) takes it over. When a worker ends, the
next one gets warm.
"""

import argparse
import os
import signal
import sys
from types import FrameType

from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import Interrupted
from edl_horovod.job.events import EventLog
from edl_horovod.job.warm_workers import private_folder, socket_folder
from edl_horovod.supervisor.plan import Command
from edl_horovod.supervisor.programs import run_program
from edl_horovod.supervisor.slots import Slots


def main() -> int:
    """Keep workers warm until SIGTERM; returns the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    slots = {"type": int, "default": 1, "help": "ranks that this host may have"}
    try:
        return run_program(__doc__, _keep, source="keep_warm", slots=slots)
    except KeyboardInterrupt:
        return Interrupted.exit_code


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _keep(config: JobConfig, args: argparse.Namespace) -> None:
    folder = private_folder(socket_folder(args.config))
    worker = (sys.executable, "-m", "edl_horovod.worker", "--config", str(args.config), "--wait")
    with EventLog(folder / "keep_warm.jsonl", os.uname().nodename) as events:
        command = Command(argv=worker, can_fork=True)
        backoff_seconds = config.elastic.restart_backoff_seconds
        slots = Slots(command, folder, events, backoff_seconds=backoff_seconds)
        slots.num_wanted = args.slots
        slots.keep_until(lambda: False)


if __name__ == "__main__":
    sys.exit(main())
