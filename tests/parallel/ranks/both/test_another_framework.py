"""A framework of the tests on a ring: compression of gradients, and newcomers while steps go on."""

import numpy as np
import pytest

from edl_horovod.frameworks.values import Batch
from edl_horovod.models.zoo import load_spec
from edl_horovod.ring.state import Counters, RingState
from tests import numpy_framework
from tests.jobs import training
from tests.parallel.agreement import assert_same_everywhere
from tests.parallel.side import ZOO

X = np.random.default_rng(7).normal(size=(48, 40, 200))
Y = X.sum(axis=2, keepdims=True) * 0.5


def part(step, rank, size):
    """A rank's examples of a step."""
    x, y = X[step][rank::size], Y[step][rank::size]
    return Batch(x, y, len(x))


@pytest.fixture
def make_step(framework):
    """A step of a line on the collectives of this ring, of 200 columns."""
    on_ring = numpy_framework.Framework(framework.collectives)

    def make(**settings):
        loaded = load_spec(ZOO, "line", params={})
        loaded.spec.create_model = lambda: np.zeros((200, 1))
        loaded.spec.create_optimizer = lambda lr=0.1: (lr, 0.5)
        return on_ring.step(loaded, part(0, 0, 1), training(40, settings))

    return make


def run(step, ranks, rank, steps):
    """Run steps, with examples on these ranks alone."""
    for number in steps:
        batch = part(number, ranks.index(rank), len(ranks)) if rank in ranks else None
        step.step(batch, wants_change=False, is_alone=False, salt=0)


@pytest.mark.parametrize("compression", ["none", "bf16", "fp16"])
def test_a_ring_gets_what_one_rank_gets(world, make_step, compression):
    ring, alone = make_step(compression=compression), make_step()
    run(ring, range(world.size), world.rank, range(12))
    for number in range(12):
        alone.step(part(number, 0, 1), wants_change=False, is_alone=True, salt=0)
    assert_same_everywhere([ring.model.kernel.numpy()])
    ours, whole = ring.model.kernel.numpy(), alone.model.kernel.numpy()
    tolerance = {"none": 1e-9, "bf16": 1e-2, "fp16": 2e-3}[compression]
    np.testing.assert_allclose(ours, whole, atol=tolerance, rtol=0)


@pytest.mark.parametrize("small_slices", [200], indirect=True)
@pytest.mark.parametrize("compression", ["none", "bf16"])
def test_a_newcomer_is_given_the_state_while_steps_go_on(
    world, make_step, framework, small_slices, compression
):
    step, counters = make_step(compression=compression), Counters()
    if world.is_leader:
        counters.step = 4
    else:
        step.model.kernel.assign(np.full((200, 1), float(world.rank)))
    state = RingState(
        step.variables, counters, framework.collectives, groups=step.groups, join_share=0.5
    )
    run(step, [0], world.rank, range(4))
    state.sync(world, may_stream=True)
    assert state.is_streaming
    num_slices = 0
    while state.is_streaming:
        run(step, state.holders(world), world.rank, [state.step])
        state.commit()
        state.stream_on(hurries=False)
        num_slices += 1
    assert num_slices > 3
    assert_same_everywhere([variable.numpy() for variable in step.variables.values()])
    run(step, state.holders(world), world.rank, range(state.step, state.step + 3))
    assert state.holders(world) == list(range(world.size))
    assert_same_everywhere([variable.numpy() for variable in step.variables.values()])
