"""A ring of PyTorch steps in this process: a thread for each rank, and sums by hand."""

import contextlib
import threading

import numpy as np
import torch

from edl_horovod.frameworks.torch.running import ComputeOptions
from edl_horovod.frameworks.torch.step import TorchStep
from edl_horovod.frameworks.values import Batch
from tests.jobs import NO_OPTIONS
from tests.thread_ring import Ring

CPU = ComputeOptions(torch.device("cpu"))
WAIT_SECONDS = 60


class Meeting(Ring):
    """Where the ranks add up what they have; one that fails lets the others fail, too."""

    def sum(self, rank, arrays):
        # Copies: a rank that is done goes on to change its own arrays.
        rows = self.exchange(rank, [np.array(array) for array in arrays], "arrays")
        return [np.sum(parts, axis=0) for parts in zip(*rows, strict=True)]

    def leave(self):
        self._barrier.abort()


class Reducer:
    """Takes the mean at the end of what the backward pass has made."""

    def __init__(self, parameters, meeting, rank):
        self._parameters, self._meeting, self._rank = list(parameters.values()), meeting, rank

    def begin(self, weight):
        self._weight = weight

    def finish(self, small, weight):
        flags = np.array([float(parameter.grad is not None) for parameter in self._parameters])
        own = [
            torch.zeros_like(parameter) if parameter.grad is None else self._weight * parameter.grad
            for parameter in self._parameters
        ]
        arrays = [small, flags, np.array(weight), *(gradient.numpy() for gradient in own)]
        small, flags, weight, *sums = self._meeting.sum(self._rank, arrays)
        for parameter, flag, total in zip(self._parameters, flags, sums, strict=True):
            mean = torch.from_numpy(np.asarray(total)) / (float(weight) or 1.0)
            parameter.grad = mean if flag else None
        return small

    def add(self, values, name):
        (total,) = self._meeting.sum(self._rank, [values.numpy()])
        values.copy_(torch.from_numpy(np.asarray(total)))

    def abandon(self):
        if self._meeting is not None:
            self._meeting.leave()


def batches_of_sines(num_batches, size):
    """A small regression problem."""
    random = torch.Generator().manual_seed(7)
    for _ in range(num_batches):
        x = torch.randn(size, 4, generator=random)
        yield Batch({"x": x}, torch.sin(x.sum(1, keepdim=True)), size)


def make_step(loaded, example, *, options=NO_OPTIONS, meeting=None, rank=0, **settings):
    torch.manual_seed(3)
    return TorchStep(
        loaded,
        example,
        compute=settings.pop("compute", CPU),
        learning_rate=settings.pop("learning_rate", None),
        options=options,
        make_reducer=lambda parameters, reduction, sparse: Reducer(parameters, meeting, rank),
    )


def train_in_ring(steps, batches_of):
    """Run steps on all ranks at once.

    Args:
        steps: One `TorchStep` for each rank.
        batches_of: From a rank to its batches, None where it has no examples.

    Returns:
        What each step gave, of every rank.
    """
    sums_by_rank = [[] for _ in steps]
    failures = [None for _ in steps]

    def run(rank):
        try:
            for batch in batches_of(rank):
                sums_by_rank[rank].append(
                    steps[rank].step(batch, wants_change=False, is_alone=len(steps) == 1, salt=rank)
                )
        except Exception as error:
            failures[rank] = error
            with contextlib.suppress(AttributeError):
                steps[rank]._reducer.abandon()

    threads = [
        threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(steps))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
    if failure := next(
        (e for e in failures if e is not None and not isinstance(e, threading.BrokenBarrierError)),
        None,
    ):
        raise failure
    return sums_by_rank


def part_of(batch, rank, size, keep=lambda number: True):
    """A rank's examples of a batch, those of some places; None for none."""
    chosen = [n for n in range(batch.num_examples)[rank::size] if keep(n)]
    if not chosen:
        return None
    features, labels = ({k: v[chosen] for k, v in batch.features.items()}, batch.labels[chosen])
    weights = None if batch.weights is None else batch.weights[chosen]
    return Batch(features, labels, len(chosen), weights)


def state_of(step):
    return {name: variable.numpy() for name, variable in step.variables.items()}
