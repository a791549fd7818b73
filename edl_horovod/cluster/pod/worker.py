"""The main process of a worker pod with several slots: one worker process for each.

`python -m edl_horovod.cluster.pod.worker --config FILE --slots N`. A worker that fails starts again
here, so the other slots of the pod train on. A pod with one slot needs none of this: its worker is
its main process.
"""

import argparse
import os
import sys
from pathlib import Path

from edl_horovod.cluster.pod.environment import require_variables
from edl_horovod.config.schema import JobConfig
from edl_horovod.job.directory import JobDir
from edl_horovod.job.earlier import was_filled_by
from edl_horovod.job.events import EventLog
from edl_horovod.supervisor.plan import Command
from edl_horovod.supervisor.programs import end_requested, run_program
from edl_horovod.supervisor.slots import Slots

NEEDED = ("EDL_HOST", "EDL_SECRET_FILE", "EDL_READY_FILE")


def main() -> int:
    """Keep the pod's workers running until the job or the pod ends; returns the exit code."""
    slots = {"type": int, "required": True, "help": "workers to keep"}
    return run_program(__doc__, _keep, source="pod", slots=slots)


def _keep(config: JobConfig, args: argparse.Namespace) -> None:
    require_variables(os.environ, NEEDED)
    host, secret_file, ready_file = (os.environ[name] for name in NEEDED)
    job_dir = JobDir.of(config)
    # The manifest names the file of slot 0.
    ready = Path(ready_file).with_name("{slot}")
    for left in ready.parent.glob("*"):  # Left by a killed container of this pod.
        left.unlink()
    argv = (sys.executable, "-m", "edl_horovod.worker", "--config", str(args.config))
    command = Command(argv=argv, environment={"EDL_READY_FILE": str(ready)}, can_fork=True)
    is_leaving = end_requested()
    job_dir.enter(args.config)
    with EventLog(job_dir.events, host) as events:
        backoff = config.elastic.restart_backoff_seconds
        slots = Slots(command, None, events, backoff_seconds=backoff, host=host)
        slots.num_wanted = args.slots
        slots.keep_until(
            lambda: is_leaving() or _is_over(job_dir, Path(secret_file)),
            job_events=job_dir.events,
            grace_seconds=config.kubernetes.grace_seconds,
        )


def _is_over(job_dir: JobDir, secret_file: Path) -> bool:
    """Whether this job has its result.

    An earlier job's is there until this job's launcher removes it and then writes the identity.
    """
    return job_dir.result.exists() and was_filled_by(job_dir, secret_file)


if __name__ == "__main__":
    sys.exit(main())
