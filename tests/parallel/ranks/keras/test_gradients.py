"""However gradients travel, a ring gives what one process gives on the whole global batch (D17)."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from edl_horovod.frameworks.keras.collectives import sum_compressed
from edl_horovod.frameworks.keras.gradients import add_over_ring
from edl_horovod.frameworks.keras.step import KerasStep
from edl_horovod.frameworks.step_options import Reduction, StepOptions
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.zoo import load_spec
from tests.arrays import assert_close
from tests.parallel.agreement import assert_rounded_twice_at_most, assert_same_everywhere
from tests.parallel.side import ALONE, ZOO

BATCH, STEPS = 12, 12
SPEC = ({"ids": tf.TensorSpec((None, 3), tf.int32)}, tf.TensorSpec((None,), tf.int32))


def train(world, optimizer, options):
    """Train on random ids, most of them small ones; some ranks have no examples in some steps.

    Returns:
        The losses, and the variables.
    """
    keras.utils.set_random_seed(5)
    loaded = load_spec(ZOO, "branches", params={"optimizer": optimizer})
    trainer = KerasStep(loaded, SPEC, learning_rate=None, options=options)
    random = np.random.default_rng(7)
    losses = []
    for step in range(STEPS):
        ids = random.zipf(1.5, (BATCH, 3)).clip(0, 499).astype(np.int32)
        owner = (np.arange(BATCH) + step) * (step % 3) % world.size
        mine = ids[owner == world.rank]
        labels = mine.sum(1) % 3
        batch = Batch(
            features={"ids": tf.constant(mine)},
            labels=tf.constant(labels, tf.int32),
            num_examples=len(mine),
        )
        sums = trainer.step(
            batch if len(mine) else None, wants_change=False, is_alone=world.is_alone, salt=0
        )
        losses.append(sums.loss)
    return losses, [variable.numpy() for variable in trainer.variables.values()]


def assert_as_alone(world, optimizer, options, **tolerance):
    losses, weights = train(world, optimizer, options)
    assert_same_everywhere([losses, *weights])
    if not world.is_leader:
        return
    # How sums travel is nothing to a process that has all of them.
    alone = dataclasses.replace(options, reduction=Reduction())
    expected_losses, expected = train_alone(optimizer, alone)
    np.testing.assert_allclose(losses, expected_losses, **tolerance)
    assert_close(weights, expected, **tolerance)


@functools.cache
def train_alone(optimizer, options):
    return train(ALONE, optimizer, options)


@pytest.mark.long(after=1)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("bucket_bytes", [1, 300, 1 << 20])
def test_buckets_of_any_size_and_sparse_rows_give_the_same(world, optimizer, bucket_bytes):
    options = StepOptions(clip_norm=0.5, reduction=Reduction(bucket_bytes=bucket_bytes))
    assert_as_alone(world, optimizer, options, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("compression", ["none", "bf16"])
def test_buckets_of_a_rank_whose_sums_are_all_alike_meet_those_of_the_others(world, compression):
    reduction = Reduction(bucket_bytes=1, compression=compression)

    @tf.function(autograph=False)
    def add(zero):
        of_leader = 1.0 if world.is_leader else 0.0
        sums = [tf.fill([100], zero + number * of_leader) for number in range(4)]
        return add_over_ring(sums, [tf.fill([2], zero)], reduction)

    totals = [total.numpy() for total in add(tf.constant(0.0))]
    assert [total.max() for total in totals] == [0.0, 1.0, 2.0, 3.0, 0.0]


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    "options",
    [StepOptions(clip_value=0.01), StepOptions(scales_loss=True), StepOptions(num_parts=2)],
    ids=["cut", "scaled", "parts"],
)
def test_rows_of_an_embedding_are_bounded_and_scaled_as_arrays_are(world, options):
    assert_as_alone(world, "sgd", options, rtol=2e-4, atol=2e-5)


@pytest.mark.long(after=1)
@pytest.mark.parametrize("compression", ["bf16", "fp16"])
def test_a_compressed_training_is_that_of_one_process_within_its_precision(world, compression):
    reduction = Reduction(bucket_bytes=300, compression=compression, batch_size=BATCH)
    options = StepOptions(reduction=reduction)
    tolerance = {"bf16": 1e-2, "fp16": 2e-3}[compression]
    assert_as_alone(world, "sgd", options, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("compression", ["bf16", "fp16"])
def test_compressed_sums_are_rounded_twice_at_most(world, compression):
    def sum_up(values):
        for number, value in enumerate(map(tf.constant, values)):
            (total,) = sum_compressed([value], f"test.{compression}.{number}", compression, 8)
            yield total.numpy()

    assert_rounded_twice_at_most(world, compression, sum_up)
