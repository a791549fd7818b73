"""What Horovod and Gloo say when a ring breaks or cannot form, each said by a real failure.

Run as a program; it prints one JSON object a failure: its kind, Horovod's text, and what the
adapter makes of it. `tests/unit/frameworks/test_horovod.py` keeps these texts.
"""

import asyncio
import json
import os
import signal
import sys
import time

import numpy as np

from edl_horovod.coordinator.forming import Rendezvous
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.job.lifeline import end_with_parent
from tests.parallel.forks import PATIENCE_SECONDS
from tests.parallel.lost_member import begin_ring
from tests.parallel.never_connected import neighbour
from tests.parallel.places import place_of
from tests.parallel.ring_framework import NAME, ring_framework

FRAMEWORK = ring_framework()
TIMEOUT_SECONDS = 3


def eager_sum(value):
    """A sum as the ring makes it between steps."""
    return FRAMEWORK.collectives.sum(value, "eager")


def make_graph_sum():
    """A sum inside a graph, as a training step of Keras has it."""
    import tensorflow as tf

    from edl_horovod.frameworks.keras.collectives import catch_failures, sum_grouped

    @tf.function(autograph=False)
    def graph_sum(value):
        return sum_grouped([value], "graph")[0]

    def run(value):
        with catch_failures():
            graph_sum(value)

    return run


def failure_of(kind, function, *args):
    """The kind, Horovod's text, and what the adapter makes of it."""
    try:
        function(*args)
    except CollectiveFailed as failure:
        said = failure.__cause__
        text = str(getattr(said, "message", said))
        cause = {"kind": kind, "type": type(said).__name__, "text": text}
        return {**cause, "message": str(failure), "unreached": sorted(failure.unreached)}
    raise AssertionError(f"{kind}: nothing failed")


LENGTHS = {"eager": 1000, "graph": 1000, "large": 20_000_000}
"""Elements of what is summed; a large sum breaks in the middle, another between two sums."""


def again_and_again(function, value):
    """Call it until it raises."""
    while True:
        function(value)


def be_rank(rank, size, port, token, kind, say):
    """Train until the other one is lost, then ask once more."""
    end_with_parent()
    os.environ.update(HOROVOD_GLOO_IFACE="lo", HOROVOD_LOG_LEVEL="fatal")
    FRAMEWORK.horovod.form_assigned(place_of(rank, port, token), timeout_seconds=TIMEOUT_SECONDS)
    step = make_graph_sum() if kind == "graph" else eager_sum
    value = np.ones(LENGTHS[kind], np.float32)
    step(value)
    say("trains")
    say(failure_of(f"{kind}, a member is lost", again_and_again, step, value))
    say(failure_of(f"{kind}, after the loss", step, value))


def lose_one(kind):
    """Kill a member of a ring of two; what the other one says."""
    server, ranks = begin_ring(be_rank, 2, kind)
    time.sleep(0.05)
    os.kill(ranks[1][0], signal.SIGKILL)
    for _ in range(2):
        assert ranks[0][1].poll(PATIENCE_SECONDS)
        yield ranks[0][1].recv()
    os.kill(server, signal.SIGKILL)
    for pid in (server, *(pid for pid, _ in ranks)):
        os.waitpid(pid, 0)


async def form_with(host):
    """Form a ring whose other member only says where it listens, if it says anything."""
    async with Rendezvous("127.0.0.1", wait_seconds=TIMEOUT_SECONDS) as server:
        place = place_of(0, server.port, server.token)
        form = asyncio.create_task(
            asyncio.to_thread(
                FRAMEWORK.horovod.form_assigned, place, timeout_seconds=TIMEOUT_SECONDS
            )
        )
        if host is not None:
            await neighbour(server, host)
        await form


def form_without_rendezvous():
    """Form a ring whose rendezvous has ended."""
    FRAMEWORK.horovod.form_assigned(place_of(0, 1, "gone"), timeout_seconds=TIMEOUT_SECONDS)


def failures():
    """One of each kind."""
    for kind in LENGTHS if NAME == "keras" else LENGTHS.keys() - {"graph"}:
        yield from lose_one(kind)
    # Of two addresses the one that is greater connects, and the other waits.
    for kind, host in (
        ("forming, nobody listens", "127.0.0.0"),
        ("forming, nobody connects", "127.255.255.254"),
        ("forming, no address", None),
    ):
        yield failure_of(kind, asyncio.run, form_with(host))
    yield failure_of("forming, no rendezvous", form_without_rendezvous)


if __name__ == "__main__":
    os.environ["HOROVOD_GLOO_IFACE"] = "lo"
    for failure in failures():
        sys.stdout.write(json.dumps(failure) + "\n")
        sys.stdout.flush()  # Before the next fork.
