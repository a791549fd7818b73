"""What a ring's collectives do with variables and arrays, the same for each framework."""

import ml_dtypes
import numpy as np
import pytest

from edl_horovod.frameworks.packing import LARGE_BYTES
from edl_horovod.frameworks.values import Array, Rows
from tests.parallel.agreement import assert_same_everywhere

KINDS = ["float32", "bfloat16", "float64", "float16", "bool", "uint32", "int64", "int8", "uint8"]
KINDS += ["complex64"]


def numbers(kind, shape, *, are_there=True):
    """Numbers of a type, or zeros."""
    dtype = ml_dtypes.bfloat16 if kind == "bfloat16" else kind
    values = (np.arange(np.prod(shape)) % 99 + 1).reshape(shape).astype(dtype)
    return values if are_there else np.zeros_like(values)


@pytest.mark.parametrize("kind", ["float32", "float64", "int64", "int32"])
def test_sums_are_those_of_all_ranks_and_leave_a_ranks_own_values_alone(world, framework, kind):
    mine = numbers(kind, (2, 3)) * (world.rank + 1)
    before = mine.copy()
    total = framework.collectives.sum(mine, f"test.sum.{kind}")
    weight = sum(range(1, world.size + 1))
    np.testing.assert_array_equal(total, numbers(kind, (2, 3)) * weight)
    np.testing.assert_array_equal(mine, before)
    assert total.dtype == mine.dtype


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_sums_of_integers_wrap_around(world, framework, kind):
    shared = np.random.default_rng(5)
    bits = np.iinfo(kind)
    rows = shared.integers(bits.min, bits.max, (world.size, 100_001), kind, endpoint=True)
    rows[:, :2] = [bits.max, bits.min]
    total = framework.collectives.sum(rows[world.rank], f"test.wrap.{kind}")
    np.testing.assert_array_equal(total, rows.sum(0, dtype=kind))
    assert total.dtype == kind


def test_rows_of_integers_are_gathered_in_the_order_of_the_ranks(world, framework):
    rows = framework.collectives.gather_rows([world.rank, -(2**62)], "test.rows")
    assert rows.tolist() == [[rank, -(2**62)] for rank in range(world.size)]


def test_each_rank_receives_the_row_of_bytes_for_it_from_each_other(world, framework):
    rows = np.array([[world.rank, to, 255] for to in range(world.size)], np.uint8)
    received = framework.collectives.exchange(rows, "test.exchange")
    assert received.tolist() == [[rank, world.rank, 255] for rank in range(world.size)]
    assert received.dtype == np.uint8


@pytest.mark.parametrize("root", [0, 1])
def test_variables_of_every_type_and_size_become_those_of_the_root(world, framework, root):
    give = int(world.rank == root)
    large = LARGE_BYTES + 4
    shapes = [(), (3,), (0, 2), (5, 7), (large,)]
    values = [numbers(kind, shape, are_there=give) for kind in KINDS for shape in shapes]
    variables = [framework.variable(str(n), value) for n, value in enumerate(values)]
    variables.append(Array(np.arange(9.0) * give))
    framework.collectives.broadcast(variables, root, f"test.broadcast.{root}")
    expected = [numbers(kind, shape) for kind in KINDS for shape in shapes]
    for variable, value in zip(variables, [*expected, np.arange(9.0)], strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
        assert variable.numpy().dtype == value.dtype
    assert_same_everywhere([variable.numpy() for variable in variables])


def test_rows_of_every_type_are_written_where_they_differ(world, framework):
    give = 1 if world.rank == 1 else 0
    values = [framework.variable(kind, numbers(kind, (10, 4), are_there=give)) for kind in KINDS]
    array = Array(np.arange(40.0).reshape(10, 4) * give)
    parts = [Rows(variable, 2, 5) for variable in [*values, array]]
    whole = framework.variable("whole", np.int32(7 * give))
    number = framework.collectives.broadcast_rows(
        [*parts, Rows(whole)], world.rank, 1, "test.broadcast_rows"
    )
    assert number == 1
    assert_same_everywhere([part.variable.numpy()[2:5] for part in parts])
    assert whole.numpy() == 7
    for kind, variable in zip(KINDS, values, strict=True):
        expected = numbers(kind, (10, 4), are_there=give)
        expected[2:5] = numbers(kind, (10, 4))[2:5]
        np.testing.assert_array_equal(variable.numpy(), expected)
    expected = np.arange(40.0).reshape(10, 4) * give
    expected[2:5] = np.arange(8, 20).reshape(3, 4)
    np.testing.assert_array_equal(array.numpy(), expected)


def test_a_blank_copy_is_another_variable_of_the_same_kind(world, framework):
    variables = [framework.variable("a", numbers("bfloat16", (3, 2))), Array(np.arange(4))]
    blank = framework.collectives.blank_like(variables)
    for variable, other in zip(variables, blank, strict=True):
        before = variable.numpy().copy()
        assert tuple(variable.shape) == tuple(other.shape)
        assert np.dtype(variable.dtype.name) == np.dtype(other.dtype.name)
        other.assign(np.zeros_like(before))
        np.testing.assert_array_equal(variable.numpy(), before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checksum_follows_from_the_bits_alone(world, framework, kind):
    value = numbers(kind, (5, 3))
    variable, other = (framework.variable(name, value) for name in "ab")
    checksum = framework.collectives.checksum
    assert checksum(variable) == checksum(other) == checksum(Array(value))
    assert 0 <= checksum(variable) < 2**63
    changed = value.copy()
    changed[4, 2] = 0
    other.assign(changed)
    assert checksum(variable) != checksum(other)
    assert_same_everywhere([np.int64(checksum(variable))])
