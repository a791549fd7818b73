"""The coordinator's process: `python -m edl_horovod.coordinator --job-dir DIR`.

It ends with the job; `result.json` in the job's directory then holds the outcome. It also ends at
SIGTERM, once workers that were asked to end as well have saved the job's state; and at once when
its standard input is closed, so that it never outlives a launcher that was killed.
"""

import argparse
import asyncio
import errno
import logging
import os
import signal
import ssl
import sys
from pathlib import Path

from edl_horovod.config import resolved
from edl_horovod.coordinator import tls, wire
from edl_horovod.coordinator.server import Coordinator
from edl_horovod.coordinator.settings import CoordinatorSettings
from edl_horovod.errors import EdlError, OutputError, hint_of
from edl_horovod.job import log as logs
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import CoordinatorEvent, EventLog
from edl_horovod.job.lifeline import end_with_parent

log = logging.getLogger("edl_horovod.coordinator")  # Run as a program, it is called __main__.

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO)
"""After these errors the launcher does not restart the coordinator: it would fail again."""


def main() -> int:
    """Run one job's coordinator; returns the process' exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--job-dir", type=Path, required=True)
    parser.add_argument("--address", default="127.0.0.1", help="address that the workers can reach")
    parser.add_argument("--port", type=int, default=0, help="where workers call; 0 takes any")
    parser.add_argument("--secret-file", type=Path, help="default: secret in the job's directory")
    parser.add_argument("--authority", type=Path, help="accept only workers with its certificates")
    args = parser.parse_args()
    job_dir = JobDir(args.job_dir)
    config = resolved.load(job_dir.config)
    logs.setup("coordinator", level=config.log_level)
    end_with_parent()
    wire.allow_open_files()
    with EventLog(job_dir.events, "coordinator") as events:
        events.write(CoordinatorEvent(pid=os.getpid()))
        settings = CoordinatorSettings(
            job_dir=job_dir,
            address=args.address,
            port=args.port,
            secret=(args.secret_file or job_dir.secret).read_bytes(),
            tls=_tls(args.authority) if args.authority else None,
            config=config,
        )
        coordinator = Coordinator(settings, events)
        try:
            asyncio.run(_serve(coordinator))
        except EdlError as error:
            log.error("%s", error)  # The launcher shows the last line of this log.
            return error.exit_code
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                raise
            unwritable = OutputError(
                f"The job's directory cannot be written any more: {error}.",
                received={"job_dir": job_dir.path},
                hint=hint_of(error),
            )
            log.error("%s", unwritable)
            return OutputError.exit_code
    return 0


def _tls(authority: Path) -> ssl.SSLContext:
    # A new certificate at each start, so that it does not expire before those of the parties.
    identity = tls.sign(authority.read_text(), tls.COORDINATOR)
    return tls.context(identity, tls.MESSAGES, tls.RENDEZVOUS, is_server=True)


async def _serve(coordinator: Coordinator) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, coordinator.end_soon)
    await coordinator.run()


if __name__ == "__main__":
    sys.exit(main())
