"""A newcomer is given the state bit by bit while steps go on, and has the same bits in the end."""

import keras
import pytest
import tensorflow as tf

from edl_horovod.frameworks.keras.collectives import KerasCollectives
from edl_horovod.ring.state import Counters, RingState
from tests.parallel.agreement import assert_same_everywhere
from tests.parallel.ranks.keras.test_step import LANES, Side

OPTIMIZERS = [
    lambda: keras.optimizers.Adam(0.01, amsgrad=True, use_ema=True),
    lambda: keras.optimizers.Ftrl(0.01),
    lambda: keras.optimizers.Lamb(0.01),
    lambda: keras.optimizers.Nadam(0.01, global_clipnorm=0.5),
]


class Spread(Side):
    """Ranks of a ring with the newcomers among them, which have no lanes until they have all."""

    def __init__(self, world, newcomers, steps=4, **methods):
        super().__init__(world, methods=methods)
        holders = [rank for rank in range(world.size) if rank not in newcomers]
        self.counters = Counters()
        if world.rank in newcomers:
            for variable in self.trainer.variables.values():
                variable.assign(tf.zeros_like(variable) + tf.cast(world.rank, variable.dtype))
        self.state = RingState(
            self.trainer.variables,
            self.counters,
            KerasCollectives(),
            groups=self.trainer.groups,
            join_share=0.5,
        )
        self.go(holders, range(steps))
        if world.rank not in newcomers:
            self.counters.step = steps

    def go(self, holders, steps):
        part = self.world.among(holders)
        if part is not None:
            self.stream.restart(part.lanes(LANES), steps.start, steps.stop)
        for _ in steps:
            batch = self.stream.next_batch() if part is not None else None
            self.trainer.step(batch, wants_change=False, is_alone=False, salt=0)


pytestmark = pytest.mark.usefixtures("small_slices")


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, len(OPTIMIZERS)))]
)
def test_newcomers_have_the_bits_of_the_others_when_all_has_come(world, number):
    newcomers = range(1, world.size)
    side = Spread(world, newcomers, create_optimizer=OPTIMIZERS[number])
    assert side.trainer.groups
    side.state.sync(world, may_stream=True)
    assert side.state.is_whole == (world.rank not in newcomers)
    assert side.state.own_step == (4 if side.state.is_whole else -1)
    num_slices = 0
    while side.state.is_streaming:
        assert side.state.holders(world) == [0]
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


def test_what_is_left_is_sent_at_once_where_all_must_have_it(world):
    side = Spread(world, range(1, world.size))
    side.state.sync(world, may_stream=True)
    side.go([0], range(4, 5))
    side.state.commit()
    side.state.stream_on(hurries=world.is_leader)
    assert side.state.must_send_all
    assert not side.state.is_whole or world.is_leader
    side.state.complete()
    assert side.state.own_step == 5
    assert_same_everywhere(side.weights())


@pytest.mark.parametrize("may_stream", [True, False])
def test_the_leader_says_whether_the_state_is_streamed(world, may_stream):
    side = Spread(world, range(1, world.size))
    side.state.sync(world, may_stream=may_stream == world.is_leader)
    assert side.state.is_streaming == may_stream
    side.state.complete()
    assert_same_everywhere(side.weights())
