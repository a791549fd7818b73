"""Members of a ring as forks of a process that has loaded Horovod: their start costs little."""

import asyncio
import os
from multiprocessing import Pipe

from edl_horovod.coordinator.forming import Rendezvous
from edl_horovod.job.lifeline import end_with_parent

PATIENCE_SECONDS = 40


def serve(wait_seconds, say):
    """A rendezvous for one ring, in a process of its own: forks and threads do not go together."""
    end_with_parent()

    async def run():
        async with Rendezvous("127.0.0.1", wait_seconds=wait_seconds) as rendezvous:
            say((rendezvous.port, rendezvous.token))
            await asyncio.Event().wait()  # Until it is killed.

    asyncio.run(run())


def fork(function, *args):
    """Run a function in a fork; its pid, and what it says."""
    ours, forks = Pipe()
    pid = os.fork()
    if pid == 0:
        ours.close()
        try:
            function(*args, forks.send)
        finally:
            os._exit(0)
    forks.close()
    return pid, ours
