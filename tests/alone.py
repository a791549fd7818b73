"""The only rank of a ring, in this process and without a launcher."""

import contextlib
from pathlib import Path

from edl_horovod.frameworks.world import World
from edl_horovod.job.events import EventLog
from edl_horovod.job.identity import WorkerIdentity
from edl_horovod.ring import loop
from edl_horovod.ring.membership.base import Dismissed, Membership
from edl_horovod.tasks.warm import make_warm

ME = WorkerIdentity(host="localhost", slot=0)


class Alone(Membership):
    """A ring of one that is over after some steps, as by SIGTERM; 0 means never."""

    def __init__(self, last_step=0):
        super().__init__(None)
        self._last_step = last_step
        self._step = 0
        self._has_joined = False

    def join(self, step):
        if self._has_joined:
            raise Dismissed("the test has seen enough")
        self._has_joined = True
        return World(rank=0, size=1, generation=1)

    def wants_change(self):
        # Asked for before a step and heeded after it.
        return self._step == self._last_step - 1

    def progress(self, step):
        self._step = step

    def failed(self, failure, step):
        raise AssertionError(failure)


def run_alone(config, events, until=0, identity=ME, membership=None):
    """Run a job's task to its end, or for some steps, and append its events to a file."""
    Path(config.job_dir).mkdir(exist_ok=True)
    with (
        EventLog(events, "test") as log,
        make_warm(config, log, identity) as work,
        contextlib.suppress(Dismissed),
    ):
        return loop.run(work, membership or Alone(until), log)
