"""The ring does not show in the loss: the same curve on any number of ranks, and across resizes."""

import signal

import numpy as np
import pytest

from edl_horovod.job.directory import JobDir
from edl_horovod.ledger import prove, read_losses
from tests.records import write_records

NUM_RECORDS, BATCH, EPOCHS = 480, 24, 20
TOLERANCE = 1e-5
"""Relative; sums in another order differ in their last bits, and each step builds on the last."""


def overrides(folder, data, *, num_ranks, model_def="curve"):
    return [
        f"model_def={model_def}",
        f"data={data}",
        f"train.batch_size={BATCH}",
        f"train.epochs={EPOCHS}",
        "data_plan.lanes=12",
        "data_plan.shuffle_window=16",
        "debug.ledger=true",
        f"params.slow_until={folder / 'hurry'}",
        "params.slower_after=60",
        f"output={folder / 'out'}",
        f"launch.np={num_ranks}",
        "elastic.restart_backoff_seconds=0.1",
    ]


def curve(job):
    proof = prove(JobDir(job.job_dir))
    assert proof.is_good, f"{proof.violations}\n{job.describe()}"
    rows = read_losses(JobDir(job.job_dir).ledger)
    assert [row.step for row in rows] == list(range(job.events("step")[-1].event.total_steps))
    return np.array([row.loss for row in rows]), [row.size for row in rows]


def assert_same_curve(start, tmp_path, *settings, model_def="curve", tolerance=TOLERANCE):
    """On one rank, and on 4, 3, 2, 1 and 2 ranks, one of which is killed."""
    data = write_records(tmp_path / "data", NUM_RECORDS)
    alone, changing = tmp_path / "alone", tmp_path / "changing"
    for folder in (alone, changing):
        folder.mkdir()
    (alone / "hurry").touch()
    expected, sizes = curve(
        start(
            "train", *overrides(alone, data, num_ranks=1, model_def=model_def), *settings
        ).succeed()
    )
    assert set(sizes) == {1}
    job = start("train", *overrides(changing, data, num_ranks=4, model_def=model_def), *settings)
    job.wait_for_step(4)
    generation = job.wait_for_ring(4)
    for slots in (3, 2):
        job.want(slots)
        generation = job.wait_for_ring(slots, after=generation)
        job.wait_for_step(max(e.event.step for e in job.events("reset")) + 4)
    job.signal_worker(0, signal.SIGKILL)
    generation = job.wait_for_ring(1, after=generation)
    job.wait_for_ring(2, after=generation)  # The killed one's successor, while the other trains.
    (changing / "hurry").touch()
    losses, sizes = curve(job.succeed())
    assert set(sizes) == {1, 2, 3, 4}
    np.testing.assert_allclose(losses, expected, rtol=tolerance)
    return losses


@pytest.mark.long
def test_the_loss_of_every_step_is_the_same_on_1_to_4_ranks_and_across_resizes(start, tmp_path):
    losses = assert_same_curve(start, tmp_path)
    assert losses[-1] < losses[0] / 2


@pytest.mark.long
def test_local_rounds_with_changes_of_8_bits_differ_by_no_more_than_their_rounding(start, tmp_path):
    settings = ["train.local.steps=2", "train.local.replicas=4", "train.local.method=diloco"]
    settings += ["train.local.outer_momentum=0.3", "train.local.warmup_steps=9"]
    settings += ["train.compression=int8", "data_plan.lanes=4", "train.epochs=10"]
    losses = assert_same_curve(start, tmp_path, *settings, tolerance=0.05)
    assert losses[-1] < losses[0] / 2


@pytest.mark.long
def test_so_is_that_of_a_model_with_batch_norm_over_all_ranks(start, tmp_path):
    settings = ("params.batch_norm=True", "train.batch_norm=synchronized", "train.epochs=10")
    assert_same_curve(start, tmp_path, *settings)


@pytest.mark.long
def test_so_are_those_of_a_gan_whose_phases_alternate(start, tmp_path, framework):
    # tests/component/frameworks/both has both ways for each framework.
    records = {"keras": "same", "torch": "new"}[framework]
    settings = (
        "train.batch_norm=synchronized",
        "train.epochs=10",
        f"params.critic_records={records}",
    )
    losses = assert_same_curve(start, tmp_path, *settings, model_def="gan")
    assert np.abs(np.diff(losses)).min() > 0


@pytest.mark.long
def test_so_are_those_of_local_rounds_of_replicas(start, tmp_path):
    # With more momentum so small a training swings, which makes much of rounding.
    rounds = ("steps=2", "replicas=4", "method=diloco", "outer_momentum=0.3", "inner_state=keep")
    rounds += ("warmup_steps=17", "fragments=2")
    settings = [f"train.local.{setting}" for setting in rounds]
    losses = assert_same_curve(start, tmp_path, *settings, "data_plan.lanes=4", "train.epochs=10")
    assert losses[-1] < losses[0] / 2
