"""Compiled steps on a ring that changes: no record is lost with a rank."""

import signal

import pytest

from tests import counting_job
from tests.frameworks import NEEDS_TORCH

pytestmark = [pytest.mark.further, NEEDS_TORCH]


@pytest.mark.timeout(600)
def test_a_kill_and_a_join_cost_no_record(start, tmp_path):
    settings = {"framework": "torch", "model_def": "torch_counting", "train.compile": True}
    programs = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "programs")}
    words = counting_job.overrides(tmp_path, **settings, **{"launch.np": 2, "elastic.max_np": 3})
    job = start("train", *words, **programs)
    job.wait_for(lambda log: any(e.event.kind == "step" for e in log), "a step", seconds=300)
    job.wait_for_step(5)
    first = job.generation()
    job.signal_worker(1, signal.SIGKILL)
    joined = job.wait_for_ring(2, after=job.wait_for_ring(1, after=first))
    job.want(3)
    job.wait_for_ring(3, after=joined)
    (tmp_path / "hurry").touch()
    job.succeed()
    counting_job.assert_each_record_once_an_epoch(tmp_path / "out")
    assert not job.processes()
