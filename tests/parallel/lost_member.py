"""Rings that lose a member in the middle of a large collective: what do the others see of it?

Run as a program; it prints one line a survivor: how it ended, how long after the loss it knew, and
how long after that it had asked for one more sum in vain and left the ring.
The ranks are forks of one process that has loaded Horovod, so that their start costs little.
"""

import argparse
import contextlib
import math
import os
import random
import signal
import sys
import time

import numpy as np

from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.job.lifeline import end_with_parent
from tests.parallel.forks import PATIENCE_SECONDS, fork, serve
from tests.parallel.places import GLOO_SECONDS, set_horovod, set_place
from tests.parallel.ring_framework import ring_framework

FRAMEWORK = ring_framework()
NUM_QUIET_STEPS = 3
NUM_VALUES = 100
LOST = 0
"""The source of a broadcast, because the others need nobody else; of sums, any."""
LENGTHS = (1_000, 8_000_000)
"""Of the tensors of a step, each reduced by itself. A message of a later one is longer."""


def reduce_until_lost(rank, size, say):
    """Sum the same tensors again and again; all sums must be right until there is an error."""
    arrays = [np.full(length, rank + 1, np.float32) for length in LENGTHS]
    right = float(sum(range(1, size + 1)))
    step = 0
    while True:
        sums = FRAMEWORK.add_all(arrays, "sums")
        if not all(np.all(total == right) for total in sums):
            say(("wrong", time.monotonic()))
            return
        step += 1
        if step == NUM_QUIET_STEPS:
            say("trains")


def broadcast_until_lost(rank, size, say):
    """The same with long messages from rank 0 into variables, several in one call."""
    values = np.full(5_000_000, rank + 1, np.float32)
    variables = [FRAMEWORK.variable(str(number), values) for number in range(4)]
    for step in range(1, 1_000_000):
        for variable in variables:
            variable.assign(values)
        FRAMEWORK.collectives.broadcast(variables, 0, "variables")
        if not all(np.all(variable.numpy() == 1.0) for variable in variables):
            say(("wrong", time.monotonic()))
            return
        if step == NUM_QUIET_STEPS:
            say("trains")


def begin_until_lost(rank, size, say):
    """Begin ever more sums that the lost rank never begins, as amid a long backward pass."""
    import horovod.torch as hvd
    import torch

    from edl_horovod.frameworks.torch.collectives import catch_failures

    say("trains")
    if rank == LOST:
        signal.pause()
    with catch_failures():
        for number in range(1_000_000):
            hvd.allreduce_async_(torch.zeros(NUM_VALUES), op=hvd.Sum, name=f"begun.{number}")


KINDS = {
    "sums": reduce_until_lost,
    "broadcasts": broadcast_until_lost,
    # In PyTorch alone.
    "begun": begin_until_lost,
}


def be_rank(rank, size, port, token, kind, say):
    """One member until the ring breaks."""
    end_with_parent()
    set_place(rank, size, port, token)
    set_horovod(ELASTIC=0, LOG_LEVEL="fatal", DISABLE_GROUP_FUSION=1, FUSION_THRESHOLD=0)
    FRAMEWORK.horovod.form_inherited()
    try:
        KINDS[kind](rank, size, say)
    except CollectiveFailed:
        say(("error", time.monotonic()))
    try:
        FRAMEWORK.collectives.sum(np.zeros(1), "afterwards")
    except CollectiveFailed:
        say(("refused", time.monotonic()))
    FRAMEWORK.horovod.leave()
    say(("left", time.monotonic()))


def all_of(said):
    """All that a fork still says, until it ends."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while said.poll(max(0.0, deadline - time.monotonic())):
        try:
            yield said.recv()
        except EOFError:
            return


def begin_ring(member, size, kind):
    """Fork a rendezvous and the members of a ring, and wait until they train."""
    server, address = fork(serve, GLOO_SECONDS)
    port, token = address.recv()
    ranks = [fork(member, rank, size, port, token, kind) for rank in range(size)]
    for _, said in ranks:
        assert said.poll(PATIENCE_SECONDS)
        assert said.recv() == "trains"
    return server, ranks


def lose_one(size, kind):
    """Form a ring, kill a member of it in the middle, and say how the others ended."""
    server, ranks = begin_ring(be_rank, size, kind)
    time.sleep(random.uniform(0.0, 0.1))
    lost = random.randrange(size) if kind == "sums" else LOST
    os.kill(ranks[lost][0], signal.SIGKILL)
    at = time.monotonic()
    for rank, (pid, said) in enumerate(ranks):
        words = list(all_of(said))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # Where it hangs; it is a zombie otherwise.
        how, when = words[0] if words else ("nothing", time.monotonic())
        left = words[-1][1] if len(words) == 3 else math.inf
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            how = signal.Signals(os.WTERMSIG(status)).name
        if rank != lost:
            sys.stdout.write(f"{how} {when - at:.3f} {left - when:.3f}\n")
            sys.stdout.flush()  # Before the next fork.
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("size", type=int)
    parser.add_argument("times", type=int)
    args = parser.parse_args()
    for _ in range(args.times):
        lose_one(args.size, args.kind)
    return 0


if __name__ == "__main__":
    sys.exit(main())
