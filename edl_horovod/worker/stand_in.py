"""A worker that gets warm before horovodrun launches a process, whose place it then takes."""

import logging
import os
from contextlib import nullcontext
from pathlib import Path

from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import EdlError
from edl_horovod.job import log as logs
from edl_horovod.tasks.warm import make_warm, prover_of
from edl_horovod.worker.environment import WorkerEnvironment
from edl_horovod.worker.handover import wait_for_place
from edl_horovod.worker.rank import be_rank, open_events

__all__ = ["work_when_launched"]

log = logging.getLogger("edl_horovod.worker")


def work_when_launched(config: JobConfig, config_file: Path, environment: WorkerEnvironment) -> int:
    """Get warm, wait for a process that horovodrun launches, and be the rank that it was to be."""
    identity = environment.identity
    with (
        open_events(config, config_file, environment) as events,
        prover_of(config, identity) as prover,
        make_warm(config, events, identity, prover) as work,
    ):
        launched = wait_for_place(config_file, slot=identity.slot)
        # Horovod's own library reads them, too.
        os.environ.update(launched.variables)
        environment = WorkerEnvironment.of(os.environ)
        logs.setup(environment.identity.label, level=config.log_level)
        launched.follow()
        try:
            be_rank(config, events, environment, nullcontext(work))
            code = 0
        except EdlError as error:
            log.error("%s", error)
            code = error.exit_code
        launched.report_exit(code)
    return code
