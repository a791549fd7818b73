"""The weighted step: any ring gives what one process gives on the whole global batch (D6, D7).

That process is rank 0, as soon as the ring is done: the ranks have the same bits, so it compares
for all of them.
"""

import functools
import os
from pathlib import Path
from types import MappingProxyType

import keras
import numpy as np
import pytest
import tensorflow as tf

from edl_horovod.frameworks.keras.batches import KerasBatches
from edl_horovod.frameworks.keras.collectives import KerasCollectives
from edl_horovod.frameworks.keras.metrics import MetricCall
from edl_horovod.frameworks.keras.step import NO_OPTIONS, KerasStep
from edl_horovod.frameworks.step_options import StepOptions
from edl_horovod.frameworks.values import Array
from edl_horovod.frameworks.world import World
from edl_horovod.models.zoo import load_spec
from edl_horovod.records.index import Index
from edl_horovod.records.plan import DataPlan
from edl_horovod.records.reader import Reader
from edl_horovod.ring.state import Counters, RingState
from edl_horovod.spec import Mode
from edl_horovod.tasks.evaluate import Evaluator
from tests.parallel.agreement import UNWATCHED, assert_same_everywhere
from tests.records import write_records
from tests.specs import with_methods

ZOO = str(Path(__file__).parents[3] / "zoo")
ALONE = World(rank=0, size=1, generation=1)
NUM_RECORDS, BATCH, LANES, STEPS = 100, 24, 6, 9


class Side:
    """One way to train: as a rank of the ring, or as one process on everything."""

    def __init__(
        self,
        world,
        mode=Mode.TRAINING,
        options=NO_OPTIONS,
        model="tiny",
        methods=MappingProxyType({}),
        **params,
    ):
        scratch = Path(os.environ["RING_SCRATCH"]) / f"data-{os.environ['HOROVOD_RANK']}"
        index = Index.open(write_records(scratch, NUM_RECORDS))
        self.world = world
        self.plan = DataPlan(
            block_starts=index.block_starts,
            block_counts=index.block_counts,
            global_batch=BATCH,
            num_lanes=LANES,
            window=16,
            is_shuffled=mode is Mode.TRAINING,
        )
        keras.utils.set_random_seed(3)
        loaded = with_methods(load_spec(ZOO, model, params=params), **methods)
        self.stream = KerasBatches(Reader(index), self.plan, loaded, mode, prefetch=2)
        self.trainer = KerasStep(
            loaded, self.stream.element_spec, learning_rate=None, options=options
        )
        self.loaded = loaded

    def train(self, steps=STEPS):
        lanes = self.world.lanes(LANES)
        self.stream.restart(lanes, 0, steps)
        return [
            self.trainer.step(
                self.stream.next_batch(), wants_change=False, is_alone=self.world.is_alone, salt=0
            )
            for _ in range(steps)
        ]

    def evaluator(self):
        evaluation = self.trainer.model.evaluation(self.stream.element_spec)
        return Evaluator(evaluation, self.stream, self.plan, KerasCollectives())

    def weights(self):
        return [variable.numpy().copy() for variable in self.trainer.variables.values()]


