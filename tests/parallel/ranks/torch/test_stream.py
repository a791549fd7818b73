"""A newcomer is given a PyTorch training's state bit by bit, and has the same bits in the end."""

import numpy as np
import pytest

from edl_horovod.frameworks.torch.ring import FRAMEWORK
from edl_horovod.ring.state import Counters, RingState
from tests.parallel.agreement import assert_same_everywhere
from tests.parallel.ranks.torch.test_step import Side
from tests.parallel.side import LANES, Spread

KINDS = ["SGD", "Adam", "NAdam", "Adafactor"]


pytestmark = pytest.mark.usefixtures("small_slices")


def change_newcomers(world, side, names):
    """Give newcomers other values of these variables."""
    if not world.is_leader:
        for variable in map(side.trainer.variables.get, names):
            variable.assign(np.full_like(variable.numpy(), world.rank))


@pytest.mark.parametrize("kind", KINDS)
def test_newcomers_have_the_bits_of_the_others_when_all_has_come(world, kind):
    side = Spread(Side(world, batch_norm=True, kind=kind), range(1, world.size))
    names = [n for n in side.trainer.variables if not n.startswith("optimizer/") and n != "random"]
    change_newcomers(world, side, names)
    side.assert_newcomers_get_the_bits_of_the_others()


def test_so_have_newcomers_to_a_training_in_phases(world):
    side = Spread(Side(world, model="torch_gan"), range(1, world.size))
    change_newcomers(world, side, side.trainer.model_variables)
    side.assert_newcomers_get_the_bits_of_the_others()


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
        side.step()
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
