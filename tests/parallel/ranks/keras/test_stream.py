"""A newcomer is given the state bit by bit while steps go on, and has the same bits in the end."""

import keras
import pytest
import tensorflow as tf

from tests.parallel.agreement import assert_same_everywhere
from tests.parallel.ranks.keras.test_step import Side
from tests.parallel.side import Spread

OPTIMIZERS = [
    lambda: keras.optimizers.Adam(0.01, amsgrad=True, use_ema=True),
    lambda: keras.optimizers.Ftrl(0.01),
    lambda: keras.optimizers.Lamb(0.01),
    lambda: keras.optimizers.Nadam(0.01, global_clipnorm=0.5),
]


def spread(world, create_optimizer=OPTIMIZERS[0]):
    """The leader with the state, and all others as newcomers with other weights."""
    side = Side(world, methods={"create_optimizer": create_optimizer})
    if not world.is_leader:
        for variable in side.trainer.variables.values():
            variable.assign(tf.zeros_like(variable) + tf.cast(world.rank, variable.dtype))
    return Spread(side, range(1, world.size))


pytestmark = pytest.mark.usefixtures("small_slices")


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, len(OPTIMIZERS)))]
)
def test_newcomers_have_the_bits_of_the_others_when_all_has_come(world, number):
    spread(world, OPTIMIZERS[number]).assert_newcomers_get_the_bits_of_the_others()


def test_what_is_left_is_sent_at_once_where_all_must_have_it(world):
    side = spread(world)
    side.state.sync(world, may_stream=True)
    side.go([0], range(4, 5))
    side.state.commit()
    side.state.stream_on(hurries=world.is_leader)
    assert side.state.must_send_all
    assert not side.state.is_whole or world.is_leader
    side.state.complete()
    assert side.state.own_step == 5
    assert_same_everywhere(side.side.weights())


@pytest.mark.parametrize("may_stream", [True, False])
def test_the_leader_says_whether_the_state_is_streamed(world, may_stream):
    side = spread(world)
    side.state.sync(world, may_stream=may_stream == world.is_leader)
    assert side.state.is_streaming == may_stream
    side.state.complete()
    assert_same_everywhere(side.side.weights())
