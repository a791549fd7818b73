"""One way to train: as a rank of the ring, or as one process on everything."""

import os
from pathlib import Path

import numpy as np
import pytest

from edl_horovod.frameworks.world import World
from edl_horovod.records.index import Index
from edl_horovod.records.plan import DataPlan
from edl_horovod.records.reader import Reader
from edl_horovod.ring.state import Counters, RingState
from edl_horovod.spec import Mode
from edl_horovod.tasks.evaluate import Evaluator
from tests.arrays import assert_close
from tests.parallel.agreement import UNWATCHED, assert_same_everywhere
from tests.parallel.ring_framework import ring_framework
from tests.records import write_records

ZOO = str(Path(__file__).parents[1] / "zoo")
ALONE = World(rank=0, size=1, generation=1)
NUM_RECORDS, BATCH, LANES, STEPS = 100, 24, 6, 9
KEEP_EVERY = [1, 7, pytest.param(60, marks=pytest.mark.long)]
"""1: ranks of 3 hold equal parts, but not in the tail. 7: most ranks hold nothing in some steps.
60: whole steps hold nothing."""


class Side:
    """What a framework's sides have in common; they open `self.stream` and make `self.trainer`."""

    def __init__(self, world, mode=Mode.TRAINING):
        scratch = Path(os.environ["RING_SCRATCH"]) / f"data-{os.environ['HOROVOD_RANK']}"
        index = Index.open(write_records(scratch, NUM_RECORDS))
        self.world, self.reader = world, Reader(index)
        self.plan = DataPlan(
            block_starts=index.block_starts,
            block_counts=index.block_counts,
            global_batch=BATCH,
            num_lanes=LANES,
            window=16,
            is_shuffled=mode is Mode.TRAINING,
        )

    def train(self, steps=STEPS):
        self.stream.restart(self.world.lanes(LANES), 0, steps)
        return [self.step() for _ in range(steps)]

    def step(self, *, wants_change=False):
        """A step on the next batch of the stream."""
        how = {"is_alone": self.world.is_alone, "salt": self.world.lanes(LANES).start}
        return self.trainer.step(self.stream.next_batch(), wants_change=wants_change, **how)

    def evaluator(self):
        evaluation = self.trainer.model.evaluation(self.stream.element_spec)
        return Evaluator(evaluation, self.stream, self.plan, ring_framework().collectives)

    def evaluate(self):
        """The metrics over the ring, and this rank's sums."""
        evaluator = self.evaluator()
        evaluator.restart(self.world, 0)
        sums = evaluator.local_sums(evaluator.num_steps, UNWATCHED)
        return evaluator.metrics(evaluator.over_ring(sums, self.world)), sums

    def weights(self):
        return [np.array(variable.numpy()) for variable in self.trainer.variables.values()]

    def train_to_bad_record(self, bad_id):
        """Train up to the step that has a record, and take that; its sums, and weights before."""
        order = self.plan.order(0)
        steps = range(self.plan.steps_per_epoch)
        bad_step = next(s for s in steps if bad_id in order.records(s, range(LANES)))
        self.train(bad_step)
        before = self.weights()
        self.stream.restart(self.world.lanes(LANES), bad_step, bad_step + 1)
        return self.step(), before


def assert_as_alone(side_of, world, rtol=1e-4, *, atol=None, loss_rtol=None, **settings):
    """A ring's steps and weights are those of one process, which the leader returns."""
    ring = side_of(world, **settings)
    in_ring = ring.train()
    assert_same_everywhere(ring.weights())
    if not world.is_leader:
        return None
    single = side_of(ALONE, **settings)
    for ours, expected in zip(in_ring, single.train(), strict=True):
        assert ours.num_examples == expected.num_examples
        assert ours.loss == pytest.approx(expected.loss, rel=loss_rtol or rtol, nan_ok=True)
        assert ours.metrics == pytest.approx(expected.metrics, rel=rtol, nan_ok=True)
    assert_close(ring.weights(), single.weights(), rtol=rtol, atol=atol or rtol / 100)
    return single


class Spread:
    """A side among newcomers, which have no lanes until they have all of the state."""

    def __init__(self, side, newcomers, steps=4):
        self.side, self.trainer, self.counters = side, side.trainer, Counters()
        self.is_new = side.world.rank in newcomers
        self.state = RingState(
            self.trainer.variables,
            self.counters,
            ring_framework().collectives,
            groups=self.trainer.groups,
            join_share=0.5,
        )
        self.go([rank for rank in range(side.world.size) if rank not in newcomers], range(steps))
        if not self.is_new:
            self.counters.step = steps

    def go(self, holders, steps):
        part = self.side.world.among(holders)
        if part is not None:
            self.side.stream.restart(part.lanes(LANES), steps.start, steps.stop)
        for _ in steps:
            batch = self.side.stream.next_batch() if part is not None else None
            self.trainer.step(batch, wants_change=False, is_alone=False, salt=0)

    def assert_newcomers_get_the_bits_of_the_others(self):
        """While steps go on, and when all has come."""
        world, state = self.side.world, self.state
        assert self.trainer.groups
        state.sync(world, may_stream=True)
        assert state.is_whole != self.is_new
        assert state.own_step == (-1 if self.is_new else 4)
        num_slices = 0
        while state.is_streaming:
            assert state.holders(world) == [0]
            self.go([0], range(state.step, state.step + 1))
            state.commit()
            state.stream_on(hurries=False)
            num_slices += 1
        assert num_slices > 3
        assert state.own_step == 4 + num_slices
        assert_same_everywhere(self.side.weights())
        self.go(state.holders(world), range(4 + num_slices, 7 + num_slices))
        assert_same_everywhere(self.side.weights())
