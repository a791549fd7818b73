"""Processes of a rank that make its examples: they end with it, and nothing is lost with them."""

import os
import signal
from pathlib import Path

import pytest

from tests import counting_job
from tests.frameworks import NEEDS_TORCH

pytestmark = NEEDS_TORCH


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.long
@pytest.mark.parametrize("victim", ["rank", pytest.param("process", marks=pytest.mark.further)])
def test_a_kill_costs_no_record_and_leaves_no_process(start, tmp_path, victim):
    settings = {"framework": "torch", "model_def": "torch_counting", "data_plan.processes": 2}
    job = start("train", *counting_job.overrides(tmp_path, **settings, **{"launch.np": 2}))
    job.wait_for_ring(2)
    job.wait_for_step(5)
    first = job.generation()
    # Slot 0 has another child, which proves that the zoo's copy loads.
    rank, children = job.worker_pid(1), children_of(job.worker_pid(1))
    assert len(children) == 2
    if victim == "rank":
        job.signal_worker(1, signal.SIGKILL)
    else:
        os.kill(children[0], signal.SIGKILL)
    job.wait_for_ring(2, after=job.wait_for_ring(1, after=first))
    job.wait_for(lambda _: not {rank, *children} & set(job.processes()), "the end of the lost ones")
    (tmp_path / "hurry").touch()
    job.succeed()
    counting_job.assert_each_record_once_an_epoch(tmp_path / "out")
    assert not job.processes()
