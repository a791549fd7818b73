"""The weighted step: any ring gives what one process gives on the whole global batch (D6, D7).

That process is rank 0, as soon as the ring is done: the ranks have the same bits, so it compares
for all of them.
"""

import functools
from types import MappingProxyType

import keras
import numpy as np
import pytest
import tensorflow as tf

from edl_horovod.frameworks.keras.batches import KerasBatches
from edl_horovod.frameworks.keras.metrics import MetricCall
from edl_horovod.frameworks.keras.step import NO_OPTIONS, KerasStep
from edl_horovod.frameworks.step_options import StepOptions
from edl_horovod.models.zoo import load_spec
from edl_horovod.spec import Mode
from tests.parallel import side
from tests.parallel.agreement import assert_same_everywhere
from tests.parallel.side import ALONE, KEEP_EVERY, LANES, NUM_RECORDS, ZOO, assert_as_alone
from tests.specs import with_methods


class Side(side.Side):
    def __init__(
        self,
        world,
        mode=Mode.TRAINING,
        options=NO_OPTIONS,
        model="tiny",
        methods=MappingProxyType({}),
        **params,
    ):
        super().__init__(world, mode)
        keras.utils.set_random_seed(3)
        self.loaded = loaded = with_methods(load_spec(ZOO, model, params=params), **methods)
        self.stream = KerasBatches(self.reader, self.plan, loaded, mode, prefetch=2)
        self.trainer = KerasStep(
            loaded, self.stream.element_spec, learning_rate=None, options=options
        )


@pytest.mark.long(after=1)
@pytest.mark.parametrize("keep_every", KEEP_EVERY)
def test_ring_gives_the_weights_of_one_process(world, keep_every):
    assert_as_alone(Side, world, loss_rtol=1e-5, keep_every=keep_every)


SUMS_ALL = StepOptions(sums_batch_norm=True, scales_loss=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("keep_every", "synchronized", "options"),
    [
        (1, True, NO_OPTIONS),
        (7, False, SUMS_ALL),
        (60, True, NO_OPTIONS),
    ],
    ids=["all, by the layer", "some, by the setting", "few"],
)
def test_batch_norm_over_all_ranks_is_that_of_one_process(world, keep_every, synchronized, options):
    how = {"keep_every": keep_every, "options": options, "norm": {"synchronized": synchronized}}
    assert_as_alone(Side, world, 1e-6, atol=1e-12, **how)


# Bounds are for the ring's mean gradient, not for a rank's; parts are cut of a rank's examples.
@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    "options",
    [
        StepOptions(clip_norm=0.3),
        StepOptions(clip_value=0.05),
        StepOptions(num_parts=3),
        StepOptions(scales_loss=True, clip_norm=0.3),
    ],
    ids=["norm", "value", "parts", "scaled"],
)
def test_shaped_gradients_are_those_of_one_process(world, options):
    if (single := assert_as_alone(Side, world, keep_every=7, options=options)) is not None:
        is_bounded = bool(options.clip_norm or options.clip_value)
        first = single.weights()[0]
        assert np.allclose(first, unbounded_weights(), rtol=1e-4, atol=1e-6) != is_bounded


@functools.cache
def unbounded_weights():
    plain = Side(ALONE, keep_every=7)
    plain.train()
    return plain.weights()[0]


@pytest.mark.parametrize("model", ["tiny", "steep"])
def test_a_bad_loss_or_gradient_on_one_rank_changes_no_weights_anywhere(world, model):
    ring = Side(world, model=model, bad_id=5)
    sums, before = ring.train_to_bad_record(5)
    assert not sums.is_finite
    for old, new in zip(before, ring.weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.world_size(2, 3)
def test_one_rank_that_knows_of_a_change_tells_all(world):
    ring = Side(world)
    ring.stream.restart(world.lanes(LANES), 0, 1)
    assert ring.step(wants_change=world.rank == world.size - 1).wants_change


def test_evaluation_is_that_of_one_process(world):
    ours, _ = Side(world, Mode.EVALUATION, keep_every=7).evaluate()
    assert_same_everywhere(list(ours.values()))
    if not world.is_leader:
        return
    expected, sums = Side(ALONE, Mode.EVALUATION, keep_every=7).evaluate()
    assert sums.num_examples == len(range(0, NUM_RECORDS, 7))
    assert list(ours) == ["loss", "absolute_error"]
    assert ours == pytest.approx(expected, rel=1e-6)


def test_metrics_that_are_no_means_are_those_of_keras_over_all_examples(world):
    auc, r2 = keras.metrics.AUC(), keras.metrics.R2Score()

    def metrics(outputs, labels):
        return {"auc": MetricCall(auc, labels > 0, tf.sigmoid(outputs), "auc"), "r2": r2}

    side = Side(world, Mode.EVALUATION, keep_every=7)
    side.loaded.spec.create_metrics = metrics
    ours, _ = side.evaluate()

    # Keras alone, and all records as one batch.
    side.stream.restart(range(LANES), 0, side.plan.steps_per_epoch)
    batches = [side.stream.next_batch() for _ in range(side.plan.steps_per_epoch)]
    labels = tf.concat([batch.labels for batch in batches if batch], 0)
    features = tf.concat([batch.features["x"] for batch in batches if batch], 0)
    outputs = side.trainer.model.keras({"x": features})
    serial_auc, serial_r2 = keras.metrics.AUC(), keras.metrics.R2Score()
    serial_auc.update_state(labels > 0, tf.sigmoid(outputs))
    serial_r2.update_state(labels, outputs)
    np.testing.assert_allclose(ours["auc"], serial_auc.result(), rtol=1e-6)
    np.testing.assert_allclose(ours["r2"], serial_r2.result(), rtol=1e-5)
