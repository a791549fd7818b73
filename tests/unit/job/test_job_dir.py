"""Whose directory a job may take: a new one, an empty one, or one that was a job's before."""

import dataclasses
import json
import threading

import pytest

from edl_horovod.config import resolved
from edl_horovod.config.compose import compose
from edl_horovod.errors import OutputError
from edl_horovod.files import marker
from edl_horovod.job import checkpoint_files
from edl_horovod.job import directory as job_dir
from edl_horovod.launch.local import LocalTarget
from edl_horovod.supervisor.directory import job_directory

OURS = (
    "logs/build.log",
    "segments/one.png",
    "ledger/2026.csv",
    "checkpoints/epoch-1.pt",
    "config.yaml",
    "hosts",
    "secret",
    "result.json",
    "events.jsonl",
    "launcher.pid",
    "coordinator.json",
    "job.id",
    "notes.txt",
)


def plan_of(folder, *overrides, task="train"):
    given = {"train": [f"model_zoo={folder}/zoo", "model_def=m"]}
    where = [f"output={folder}/out", f"job_dir={folder}/job", "data=/d"]
    model = given.get(task, [f"trained_model={folder}/model"])
    return LocalTarget().plan(compose(task, [*where, *model, *overrides]))


def take(plan):
    with job_directory(plan, is_left=False):
        pass


def end_well(plan):
    (plan.job_dir / "result.json").write_text(json.dumps({"state": "finished"}))


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("names", [OURS, *((name,) for name in OURS)])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_is_not_a_job_s_is_refused_and_left_as_it_is(tmp_path, names, overwrite):
    plan = plan_of(tmp_path, f"overwrite={overwrite}")
    for name in names:
        (plan.job_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (plan.job_dir / name).write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(OutputError, match=r"holds something .*Received: job_dir=.*another job_dir"):
        take(plan)
    assert contents(tmp_path) == before


def test_a_result_is_no_job_s_directory(tmp_path):
    plan = plan_of(tmp_path)
    plan.job_dir.mkdir()
    marker.write(plan.job_dir, "trained model")
    with pytest.raises(OutputError, match="folder of a job"):
        take(plan)


def test_an_empty_folder_and_an_earlier_job_s_are_taken(tmp_path):
    plan = plan_of(tmp_path)
    plan.job_dir.mkdir()
    take(plan)
    (plan.job_dir / "notes.txt").write_text("mine")
    take(plan)
    assert (plan.job_dir / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"overrides": ["model_def=other"]}),
        ({}, {"overrides": ["model_zoo=/another/zoo"]}),
        ({}, {"task": "predict"}),
        ({"task": "evaluate"}, {"task": "predict"}),
        ({"task": "predict"}, {"task": "predict", "overrides": ["trained_model=/another"]}),
    ],
)
def test_a_finished_job_of_another_model_is_not_taken_for_granted(tmp_path, first, second):
    def plan(task="train", overrides=(), more=()):
        return plan_of(tmp_path, *overrides, *more, task=task)

    take(plan(**first))
    end_well(plan())
    before = contents(tmp_path / "job")
    with pytest.raises(OutputError, match=r"another model's job.*its result.*overwrite=true"):
        take(plan(**second))
    assert contents(tmp_path / "job") == before
    take(plan(**second, more=["overwrite=true"]))


def test_a_job_of_the_same_model_with_other_settings_takes_it(tmp_path):
    take(plan_of(tmp_path))
    end_well(plan_of(tmp_path))
    take(plan_of(tmp_path, "data=/other", "train.epochs=7", f"output={tmp_path}/out-2"))


def test_checkpoints_of_another_model_are_not_gone_on_from(tmp_path):
    plan = plan_of(tmp_path)
    take(plan)
    (plan.job_dir / "checkpoints").mkdir()
    checkpoint_files.path_of(plan.job_dir / "checkpoints", 40).touch()
    with pytest.raises(OutputError, match=r"up to step 40.*model_def='m'.*model_def='other'"):
        take(plan_of(tmp_path, "model_def=other", "resume=auto"))
    take(plan_of(tmp_path, "resume=auto"))


def test_a_job_that_failed_before_it_had_anything_may_be_corrected(tmp_path):
    plan = plan_of(tmp_path, "model_def=m.Mistyped")
    take(plan)
    (plan.job_dir / "result.json").write_text(json.dumps({"state": "failed"}))
    take(plan_of(tmp_path))


def test_a_finished_job_whose_settings_cannot_be_read_is_not_taken_for_granted(tmp_path):
    plan = plan_of(tmp_path)
    take(plan)
    end_well(plan)
    (plan.job_dir / "config.yaml").write_text("of_another_version: 1")
    with pytest.raises(OutputError, match="another model's job"):
        take(plan)


# -- who is there before the launcher, or without one


def test_a_worker_that_comes_first_leaves_a_folder_that_its_launcher_takes(tmp_path):
    plan = plan_of(tmp_path)
    job_dir.enter(plan.job_dir, tmp_path / "etc" / "config.yaml")
    (plan.job_dir / "events.jsonl").touch()
    take(plan)


def test_a_worker_does_not_write_into_a_folder_that_is_not_a_job_s(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(OutputError, match="holds something"):
        job_dir.enter(tmp_path, tmp_path / "etc" / "config.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_that_was_made_for_horovodrun_with_the_settings_in_it_is_a_job_s(tmp_path):
    plan = plan_of(tmp_path)
    plan.job_dir.mkdir()
    (plan.job_dir / "discover.sh").touch()
    resolved.dump(plan.config, plan.job_dir / "config.yaml")
    job_dir.enter(plan.job_dir, plan.job_dir / "config.yaml")
    take(plan)


@pytest.mark.parametrize("name", ["checkpoints", "events.jsonl", "segments", "ledger"])
def test_settings_beside_somebody_s_own_things_of_such_names_make_it_no_job_s(tmp_path, name):
    (tmp_path / "config.yaml").touch()
    (tmp_path / name).mkdir()
    with pytest.raises(OutputError, match=name):
        job_dir.enter(tmp_path, tmp_path / "config.yaml")


def test_launcher_and_workers_may_come_at_once(tmp_path):
    plan = plan_of(tmp_path)
    start, errors = threading.Barrier(8), []

    def come():
        start.wait(10)
        try:
            job_dir.enter(plan.job_dir, tmp_path / "config.yaml")
            (plan.job_dir / "events.jsonl").touch()
        except Exception as error:  # Told in the test's own thread.
            errors.append(error)

    threads = [threading.Thread(target=come) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    take(dataclasses.replace(plan))


def test_a_folder_that_may_not_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot be written.*Received: job_dir="):
        job_dir.claim(tmp_path / "file" / "job")


def test_a_name_that_is_too_long_is_told(tmp_path):
    with pytest.raises(OutputError, match=r"File name too long.*shorter name"):
        job_dir.claim(tmp_path / ("x" * 260))
