"""PyTorch steps that break between two buckets: what do the survivors have, and how do they go on?

Run as a program with the way in which a member of three is lost (`killed`, `stopped`); each
survivor prints how long it waited, and whether the ring that they form next makes the right sums.
"""

import os
import signal
import sys
import time

import numpy as np
import torch

from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.step_options import Reduction
from edl_horovod.frameworks.torch.collectives import HOROVOD
from edl_horovod.frameworks.torch.ring import Reducer
from edl_horovod.job.lifeline import end_with_parent
from tests.parallel.forks import PATIENCE_SECONDS, fork, serve
from tests.parallel.places import GLOO_SECONDS, place_of

TIMEOUT_SECONDS = 4
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
NUM_LAYERS, WIDTH = 4, 300
LOST = 2
"""The rank that is lost; of several, whoever is its neighbour in Gloo's ring notices first."""


def step(layers, reducer, rank, number):
    """One step on examples of this rank's own; gives mean gradients, and the sum of the ranks."""
    layers.zero_grad(set_to_none=True)
    reducer.begin(1)
    layers(torch.full((2, WIDTH), 1e-3 * (rank + number))).sum().backward()
    (ranks,) = reducer.finish(np.array([float(rank)]), 1)
    return torch.cat([parameter.grad.flatten() for parameter in layers.parameters()]).clone(), ranks


def expected(layers, ranks, number):
    """What the ring's mean must be."""
    layers.zero_grad(set_to_none=True)
    for rank in ranks:
        layers(torch.full((2, WIDTH), 1e-3 * (rank + number))).sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in layers.parameters()]) / len(ranks)


def be_rank(rank, rings, how, say):
    """Do two steps, lose a member in the third, and do two more in the next ring."""
    end_with_parent()
    os.environ.update(HOROVOD_GLOO_IFACE="lo", HOROVOD_LOG_LEVEL="fatal")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    layers = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)))
    reducer = Reducer(dict(layers.named_parameters()), Reduction(bucket_bytes=WIDTH * WIDTH * 4))
    HOROVOD.form_assigned(place_of(rank, *rings[0], size=3), timeout_seconds=TIMEOUT_SECONDS)
    for number in range(2):
        step(layers, reducer, rank, number)
    if rank == LOST:
        # The buckets of later layers are on their way.
        layers[1].weight.register_hook(lambda _: os.kill(os.getpid(), SIGNALS[how]))
    began = time.monotonic()
    try:
        step(layers, reducer, rank, 2)
        say("the step was done")
        return
    except CollectiveFailed:
        waited = time.monotonic() - began
        reducer.abandon()
    HOROVOD.form_assigned(
        place_of(rank, *rings[1], size=2, generation=2), timeout_seconds=TIMEOUT_SECONDS
    )
    results = [step(layers, reducer, rank, number) for number in (2, 3)]
    right = [expected(layers, (0, 1), number) for number in (2, 3)]
    is_right = all(
        torch.allclose(sums, right_sums, rtol=1e-4, atol=1e-6) and ranks == 1.0
        for (sums, ranks), right_sums in zip(results, right, strict=True)
    )
    HOROVOD.leave()
    say(f"{waited:.3f} {'right' if is_right else 'wrong'}")


def main(how):
    servers = [fork(serve, GLOO_SECONDS) for _ in range(2)]
    rings = [said.recv() for _, said in servers]
    ranks = [fork(be_rank, rank, rings, how) for rank in range(3)]
    for rank, (_, said) in enumerate(ranks):
        if rank != LOST:
            sys.stdout.write(said.recv() if said.poll(PATIENCE_SECONDS) else "nothing")
            sys.stdout.write("\n")
    for pid, _ in [*servers, *ranks]:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1])
