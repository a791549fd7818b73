"""What a sync gives the ranks of a ring, the same for each framework."""

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks import packing
from edl_horovod.frameworks.values import Array
from edl_horovod.ring.state import Counters, RingState
from tests.parallel.agreement import assert_same_everywhere
from tests.parallel.ranks.both.test_collectives import KINDS, numbers


@pytest.mark.world_size(2, 3)
def test_sync_copies_variables_of_every_type_and_size(world, framework):
    large = 2 * packing.LARGE_BYTES
    # More of the small ones than are sent at once.
    shapes = [*[(60_000,)] * 10, (30, 5, large // 150), ()]
    give = world.rank == 1
    variables = {
        f"{kind}.{number}": framework.variable(kind, numbers(kind, shape, are_there=give))
        for kind in KINDS
        for number, shape in enumerate(shapes)
    }
    variables["array"] = Array(np.arange(3000.0).reshape(30, 100) * give)
    variables["rank"] = Array([world.rank])
    variables["signed"] = framework.variable("signed", np.float32([world.rank, -0.0]))
    counters = Counters(step={0: -1, 1: 5}.get(world.rank, 3))
    RingState(variables, counters, framework.collectives).sync(world)
    assert counters.step == 5
    assert_same_everywhere([variable.numpy() for variable in variables.values()])
    expected = numbers("float32", shapes[10])
    np.testing.assert_array_equal(variables["float32.10"].numpy(), expected)
    assert variables["rank"].numpy().tolist() == [1]
    assert variables["signed"].numpy().tobytes() == np.float32([1.0, -0.0]).tobytes()


@pytest.mark.world_size(2, 3)
def test_ranks_with_the_same_bits_copy_nothing(world, framework):
    copied = []

    class Watched(type(framework.collectives)):
        def broadcast(self, variables, root, name):
            copied.extend(variables)
            super().broadcast(variables, root, name)

    collectives = Watched()
    same = framework.variable("same", np.arange(5.0))
    other = framework.variable("other", np.array([float(world.rank)]))
    RingState({"same": same}, Counters(step=4), collectives).sync(world)
    assert copied == []
    variables = {"same": same, "other": other}
    RingState(variables, Counters(step=4), collectives).sync(world)
    assert [variable is other for variable in copied] == [True]
    assert other.numpy().tolist() == [0.0]


@pytest.mark.world_size(2, 3)
@pytest.mark.parametrize(
    ("others", "named"),
    [
        ({"b": (3, 5), "c": ()}, ["b (float32[3, 4])", "b (float32[3, 5])"]),
        ({"b": (3, 4), "d": ()}, ["c (float32[])", "d (float32[])"]),
        ({"b": (3, 4)}, ["c (float32[])", "none"]),
    ],
    ids=["another shape", "another name", "fewer"],
)
def test_ranks_with_other_variables_are_told_the_first_that_differs(
    world, framework, others, named
):
    shapes = {"a": (2,)} | (others if world.rank == world.size - 1 else {"b": (3, 4), "c": ()})
    variables = {
        name: framework.variable(name, np.zeros(shape, np.float32))
        for name, shape in shapes.items()
    }
    state = RingState(variables, Counters(), framework.collectives)
    with pytest.raises(UserCodeError) as error:
        state.sync(world)
    assert all(text in str(error.value) for text in (*named, f"rank {world.size - 1}"))
    assert_same_everywhere([np.frombuffer(str(error.value).encode(), np.uint8)])


@pytest.mark.world_size(2)
def test_the_numbers_that_keras_gives_layers_make_no_difference(world, framework):
    name = f"dense{'_7' * world.rank}/kernel"
    state = RingState({name: Array([float(world.rank)])}, Counters(), framework.collectives)
    state.sync(world)
    assert state.variables[name].numpy().tolist() == [0.0]
