"""What ranks compute on a GPU is what they compute on processors, and it is free after them."""

import signal

import numpy as np
import pytest

from edl_horovod import trained_model
from edl_horovod.job.directory import JobDir
from edl_horovod.ledger import prove, read_losses
from edl_horovod.trained_model.params import read_params
from tests import counting_job
from tests.later import LATER
from tests.records import write_records
from tests.waiting import wait_until

if LATER:
    import torch

NUM_RECORDS, BATCH, EPOCHS = 240, 24, 4
TOLERANCE = 1e-3
"""Relative, of losses; sums on a GPU have another order."""
CONTEXT_BYTES = 150e6
"""What a process has of a GPU's memory is more, whatever its model."""


@pytest.fixture
def losses(start, tmp_path):
    """Trains on so many ranks, and returns the loss of each step, and the trained weights."""
    data = write_records(tmp_path / "data", NUM_RECORDS)

    def train(name, num_ranks, model, *settings, **variables):
        job = start(
            "train",
            f"model_def={model}",
            f"data={data}",
            f"train.batch_size={BATCH}",
            f"train.epochs={EPOCHS}",
            "data_plan.lanes=12",
            "debug.ledger=true",
            f"output={tmp_path / name}",
            f"launch.np={num_ranks}",
            f"elastic.min_np={num_ranks}",
            *settings,
            **variables,
        ).succeed()
        proof = prove(JobDir(job.job_dir))
        assert proof.is_good, proof.violations
        rows = read_losses(JobDir(job.job_dir).ledger)
        assert {row.size for row in rows} == {num_ranks}
        weights = dict(read_params(trained_model.read(tmp_path / name).params_files))
        return np.array([row.loss for row in rows]), weights

    return train


def used_bytes():
    free, total = torch.cuda.mem_get_info()
    return total - free


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("curve", ()),
        ("curve", ("params.batch_norm=True", "train.batch_norm=synchronized")),
        ("curve", ("train.accumulate_steps=2", "train.clip_norm=1.0")),
        ("sparse", ()),
        ("sparse", ("params.kind=momentum",)),
    ],
    ids=str,
)
def test_losses_are_those_of_processors(losses, model, settings):
    expected, _ = losses("processor", 1, model, *settings, CUDA_VISIBLE_DEVICES="-1")
    alone, _ = losses("alone", 1, model, *settings)
    together, _ = losses("together", 2, model, *settings)
    np.testing.assert_allclose(alone, expected, rtol=TOLERANCE)
    np.testing.assert_allclose(together, expected, rtol=TOLERANCE)


@pytest.mark.parametrize(
    "settings",
    [
        ("train.compression=bf16",),
        ("train.compression=fp16",),
        ("train.precision=mixed_bfloat16",),
        ("train.precision=mixed_float16",),
        ("train.compile=true",),
        ("train.local.steps=2", "train.local.replicas=2", "data_plan.lanes=2"),
        ("adversarial.method=pgd", "adversarial.epsilon=0.1"),
    ],
    ids=str,
)
def test_two_ranks_train(losses, settings):
    step_losses, weights = losses("out", 2, "curve", *settings)
    assert step_losses[-5:].mean() < step_losses[:5].mean()
    assert all(np.isfinite(weight).all() for weight in weights.values())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_the_memory_of_a_rank_that_goes_is_free_at_once(start, tmp_path, number):
    before = used_bytes()
    settings = {"launch.np": 2, "elastic.min_np": 1, "elastic.restart_backoff_seconds": 1000}
    job = start("train", *counting_job.overrides(tmp_path, **settings))
    job.wait_for_ring(2)
    job.wait_for_step(5)
    of_two = used_bytes() - before
    assert of_two > 2 * CONTEXT_BYTES
    job.signal_worker(1, number)
    job.want(1)
    job.wait_for_ring(1, after=job.generation() - 1)
    wait_until(lambda: used_bytes() - before < 0.75 * of_two, "free memory", seconds=20)
    job.want(2)
    job.wait_for_ring(2)
    (tmp_path / "hurry").touch()
    job.succeed()
    counting_job.assert_each_record_once_an_epoch(tmp_path / "out")
    wait_until(lambda: used_bytes() - before < 0.25 * of_two, "free memory", seconds=20)


@pytest.mark.parametrize(("devices", "is_used"), [("-1", False), ("", False), ("by name", True)])
def test_a_rank_uses_only_the_gpus_that_it_may(start, tmp_path, devices, is_used):
    if devices == "by name":
        devices = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    before = used_bytes()
    overrides = counting_job.overrides(tmp_path, **{"launch.np": 1})
    job = start("train", *overrides, CUDA_VISIBLE_DEVICES=devices)
    job.wait_for_step(3)
    assert (used_bytes() - before > CONTEXT_BYTES) == is_used
    (tmp_path / "hurry").touch()
    job.succeed()


def test_a_model_of_a_gpu_is_evaluated_without_one(losses, start, tmp_path):
    losses("out", 2, "curve")
    held_out = write_records(tmp_path / "held_out", 96)
    errors = []
    for variables in ({}, {"CUDA_VISIBLE_DEVICES": "-1"}):
        job = start(
            "evaluate",
            f"trained_model={tmp_path / 'out'}",
            f"data={held_out}",
            "launch.np=2",
            **variables,
        ).succeed()
        errors.append(job.events("job")[-1].event.metrics["absolute_error"])
    np.testing.assert_allclose(errors[0], errors[1], rtol=1e-5)
