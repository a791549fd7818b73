"""The main process of a worker pod with several slots: one worker process for each.

`python -m edl_horovod.cluster.pod.worker --config FILE --slots N`. A worker that fails starts again
here, so the other slots of the pod train on. A pod with one slot needs none of this: its worker is
its main process.
"""

import argparse
import logging
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from edl_horovod.cluster.pod.environment import PodEnvironment
from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import EdlError
from edl_horovod.job import log as logs
from edl_horovod.job.directory import JobDir
from edl_horovod.job.earlier import was_filled_by
from edl_horovod.job.events import EventLog
from edl_horovod.supervisor.plan import Command
from edl_horovod.supervisor.processes import end_all
from edl_horovod.supervisor.slots import Slots

__all__ = ["main"]

log = logging.getLogger("edl_horovod.cluster.pod.worker")  # Run as a program: called __main__.

NEEDED = ("EDL_HOST", "EDL_SECRET_FILE", "EDL_READY_FILE")
POLL_SECONDS = 0.2


def main() -> int:
    """Keep the pod's workers running until the job or the pod ends; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", type=Path, required=True, help="the job's resolved config.yaml")
    parser.add_argument("--slots", type=int, required=True, help="workers to keep")
    args = parser.parse_args()
    try:
        config = resolved.load(args.config)
        logs.setup("pod", level=config.log_level)
        _keep(config, args.config, args.slots, PodEnvironment.of(os.environ, *NEEDED))
    except EdlError as error:
        log.error("%s", error)
        return error.exit_code
    return 0


def _keep(
    config: JobConfig, config_file: Path, num_slots: int, environment: PodEnvironment
) -> None:
    job_dir, host = JobDir.of(config), environment.host
    # The manifest names the file of slot 0.
    ready = environment.ready_file.with_name("{slot}")
    for left in ready.parent.glob("*"):  # Left by a killed container of this pod.
        left.unlink()
    argv = (sys.executable, "-m", "edl_horovod.worker", "--config", str(config_file))
    command = Command(argv=argv, environment={"EDL_READY_FILE": str(ready)}, can_fork=True)
    is_leaving = False

    def leave(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_leaving
        is_leaving = True

    signal.signal(signal.SIGTERM, leave)
    job_dir.enter(config_file)
    with EventLog(job_dir.events, host) as events:
        backoff = config.elastic.restart_backoff_seconds
        slots = Slots(command, None, events, backoff_seconds=backoff, host=host)
        slots.num_wanted = num_slots
        try:
            while not is_leaving and not _is_over(job_dir, environment.secret_file):
                slots.keep()
                time.sleep(POLL_SECONDS)
        finally:
            # Workers leave their ring after their step, and are killed if they do not.
            end_all(slots.processes, seconds=config.kubernetes.grace_seconds)


def _is_over(job_dir: JobDir, secret_file: Path) -> bool:
    """Whether this job has its result.

    An earlier job's is there until this job's launcher removes it and then writes the identity.
    """
    return job_dir.result.exists() and was_filled_by(job_dir, secret_file)


if __name__ == "__main__":
    sys.exit(main())
