"""The weighted step in PyTorch: any ring gives what one process gives (D6, D7).

That process is rank 0, as soon as the ring is done: the ranks have the same bits, so it compares
for all of them.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from edl_horovod.frameworks.torch.ring import FRAMEWORK
from edl_horovod.models.zoo import load_spec
from edl_horovod.spec import Mode
from tests.arrays import assert_close
from tests.jobs import training
from tests.parallel import side
from tests.parallel.agreement import assert_same_everywhere
from tests.parallel.side import ALONE, BATCH, KEEP_EVERY, LANES, ZOO, assert_as_alone


class Side(side.Side):
    def __init__(
        self,
        world,
        mode=Mode.TRAINING,
        precision="float32",
        config=None,
        model="torch_tiny",
        **params,
    ):
        super().__init__(world, mode)
        FRAMEWORK.begin(slot=0, seed=3)
        FRAMEWORK.use_precision(precision)
        loaded = load_spec(ZOO, model, params=params)
        self.stream = FRAMEWORK.batches(self.reader, self.plan, loaded, mode, prefetch=2)
        settings = {"bucket_bytes": 100, "precision": precision, **(config or {})}
        job = training(BATCH, settings)
        self.trainer = FRAMEWORK.step(loaded, self.stream.element_spec, job)


@pytest.mark.parametrize("keep_every", KEEP_EVERY)
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_ring_gives_the_weights_of_one_process(world, keep_every, kind):
    assert_as_alone(Side, world, keep_every=keep_every, kind=kind)


# Bounds are for the ring's mean gradient, not for a rank's; parts are cut of a rank's examples.
@pytest.mark.parametrize(
    "config",
    [{"clip_norm": 0.3}, {"clip_value": 0.05}, {"accumulate_steps": 3}],
    ids=["norm", "value", "parts"],
)
def test_shaped_gradients_are_those_of_one_process(world, config):
    assert_as_alone(Side, world, keep_every=7, config=config)


@pytest.mark.long
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
        losses = [sums.loss for sums in single.train()]
        assert [sums.loss for sums in in_ring] == pytest.approx(losses, rel=1e-5, nan_ok=True)
        assert_close(ring.weights(), single.weights(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_autocast_and_loss_scale_are_the_rings(world, precision):
    single = assert_as_alone(Side, world, 2e-2, keep_every=7, kind="SGD", precision=precision)
    if single is not None and precision == "mixed_float16":
        assert single.trainer.variables["loss_scale"].numpy()[1] > 0


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # Adagrad's own.
@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
@pytest.mark.parametrize("kind", ["adagrad", "momentum", "sparse adam"])
def test_sparse_gradients_are_those_of_one_process(world, precision, kind):
    settings = {"model": "torch_sparse", "kind": kind, "precision": precision}
    assert_as_alone(Side, world, 1e-4 if precision == "float32" else 2e-2, keep_every=7, **settings)


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


@pytest.mark.parametrize("keep_every", KEEP_EVERY)
def test_batch_norm_over_all_ranks_is_that_of_one_process(world, keep_every):
    """With a plain optimizer: Adam would magnify the rounding errors of a bias without a use."""
    model = {"batch_norm": True, "keep_every": keep_every, "kind": "SGD"}
    assert_as_alone(Side, world, 1e-5, config={"batch_norm": "synchronized"}, **model)


@pytest.mark.parametrize("model", ["torch_tiny", "torch_steep"])
def test_a_bad_loss_or_gradient_on_one_rank_changes_no_weights_anywhere(world, model):
    ring = Side(world, model=model, bad_id=5)
    sums, before = ring.train_to_bad_record(5)
    assert not sums.is_finite
    place = list(ring.trainer.variables).index("hidden.weight")
    np.testing.assert_array_equal(ring.weights()[place], before[place])


@pytest.mark.world_size(2, 3)
def test_one_rank_that_knows_of_a_change_tells_all(world):
    ring = Side(world)
    ring.stream.restart(world.lanes(LANES), 0, 1)
    assert ring.step(wants_change=world.rank == world.size - 1).wants_change


def test_evaluation_is_that_of_one_process(world):
    ours, _ = Side(world, Mode.EVALUATION, keep_every=7).evaluate()
    assert_same_everywhere(list(ours.values()))
    if world.is_leader:
        expected, _ = Side(ALONE, Mode.EVALUATION, keep_every=7).evaluate()
        assert ours == pytest.approx(expected, rel=1e-6)
        assert torch.is_grad_enabled()
