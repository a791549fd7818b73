"""A ring takes in workers as long as they bring something; the others stay warm."""

import pytest

from edl_horovod.errors import ConfigError
from tests.integration.test_scale import edl, status
from tests.records import write_records


def overrides(tmp_path, model_def, **settings):
    overrides = {
        "model_def": model_def,
        "data": write_records(tmp_path / "data", 240),
        "train.batch_size": 24,
        "train.epochs": 400,
        "data_plan.lanes": 8,
        "launch.np": 1,
        "elastic.autoscale": "true",
        **settings,
    }
    return [f"{key}={value}" for key, value in overrides.items()]


def limits(job):
    return [recorded.event.limit for recorded in job.events("autoscale")]


def wait_for_size(job, size):
    """A ring of this size; measuring takes its time, and a busy machine more."""
    job.wait_for(
        lambda events: [e.event.size for e in events if e.event.kind == "generation"][-1] == size,
        f"a ring of {size}",
        seconds=140,
    )


@pytest.mark.further
def test_a_rank_that_brings_nothing_is_put_out_again_and_stays_warm(start, tmp_path):
    job = start("train", *overrides(tmp_path, "paced.PacedSpec"))
    job.wait_for_step(2)
    assert edl("scale", job.job_dir, "--np", 3)[0] == 0
    wait_for_size(job, 2)
    wait_for_size(job, 1)
    assert limits(job) == [2, 1]
    # Both that came are there for a lost rank's place.
    job.wait_for(lambda _: len(status(job)["spares"]) == 2, "two that wait")
    assert {e.event.size for e in job.events("generation")} == {1, 2}
    assert not [e for e in job.events("worker") if e.event.state in ("left", "lost", "failed")]


@pytest.mark.long
def test_ranks_that_pay_are_all_taken_in(start, tmp_path):
    job = start("train", *overrides(tmp_path, "paced.PerRecordSpec", **{"elastic.max_np": 3}))
    job.wait_for_step(2)
    assert edl("scale", job.job_dir, "--np", 3)[0] == 0
    wait_for_size(job, 3)
    assert limits(job) == [2, 3]
    rates = {e.event.size: e.event.records_per_second for e in job.events("step")}
    assert rates[2] > 1.3 * rates[1], rates


def test_autoscaling_is_for_training_alone(tmp_path):
    code, printed = edl("evaluate", "trained_model=m", "data=d", "elastic.autoscale=true")
    assert code == ConfigError.exit_code
    assert "elastic.autoscale" in printed
