"""The page of a real job in a real browser: the numbers of its run, and a worker that is killed."""

import json
import signal
import time

import pytest

from tests.chromium import PROGRAM, REASON, chromium
from tests.dashboard import dashboard
from tests.integration.conftest import edl

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=REASON)
NUM_LOSSES = "document.querySelector('#events').innerText.split('localhost:1 failed').length - 1"


@pytest.mark.long
def test_a_killed_worker_shows_within_two_seconds(start_paced):
    job = start_paced(
        "train.epochs=40",
        "data_plan.lanes=6",
        "launch.np=2",
        "elastic.max_np=2",
    )
    job.wait_for_step(5)
    with dashboard(job.job_dir) as served, chromium() as browser:
        tab = browser.tab()
        tab.open(served.url)
        tab.wait_for("document.body.innerText.includes('2 ranks')")
        seconds = []
        for _ in range(3):  # Other programs on the machine only make it later.
            num_losses = tab.evaluate(NUM_LOSSES)
            assert num_losses == len(seconds)
            ring, began = job.generation(), time.monotonic()
            job.signal_worker(1, signal.SIGKILL)
            tab.wait_for(f"{NUM_LOSSES} > {num_losses}")
            seconds.append(time.monotonic() - began)
            job.wait_for_ring(2, after=ring)
            if seconds[-1] < 2.0:
                break
        job.succeed()
        tab.wait_for("document.title.startsWith('finished')")
        status = json.loads(edl("status", str(job.job_dir), "-o", "json"))
        facts, resets, ranks = tab.text("#facts"), tab.text("#resets"), tab.text("#processes")

    assert min(seconds) < 2.0
    assert f"{status['step']:,} of {status['total_steps']:,}" in facts
    assert f"{status['loss']:.4g}" in facts
    assert f"{status['account']['goodput']:.1%}" in facts
    assert "2 to 1" in resets
    killed = next(row for row in ranks.splitlines() if "failed" in row or "lost" in row)
    assert "localhost:1" in killed
    assert tab.said == []
