"""A newcomer is given a PyTorch training's state bit by bit, and has the same bits in the end."""

import numpy as np
import pytest

from edl_horovod.frameworks.torch.ring import FRAMEWORK
from edl_horovod.ring.state import Counters, RingState
from tests.parallel.agreement import assert_same_everywhere
from tests.parallel.ranks.torch.test_step import LANES, Side

KINDS = ["SGD", "Adam", "NAdam", "Adafactor"]


class Spread(Side):
    """Ranks of a ring with the newcomers among them, which have no lanes until they have all."""

    def __init__(self, world, newcomers, steps=4, **params):
        super().__init__(world, batch_norm=True, **params)
        holders = [rank for rank in range(world.size) if rank not in newcomers]
        self.counters = Counters()
        self.state = RingState(
            self.trainer.variables,
            self.counters,
            FRAMEWORK.collectives,
            groups=self.trainer.groups,
            join_share=0.5,
        )
        self.go(holders, range(steps))
        if world.rank in newcomers:
            for name, variable in self.trainer.variables.items():
                if not name.startswith("optimizer/") and name != "random":
                    variable.assign(np.full_like(variable.numpy(), world.rank))
        else:
            self.counters.step = steps

    def go(self, holders, steps):
        part = self.world.among(holders)
        if part is not None:
            self.stream.restart(part.lanes(LANES), steps.start, steps.stop)
        for _ in steps:
            batch = self.stream.next_batch() if part is not None else None
            self.trainer.step(batch, wants_change=False, is_alone=False, salt=0)


pytestmark = pytest.mark.usefixtures("small_slices")


@pytest.mark.parametrize("kind", KINDS)
def test_newcomers_have_the_bits_of_the_others_when_all_has_come(world, kind):
    newcomers = range(1, world.size)
    side = Spread(world, newcomers, kind=kind)
    assert side.trainer.groups
    side.state.sync(world, may_stream=True)
    assert side.state.is_whole == (world.rank not in newcomers)
    num_slices = 0
    while side.state.is_streaming:
        side.go([0], range(side.state.step, side.state.step + 1))
        side.state.commit()
        side.state.stream_on(hurries=False)
        num_slices += 1
    assert num_slices > 3
    assert side.state.own_step == 4 + num_slices
    assert_same_everywhere(side.weights())
    first = 4 + num_slices
    side.go(side.state.holders(world), range(first, first + 3))
    assert_same_everywhere(side.weights())


@pytest.mark.parametrize("kind", KINDS)
def test_a_newcomer_that_has_made_no_step_takes_all_at_once(world, kind):
    side = Side(world, kind=kind)
    counters = Counters()
    state = RingState(side.trainer.variables, counters, FRAMEWORK.collectives)
    if world.is_leader:
        side.world = type(world)(rank=0, size=1, generation=1)
        side.train(3)
        side.world, counters.step = world, 3
    state.sync(world)
    assert state.step == 3
    assert_same_everywhere(side.weights())
    side.stream.restart(world.lanes(LANES), 3, 6)
    for _ in range(3):
        side.step(side.stream.next_batch())
    assert_same_everywhere(side.weights())


def test_a_whole_learning_rate_to_which_the_leader_gave_a_fraction_is_that_everywhere(world):
    side = Side(world, kind="SGD", lr=1)
    state = RingState(side.trainer.variables, Counters(), FRAMEWORK.collectives)
    if world.is_leader:
        # As a schedule by the epoch does.
        side.trainer.optimizer.param_groups[0]["lr"] = 0.5
    state.sync(world)
    assert side.trainer.optimizer.param_groups[0]["lr"] == 0.5
    side.train()
    assert_same_everywhere(side.weights())
