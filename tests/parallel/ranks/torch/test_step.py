"""The weighted step in PyTorch: any ring gives what one process gives (D6, D7).

That process is rank 0, as soon as the ring is done: the ranks have the same bits, so it compares
for all of them.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from edl_horovod.config.schema import TrainConfig
from edl_horovod.frameworks.torch.ring import FRAMEWORK
from edl_horovod.frameworks.world import World
from edl_horovod.models.zoo import load_spec
from edl_horovod.records.index import Index
from edl_horovod.records.plan import DataPlan
from edl_horovod.records.reader import Reader
from edl_horovod.spec import Mode
from edl_horovod.tasks.evaluate import Evaluator
from tests.parallel.agreement import UNWATCHED, assert_same_everywhere
from tests.records import write_records

ZOO = str(Path(__file__).parents[3] / "zoo")
ALONE = World(rank=0, size=1, generation=1)
NUM_RECORDS, BATCH, LANES, STEPS = 100, 24, 6, 9


class Side:
    """One way to train: as a rank of the ring, or as one process on everything."""

    def __init__(
        self,
        world,
        mode=Mode.TRAINING,
        precision="float32",
        config=None,
        model="torch_tiny",
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
        FRAMEWORK.begin(slot=0, seed=3)
        FRAMEWORK.use_precision(precision)
        loaded = load_spec(ZOO, model, params=params)
        self.stream = FRAMEWORK.batches(Reader(index), self.plan, loaded, mode, prefetch=2)
        self.trainer = FRAMEWORK.step(
            loaded,
            self.stream.element_spec,
            TrainConfig(batch_size=BATCH, bucket_bytes=100, precision=precision, **(config or {})),
        )

    def train(self, steps=STEPS):
        lanes = self.world.lanes(LANES)
        self.stream.restart(lanes, 0, steps)
        return [self.step(self.stream.next_batch()) for _ in range(steps)]

    def step(self, batch, *, wants_change=False):
        lanes = self.world.lanes(LANES)
        is_alone = self.world.is_alone
        return self.trainer.step(
            batch, wants_change=wants_change, is_alone=is_alone, salt=lanes.start
        )

    def weights(self):
        return [variable.numpy() for variable in self.trainer.variables.values()]


def assert_as_alone(world, tolerance=1e-4, **settings):
    ring = Side(world, **settings)
    in_ring = ring.train()
    assert_same_everywhere(ring.weights())
    if not world.is_leader:
        return None
    single = Side(ALONE, **settings)
    alone = single.train()
    for ours, theirs in zip(in_ring, alone, strict=True):
        assert ours.num_examples == theirs.num_examples
        assert ours.loss == pytest.approx(theirs.loss, rel=tolerance, nan_ok=True)
        assert ours.metrics == pytest.approx(theirs.metrics, rel=tolerance, nan_ok=True)
    for ours, theirs in zip(ring.weights(), single.weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance / 100)
    return single


# keep_every=1: ranks of 3 hold equal parts, but not in the tail. 7: most ranks hold nothing in
# some steps. 60: whole steps hold nothing.
@pytest.mark.parametrize("keep_every", [1, 7, pytest.param(60, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_ring_gives_the_weights_of_one_process(world, keep_every, kind):
    assert_as_alone(world, keep_every=keep_every, kind=kind)


# Bounds are for the ring's mean gradient, not for a rank's; parts are cut of a rank's examples.
@pytest.mark.parametrize(
    "config",
    [{"clip_norm": 0.3}, {"clip_value": 0.05}, {"accumulate_steps": 3}],
    ids=["norm", "value", "parts"],
)
def test_shaped_gradients_are_those_of_one_process(world, config):
    assert_as_alone(world, keep_every=7, config=config)


def test_compiled_steps_are_those_of_one_process_that_does_not_compile(world, monkeypatch):
    scratch = Path(os.environ["RING_SCRATCH"], f"programs-{os.environ['HOROVOD_RANK']}")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(scratch))
    count = torch._dynamo.utils.counters
    count.clear()
    model = {"keep_every": 7, "kind": "SGD"}
    ring = Side(world, config={"compile": True}, **model)
    ring.stream.restart(range(LANES), 0, 1)
    ring.trainer.rehearse(ring.stream.next_batch())
    assert count["stats"]["unique_graphs"] == 1
    in_ring = ring.train()
    assert count["stats"]["unique_graphs"] <= 3
    assert_same_everywhere(ring.weights())
    if world.is_leader:
        single = Side(ALONE, **model)
        losses = [each.loss for each in single.train()]
        assert [each.loss for each in in_ring] == pytest.approx(losses, rel=1e-5, nan_ok=True)
        for ours, theirs in zip(ring.weights(), single.weights(), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_autocast_and_loss_scale_are_the_rings(world, precision):
    single = assert_as_alone(world, 2e-2, keep_every=7, kind="SGD", precision=precision)
    if single is not None and precision == "mixed_float16":
        assert single.trainer.variables["loss_scale"].numpy()[1] > 0


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # Adagrad's own.
@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
@pytest.mark.parametrize("kind", ["adagrad", "momentum", "sparse adam"])
def test_sparse_gradients_are_those_of_one_process(world, precision, kind):
    settings = {"model": "torch_sparse", "kind": kind, "precision": precision}
    assert_as_alone(world, 1e-4 if precision == "float32" else 2e-2, keep_every=7, **settings)


def test_a_step_that_float16_cannot_hold_is_left_out_everywhere(world):
    ring = Side(world, precision="mixed_float16")
    ring.trainer.variables["loss_scale"].assign([2.0**140, 0.0])
    before = ring.trainer.variables["hidden.weight"].numpy()
    ring.train(1)
    assert ring.trainer.variables["loss_scale"].numpy().tolist() == [2.0**139, 0.0]
    np.testing.assert_array_equal(ring.trainer.variables["hidden.weight"].numpy(), before)
    assert_same_everywhere(ring.weights())


def test_batch_norm_and_dropout_are_each_ranks_own_and_the_state_is_one(world):
    ring = Side(world, batch_norm=True, dropout=0.5, keep_every=3)
    ring.train()
    assert_same_everywhere(ring.weights())
    assert ring.trainer.variables["norm.num_batches_tracked"].numpy() > 0


@pytest.mark.parametrize("keep_every", [1, 7, pytest.param(60, marks=pytest.mark.long)])
def test_batch_norm_over_all_ranks_is_that_of_one_process(world, keep_every):
    """With a plain optimizer: Adam would magnify the rounding errors of a bias without a use."""
    model = {"batch_norm": True, "keep_every": keep_every, "kind": "SGD"}
    assert_as_alone(world, 1e-5, config={"batch_norm": "synchronized"}, **model)


@pytest.mark.parametrize("model", ["torch_tiny", "torch_steep"])
def test_a_bad_loss_or_gradient_on_one_rank_changes_no_weights_anywhere(world, model):
    ring = Side(world, model=model, bad_id=5)
    per_epoch = ring.plan.steps_per_epoch
    order = ring.plan.order(0)
    bad_step = next(s for s in range(per_epoch) if 5 in order.records(s, range(LANES)))
    ring.train(bad_step)
    before = ring.trainer.variables["hidden.weight"].numpy()
    ring.stream.restart(world.lanes(LANES), bad_step, bad_step + 1)
    assert not ring.step(ring.stream.next_batch()).is_finite
    np.testing.assert_array_equal(ring.trainer.variables["hidden.weight"].numpy(), before)


@pytest.mark.world_size(2, 3)
def test_one_rank_that_knows_of_a_change_tells_all(world):
    ring = Side(world)
    ring.stream.restart(world.lanes(LANES), 0, 1)
    is_last = world.rank == world.size - 1
    assert ring.step(ring.stream.next_batch(), wants_change=is_last).wants_change


def test_evaluation_is_that_of_one_process(world):
    def metrics(on):
        side = Side(on, Mode.EVALUATION, keep_every=7)
        evaluation = side.trainer.model.evaluation(side.stream.element_spec)
        evaluator = Evaluator(evaluation, side.stream, side.plan, FRAMEWORK.collectives)
        evaluator.restart(on, 0)
        sums = evaluator.local_sums(evaluator.num_steps, UNWATCHED)
        return evaluator.metrics(evaluator.over_ring(sums, on))

    ours = metrics(world)
    assert_same_everywhere(list(ours.values()))
    if world.is_leader:
        assert ours == pytest.approx(metrics(ALONE), rel=1e-6)
        assert torch.is_grad_enabled()
