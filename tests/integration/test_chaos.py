"""Sudden deaths at chosen and at random moments: nothing is lost, and all ranks end alike.

Each job keeps a ledger, which proves at its end that every record was applied exactly once and that
the last ranks had bit-identical variables. `make chaos` runs many long ones at random.
"""

import os
import signal
import sys
import time

import numpy as np
import pytest

from edl_horovod import trained_model
from edl_horovod.chaos import random_schedule
from edl_horovod.chaos.disturbance import disturb_job
from edl_horovod.job.account import CAUSES, LOST
from edl_horovod.job.directory import JobDir
from edl_horovod.job.state import summarize
from edl_horovod.ledger import prove
from tests import counting_job, dying_worker
from tests.integration.conftest import for_framework
from tests.records import write_records

QUIET_SECONDS = 2.0
DEATHS_EPOCHS = 6
"""Most of what is left after the deaths is done by four ranks, on whatever cores there are."""
LONG_RUNS = int(os.environ.get("EDL_CHAOS_RUNS", "0"))


def counting(tmp_path, **settings):
    overrides = {"debug.ledger": "true", "elastic.restart_backoff_seconds": 0.1, **settings}
    return counting_job.overrides(tmp_path, **overrides)


def assert_proven(job):
    """The ledger's proof of a job that has ended, on a last ring of several ranks."""
    proof = prove(JobDir(job.job_dir))
    assert proof.is_good, f"{proof.violations}\n{job.describe()}"
    assert proof.is_finished
    assert proof.num_epochs == DEATHS_EPOCHS
    assert proof.num_records == DEATHS_EPOCHS * counting_job.NUM_RECORDS
    assert proof.num_last_ranks > 1, job.describe()
    account = summarize(job.events()).account
    for process in account.ranks:
        life = process.until - process.began
        assert sum(process.seconds.values()) == pytest.approx(life, rel=0.005, abs=0.02), process
        assert set(process.seconds) <= {*CAUSES, LOST}
    started = {(e.event.worker, e.event.pid) for e in job.events("worker") if e.event.pid}
    assert {(process.worker, process.pid) for process in account.ranks} <= started
    return proof


DEATHS = (
    # Two at once after a step's collective and before they said so, rank 0 among them; then rank 0
    # of the two that are left, the source of their sync.
    "commit:0/4+commit:1/4 sync:0/2",
    # Rank 0 in an evaluation, another one in the reset that follows, a third while the next ring
    # forms.
    "evaluation:0/4 reset:1/4 forming:1/2",
    # One in a step; and rank 0 once more, when all is done and it is to write the trained model.
    "step:2/4 finish:0/0",
)


@pytest.mark.long
def test_deaths_at_chosen_moments_lose_nothing(start, framework, tmp_path):
    settings = {
        "launch.np": 4,
        "train.evaluate_steps": 5,
        "params.keep_every": 2,
        "validation_data": write_records(tmp_path / "held_out", 48),
    }
    overrides = [*counting(tmp_path, epochs=DEATHS_EPOCHS, **settings), f"output={tmp_path}/out"]
    overrides += [f"job_dir={tmp_path}/job-0", f"model_zoo={counting_job.ZOO}"]
    command = [sys.executable, "-m", "tests.dying_job", "train"]
    command += for_framework(framework, overrides)
    job = start("train", launcher=command, **{dying_worker.VARIABLE: " ".join(DEATHS)})
    *groups, last = dying_worker.parse(" ".join(DEATHS))

    def have_died(groups):
        names = [death.name for group in groups for death in group]
        return all((job.job_dir / "deaths" / name).exists() for name in names)

    job.wait_for(lambda _: have_died(groups), "all deaths but the last", seconds=240)
    job.wait_for_ring(3)
    (tmp_path / "hurry").touch()
    job.succeed()
    assert have_died([last])
    proof = assert_proven(job)
    # Of a step that only the dead had completed.
    assert proof.num_redone_steps <= 1
    assert {e.event.examples for e in job.events("evaluation")} == {24}


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, *range(1000, 1000 + LONG_RUNS)])
def test_random_chaos_loses_nothing(start, tmp_path, seed):
    is_long = seed >= 1000
    seed = time.time_ns() % (1 << 31) if is_long else seed
    seconds, every = (60, 4) if is_long else (15, 3)
    settings = {"launch.np": 3, "elastic.max_np": 4, "params.keep_every": 3}
    # Each step has more than 20 collectives, between which a rank may be lost.
    settings |= {"params.num_clocks": 20, "train.bucket_bytes": 1}
    if is_long:  # At one pace all the time, so that what was lost can be compared.
        settings |= {"epochs": 45, "params.slower_after": 900}
    job = start("train", *counting(tmp_path, **settings), is_warm=False)
    job.wait_for_ring(3)
    job.wait_for_step(5)
    time.sleep(QUIET_SECONDS)  # Something to compare with.
    kinds = ("kill", "kill", "stop", "add", "remove", "coordinator")
    schedule = random_schedule(seed=seed, seconds=seconds, every=every, kinds=kinds)
    happened, cost = disturb_job(JobDir(job.job_dir), schedule, seconds=seconds)
    (tmp_path / "hurry").touch()
    job.succeed()
    summary = f"seed {seed}: {[(h.seconds, h.kind, h.message) for h in happened]}\n{cost}"
    proof = prove(JobDir(job.job_dir))
    assert proof.is_good, f"{summary}\n{proof.violations}\n{job.describe()}"
    assert proof.is_finished, summary
    assert proof.restored == (), summary
    assert any(h.is_done for h in happened), summary
    assert cost.num_resets > 0, summary
    counts, clocks = counting_job.counts_and_clocks(trained_model.read(tmp_path / "out"))
    assert len(clocks) == 20
    assert len(set(clocks)) == 1
    is_kept = np.arange(counting_job.NUM_RECORDS) % 3 == 0
    assert (counts[is_kept] > 0).all()
    assert (counts[~is_kept] == 0).all()


@pytest.mark.long
def test_survivors_of_a_broken_large_collective_live_on(start, tmp_path):
    data = write_records(tmp_path / "data", 480)
    job = start(
        "train",
        "model_def=curve",
        f"data={data}",
        "params.width=120000",
        "launch.np=3",
        "train.batch_size=24",
        "data_plan.lanes=12",
        "train.epochs=10",
        "debug.ledger=true",
    )
    job.wait_for_ring(3)
    job.wait_for_step(20)
    job.signal_worker(0, signal.SIGKILL)
    job.succeed()
    proof = prove(JobDir(job.job_dir))
    assert proof.is_good, f"{proof.violations}\n{job.describe()}"
    failed = [e.event.message for e in job.events("worker") if e.event.state == "failed"]
    assert all(message.startswith("ended with SIGKILL") for message in failed), failed
