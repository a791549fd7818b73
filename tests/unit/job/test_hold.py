"""Whose traces a launcher finds in a job's directory: of another job, or of its own."""

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import stat
import threading

import pytest

from edl_horovod.errors import ConfigError, JobFailed, OutputError
from edl_horovod.job import checkpoint_files, events, hosts, outcome
from edl_horovod.job.earlier import has_id, hold, takeover_message, was_filled_by
from edl_horovod.job.outcome import Failure, Success
from edl_horovod.launch.local import LocalTarget
from edl_horovod.supervisor.plan import Command
from edl_horovod.supervisor.run import run_plan
from tests.job_events import event
from tests.jobs import config_of


@pytest.fixture
def plan(tmp_path):
    overrides = ["data=/d", "model_def=m", f"output={tmp_path}/out", f"job_dir={tmp_path}/job"]
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * 32)
    return dataclasses.replace(
        LocalTarget().plan(config_of("train", overrides)), secret_file=secret
    )


def held(plan, *, is_takeover=False):
    return hold(
        plan.job_dir,
        plan.config,
        hosts=plan.hosts,
        secret_file=plan.secret_file,
        job_id=plan.job_id,
        is_takeover=is_takeover,
        has_coordinator=plan.coordinator is not None,
    )


def leave_traces(plan):
    assert not was_filled_by(plan.job_dir, plan.secret_file)
    with held(plan):
        for name in ("events.jsonl", "coordinator.json", "hosts"):
            (plan.job_dir.path / name).write_text(json.dumps("a trace"))


def test_a_launcher_finds_its_own_job_as_the_one_before_it_left_it(plan):
    leave_traces(plan)

    assert was_filled_by(plan.job_dir, plan.secret_file)
    assert not was_filled_by(plan.job_dir, None), "a job without a secret is never taken over"
    with held(plan, is_takeover=True):
        files = {path.name for path in plan.job_dir.path.iterdir() if path.is_file()}
        assert {"launcher.pid", "events.jsonl", "coordinator.json", "hosts"} <= files


def test_another_job_finds_nothing_of_it(plan, tmp_path):
    leave_traces(plan)
    other = tmp_path / "other"
    other.write_bytes(b"o" * 32)
    plan = dataclasses.replace(plan, secret_file=other)

    assert not was_filled_by(plan.job_dir, plan.secret_file)
    with held(plan):
        assert events.read(plan.job_dir.events) == []
        assert not (plan.job_dir.coordinator_state).exists()
        assert "a trace" not in (plan.job_dir.hosts).read_text()


def test_the_settings_of_a_job_are_its_owners_alone_and_a_given_secret_is_not_copied(plan):
    mask = os.umask(0o022)
    try:
        with held(plan):
            mode = stat.S_IMODE((plan.job_dir.config).stat().st_mode)
            files = [path for path in plan.job_dir.path.rglob("*") if path.is_file()]
            assert not [path for path in files if b"s" * 32 in path.read_bytes()]
    finally:
        os.umask(mask)
    assert mode == 0o600


@pytest.fixture
def plan_over_ssh(plan):
    """Of a job in whose place another program starts the ranks, as horovodrun does."""
    return dataclasses.replace(plan, coordinator=None, worker=None, ring=Command(argv=("false",)))


def test_a_ring_that_ended_with_its_launcher_leaves_checkpoint_ledger_and_events(plan_over_ssh):
    plan = plan_over_ssh
    leave_traces(plan)
    outcome.save(plan.job_dir.result, Failure(error="DataError", message="no files"))
    for folder in ("checkpoints", "ledger"):
        (plan.job_dir.path / folder).mkdir()
    checkpoint_files.path_of(plan.job_dir.checkpoints, 40).touch()

    assert "step 40" in takeover_message(plan.config, plan.job_dir)
    with held(plan, is_takeover=True):
        left = {path.name for path in plan.job_dir.path.iterdir()}
        assert {"checkpoints", "ledger", "events.jsonl"} <= left
        assert "result.json" not in left, "it would be told as the next ring's"
        assert "a trace" not in (plan.job_dir.hosts).read_text(), "pods that may be gone"


