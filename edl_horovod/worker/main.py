"""The process of one rank: `python -m edl_horovod.worker --config config.yaml`.

It gets warm first (imports, model, traced steps, open data), and only then asks for a place in a
ring. Who deals the places shows in its environment: the job's coordinator, horovodrun, or mpirun.
"""

import argparse
import faulthandler
import logging
import os
import socket
from pathlib import Path

from edl_horovod.config import resolved
from edl_horovod.errors import EdlError
from edl_horovod.job import log as logs
from edl_horovod.job.earlier import with_checkpoint_lanes
from edl_horovod.job.lifeline import end_with_parent
from edl_horovod.worker import container, fork_server
from edl_horovod.worker.environment import WorkerEnvironment
from edl_horovod.worker.imports import import_all

__all__ = ["main"]

log = logging.getLogger("edl_horovod.worker")


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
    container.begin(environment.ready_file)
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
