"""A newcomer is given the state bit by bit while steps go on, and has the same bits in the end."""

import keras
import numpy as np
import pytest

from edl_horovod.frameworks.keras.framework import KerasFramework
from edl_horovod.models.zoo import load_spec
from edl_horovod.spec import Mode
from tests.jobs import training
from tests.parallel import side
from tests.parallel.agreement import assert_same_everywhere
from tests.parallel.ranks.keras.test_step import Side
from tests.parallel.side import BATCH, ZOO, Spread

OPTIMIZERS = [
    lambda: keras.optimizers.Adam(0.01, amsgrad=True, use_ema=True),
    lambda: keras.optimizers.Ftrl(0.01),
    lambda: keras.optimizers.Lamb(0.01),
    lambda: keras.optimizers.Nadam(0.01, global_clipnorm=0.5),
]


class PhasedSide(side.Side):
    """A training in phases."""

    def __init__(self, world):
        super().__init__(world)
        framework = KerasFramework()
        framework.begin(slot=0, seed=3)
        loaded = load_spec(ZOO, "gan", params={})
        self.stream = framework.batches(self.reader, self.plan, loaded, Mode.TRAINING, prefetch=2)
        self.trainer = framework.step(loaded, self.stream.element_spec, training(BATCH))


def spread(world, create_optimizer=OPTIMIZERS[0]):
    """The leader with the state, and all others as newcomers with other weights."""
    return with_newcomers(Side(world, methods={"create_optimizer": create_optimizer}))


def with_newcomers(side):
    world = side.world
    if not world.is_leader:
        for name, variable in side.trainer.variables.items():
            if name == "phases":  # Which phases are due is known to all before the first step.
                continue
            value = np.asarray(variable.numpy())
            variable.assign(np.full_like(value, world.rank))
    return Spread(side, range(1, world.size))


pytestmark = pytest.mark.usefixtures("small_slices")


@pytest.mark.long(after=1)
@pytest.mark.parametrize("number", range(len(OPTIMIZERS)))
def test_newcomers_have_the_bits_of_the_others_when_all_has_come(world, number):
    spread(world, OPTIMIZERS[number]).assert_newcomers_get_the_bits_of_the_others()


@pytest.mark.long
def test_so_have_newcomers_to_a_training_in_phases(world):
    with_newcomers(PhasedSide(world)).assert_newcomers_get_the_bits_of_the_others()


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