def test_a_ring_that_left_no_checkpoint_begins_anew_and_says_so(plan_over_ssh):
    plan = plan_over_ssh
    leave_traces(plan)
    plan.job_dir.ledger.mkdir()

    assert "step 0 " in takeover_message(plan.config, plan.job_dir)
    with held(plan, is_takeover=True):
        assert not (plan.job_dir.ledger).exists()


def test_a_job_whose_launcher_was_lost_at_the_very_end_has_finished(plan_over_ssh):
    leave_traces(plan_over_ssh)
    outcome.save(plan_over_ssh.job_dir.result, Success(steps=7, metrics={}, output="o"))

    assert run_plan(plan_over_ssh).steps == 7


def test_a_job_without_a_secret_is_known_by_its_number_until_another_comes(plan):
    plan = dataclasses.replace(plan, secret_file=None, job_id="cluster 7")
    for other in ("cluster 8", ""):
        with held(plan):
            assert has_id(plan.job_dir, "cluster 7")
        assert has_id(plan.job_dir, "cluster 7")
        with held(dataclasses.replace(plan, job_id=other)):
            assert not has_id(plan.job_dir, "cluster 7")


def test_what_workers_elsewhere_write_outlives_the_launcher(plan):
    for secret_file in (plan.secret_file, None):
        with held(dataclasses.replace(plan, secret_file=secret_file)):
            plan.job_dir.unfinished_records.mkdir()
        assert plan.job_dir.unfinished_records.exists() == (secret_file is not None)


def test_a_worker_that_was_there_before_its_launcher_is_heard(plan):
    plan.job_dir.enter(plan.job_dir.path.parent / "config.yaml")
    with events.EventLog(plan.job_dir.events, "early") as early:
        early.write(event("worker"))
        with held(plan):
            early.write(event("step"))
            entries = events.read(plan.job_dir.events)

    assert [recorded.event.kind for recorded in entries] == ["step"]


def test_a_launcher_that_comes_as_another_one_ends_holds_nothing_that_a_third_one_has(
    plan, monkeypatch
):
    with contextlib.ExitStack() as first, contextlib.ExitStack() as third:
        first.enter_context(held(plan))
        lock, late = fcntl.flock, []

        def lock_late(file, how):
            if not late:
                # The second one has opened the file by now. The first ends, and a third one begins.
                late.append(file)
                first.close()
                third.enter_context(held(plan))
            lock(file, how)

        monkeypatch.setattr(fcntl, "flock", lock_late)
        with pytest.raises(ConfigError, match="job runs"), held(plan):
            pass


def test_who_looks_whether_a_job_runs_keeps_none_from_its_start(plan):
    with held(plan):
        pass
    with plan.job_dir.launcher_pid.open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        end = threading.Timer(0.2, fcntl.flock, (looking, fcntl.LOCK_UN))
        end.start()
        with held(plan):
            end.join()
            assert plan.job_dir.is_running()
    assert not plan.job_dir.is_running()


def test_a_damaged_result_is_told_as_what_it_is(plan_over_ssh):
    plan = dataclasses.replace(plan_over_ssh, ring=None, coordinator=Command(argv=("sleep", "60")))
    leave_traces(plan)
    (plan.job_dir.result).write_text("")

    with pytest.raises(JobFailed, match=r"empty.*\.json") as caught:
        run_plan(plan)
    assert "resume=auto" in str(caught.value)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "Get write permission"),
        (OSError(errno.ENOSPC, "No space left on device"), "Make room"),
    ],
)
def test_why_the_directory_cannot_be_written_is_told_with_its_own_hint(
    plan, monkeypatch, error, hint
):
    def fail(*_):
        raise error

    monkeypatch.setattr(hosts, "write", fail)
    with pytest.raises(OutputError, match=hint), held(plan):
        pass