# keep_every=1: ranks of 3 hold equal parts, but not in the tail. 7: most ranks hold nothing in
# some steps. 60: whole steps hold nothing.
@pytest.mark.parametrize("keep_every", [1, 7, pytest.param(60, marks=pytest.mark.long)])
def test_ring_gives_the_weights_of_one_process(world, keep_every):
    ring = Side(world, keep_every=keep_every)
    in_ring = ring.train()
    assert_same_everywhere(ring.weights())
    if not world.is_leader:
        return
    single = Side(ALONE, keep_every=keep_every)
    alone = single.train()
    for ours, theirs in zip(in_ring, alone, strict=True):
        assert ours.num_examples == theirs.num_examples
        np.testing.assert_allclose(ours.loss, theirs.loss, rtol=1e-5)
    for ours, theirs in zip(ring.weights(), single.weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


SUMS_ALL = StepOptions(sums_batch_norm=True, scales_loss=True)


@pytest.mark.parametrize(
    ("keep_every", "synchronized", "options"),
    [
        (1, True, NO_OPTIONS),
        (7, False, SUMS_ALL),
        pytest.param(60, True, NO_OPTIONS, marks=pytest.mark.long),
    ],
    ids=["all, by the layer", "some, by the setting", "few"],
)
def test_batch_norm_over_all_ranks_is_that_of_one_process(world, keep_every, synchronized, options):
    how = {"keep_every": keep_every, "options": options, "norm": {"synchronized": synchronized}}
    ring = Side(world, **how)
    in_ring = ring.train()
    assert_same_everywhere(ring.weights())
    if not world.is_leader:
        return
    single = Side(ALONE, **how)
    losses = [each.loss for each in single.train()]
    assert [each.loss for each in in_ring] == pytest.approx(losses, rel=1e-6, nan_ok=True)
    for ours, theirs in zip(ring.weights(), single.weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-12)


# Bounds are for the ring's mean gradient, not for a rank's; parts are cut of a rank's examples.
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
    ring = Side(world, keep_every=7, options=options)
    ring.train()
    assert_same_everywhere(ring.weights())
    if not world.is_leader:
        return
    single = Side(ALONE, keep_every=7, options=options)
    single.train()
    for ours, theirs in zip(ring.weights(), single.weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
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
    per_epoch = ring.plan.steps_per_epoch
    order = ring.plan.order(0)
    bad_step = next(s for s in range(per_epoch) if 5 in order.records(s, range(LANES)))
    ring.train(bad_step)
    before = ring.weights()
    ring.stream.restart(world.lanes(LANES), bad_step, bad_step + 1)
    sums = ring.trainer.step(
        ring.stream.next_batch(), wants_change=False, is_alone=world.is_alone, salt=0
    )
    assert not sums.is_finite
    for old, new in zip(before, ring.weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.world_size(2, 3)
def test_one_rank_that_knows_of_a_change_tells_all(world):
    ring = Side(world)
    ring.stream.restart(world.lanes(LANES), 0, 1)
    is_last = world.rank == world.size - 1
    sums = ring.trainer.step(ring.stream.next_batch(), wants_change=is_last, is_alone=False, salt=0)
    assert sums.wants_change


@pytest.mark.world_size(2, 3)
def test_sync_takes_the_most_advanced_rank(world):
    values = tf.Variable([float(world.rank), -0.0]), Array([world.rank])
    counters = Counters(step={0: -1, 1: 12}.get(world.rank, 3))
    state = RingState(dict(zip("ab", values, strict=True)), counters, KerasCollectives())
    state.sync(world)
    assert state.step == 12
    assert values[0].numpy().tolist() == [1.0, -0.0]
    assert values[1].numpy().tolist() == [1]


def test_evaluation_is_that_of_one_process(world):
    def metrics(on):
        side = Side(on, Mode.EVALUATION, keep_every=7)
        evaluator = side.evaluator()
        evaluator.restart(on, 0)
        sums = evaluator.local_sums(evaluator.num_steps, UNWATCHED)
        return evaluator.metrics(evaluator.over_ring(sums, on)), sums

    ours, _ = metrics(world)
    assert_same_everywhere(list(ours.values()))
    if not world.is_leader:
        return
    theirs, sums = metrics(ALONE)
    assert sums.num_examples == len(range(0, NUM_RECORDS, 7))
    assert list(ours) == ["loss", "absolute_error"]
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6)


def test_metrics_that_are_no_means_are_those_of_keras_over_all_examples(world, monkeypatch):
    side = Side(world, Mode.EVALUATION, keep_every=7)
    auc, r2 = keras.metrics.AUC(), keras.metrics.R2Score()
    monkeypatch.setattr(
        side.loaded.spec,
        "create_metrics",
        lambda outputs, labels: {
            "auc": MetricCall(auc, labels > 0, tf.sigmoid(outputs), "auc"),
            "r2": r2,
        },
    )
    evaluator = side.evaluator()
    evaluator.restart(world, 0)
    ours = evaluator.metrics(
        evaluator.over_ring(evaluator.local_sums(evaluator.num_steps, UNWATCHED), world)
    )

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
