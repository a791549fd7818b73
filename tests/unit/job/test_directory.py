"""Whose directory a job may take: a new one, an empty one, or one that was a job's before."""

import ast
import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edl_horovod import job as job_package
from edl_horovod.config import resolved
from edl_horovod.errors import OutputError
from edl_horovod.files import marker
from edl_horovod.job import checkpoint_files, outcome
from edl_horovod.job.directory import JobDir
from edl_horovod.job.outcome import Failure, Success
from edl_horovod.launch.local import LocalTarget
from tests.jobs import config_of
from tests.unit.job.test_hold import held

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
    models = {"train": [f"model_zoo={folder}/zoo", "model_def=m"]}
    paths = [f"output={folder}/out", f"job_dir={folder}/job", "data=/d"]
    model = models.get(task, [f"trained_model={folder}/model"])
    return LocalTarget().plan(config_of(task, [*paths, *model, *overrides]))


def take(plan):
    with held(plan):
        pass


def end_well(plan):
    outcome.save(plan.job_dir.result, Success(steps=7, metrics={}, output="o"))


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("names", "overwrite"), [(OURS, True), (OURS, False), *(((name,), False) for name in OURS)]
)
def test_a_folder_that_is_not_a_job_s_is_refused_and_left_as_it_is(tmp_path, names, overwrite):
    plan = plan_of(tmp_path, f"overwrite={overwrite}")
    for name in names:
        (plan.job_dir.path / name).parent.mkdir(parents=True, exist_ok=True)
        (plan.job_dir.path / name).write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(OutputError) as caught:
        take(plan)
    assert any(name.partition("/")[0] in caught.value.problem for name in names)
    assert contents(tmp_path) == before


def test_a_result_is_no_job_s_directory(tmp_path):
    plan = plan_of(tmp_path)
    plan.job_dir.path.mkdir()
    marker.write(plan.job_dir.path, "trained model")
    with pytest.raises(OutputError, match=marker.NAME):
        take(plan)


def test_an_empty_folder_and_an_earlier_job_s_are_taken(tmp_path):
    plan = plan_of(tmp_path)
    plan.job_dir.path.mkdir()
    take(plan)
    (plan.job_dir.path / "notes.txt").write_text("mine")
    take(plan)
    assert (plan.job_dir.path / "notes.txt").read_text() == "mine"


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
    def plan(task="train", overrides=(), extra=()):
        return plan_of(tmp_path, *overrides, *extra, task=task)

    take(plan(**first))
    end_well(plan())
    before = contents(tmp_path / "job")
    with pytest.raises(OutputError, match="another model"):
        take(plan(**second))
    assert contents(tmp_path / "job") == before
    take(plan(**second, extra=["overwrite=true"]))


def test_a_job_of_the_same_model_with_other_settings_takes_it(tmp_path):
    take(plan_of(tmp_path))
    end_well(plan_of(tmp_path))
    take(plan_of(tmp_path, "data=/other", "train.epochs=7", f"output={tmp_path}/out-2"))


def test_checkpoints_of_another_model_are_not_gone_on_from(tmp_path):
    plan = plan_of(tmp_path)
    take(plan)
    plan.job_dir.checkpoints.mkdir()
    checkpoint_files.path_of(plan.job_dir.checkpoints, 40).touch()
    with pytest.raises(OutputError, match="step 40") as caught:
        take(plan_of(tmp_path, "model_def=other", "resume=auto"))
    assert "model_def='m'" in caught.value.problem
    assert caught.value.received["model_def"] == "other"
    take(plan_of(tmp_path, "resume=auto"))


def test_a_job_that_failed_before_it_had_anything_may_be_corrected(tmp_path):
    plan = plan_of(tmp_path, "model_def=m.Mistyped")
    take(plan)
    outcome.save(plan.job_dir.result, Failure(error="DataError", message="no files"))
    take(plan_of(tmp_path))


def test_a_finished_job_whose_settings_cannot_be_read_is_not_taken_for_granted(tmp_path):
    plan = plan_of(tmp_path)
    take(plan)
    end_well(plan)
    (plan.job_dir.config).write_text("of_another_version: 1")
    with pytest.raises(OutputError, match="another model"):
        take(plan)


# -- who is there before the launcher, or without one


def test_a_worker_does_not_write_into_a_folder_that_is_not_a_job_s(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(OutputError, match=r"notes\.txt"):
        JobDir(tmp_path).enter(tmp_path / "etc" / "config.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_that_was_made_for_horovodrun_with_the_settings_in_it_is_a_job_s(tmp_path):
    plan = plan_of(tmp_path)
    plan.job_dir.path.mkdir()
    (plan.job_dir.path / "discover.sh").touch()
    resolved.dump(plan.config, plan.job_dir.config)
    plan.job_dir.enter(plan.job_dir.config)
    take(plan)


@pytest.mark.parametrize("name", ["checkpoints", "events.jsonl", "segments", "ledger"])
def test_settings_beside_somebody_s_own_things_of_such_names_make_it_no_job_s(tmp_path, name):
    (tmp_path / "config.yaml").touch()
    (tmp_path / name).mkdir()
    with pytest.raises(OutputError, match=name):
        JobDir(tmp_path).enter(tmp_path / "config.yaml")


def test_launcher_and_workers_may_come_at_once(tmp_path):
    plan = plan_of(tmp_path)
    start, errors = threading.Barrier(8), []

    def come():
        start.wait(10)
        try:
            plan.job_dir.enter(tmp_path / "config.yaml")
            (plan.job_dir.events).touch()
        except Exception as error:  # Told in the test's own thread.
            errors.append(error)

    with ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            pool.submit(come)
    assert errors == []
    take(dataclasses.replace(plan))


@pytest.mark.parametrize(
    ("name", "problem"), [("file/job", "Not a directory"), ("x" * 260, "too long")]
)
def test_a_folder_that_cannot_be_written_is_told(tmp_path, name, problem):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=problem) as caught:
        JobDir(tmp_path / name).claim()
    assert caught.value.received.startswith("job_dir=")
    assert caught.value.hint


# -- what is in it, and what becomes of it


def contents_at(job_dir, moment):
    for name in (*FILES, *FOLDERS):
        path = getattr(job_dir, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in FOLDERS:
            path.mkdir()
            (path / "inside").write_text(name)
        else:
            path.write_text(name)
    job_dir.clear(moment)
    present = {name for name in (*FILES, *FOLDERS) if getattr(job_dir, name).exists()}
    empty = {name for name in FILES if name in present and not getattr(job_dir, name).read_text()}
    return present - empty, empty


FILES = (
    *("marker", "config", "events", "result", "coordinator_state", "hosts", "job_id"),
    *("secret", "launcher_pid"),
)
FOLDERS = ("logs", "checkpoints", "ledger", "segments", "discarded_segments", "warm")
ALL = {*FILES, *FOLDERS}
ALWAYS_KEPT = {"marker", "config", "secret", "checkpoints", "warm"}


@pytest.mark.parametrize(
    ("moment", "removed", "emptied"),
    [
        # A job that starts finds nothing that an earlier one would be told by.
        ("at_start", ALL - {*ALWAYS_KEPT, "launcher_pid", "job_id"}, {"events"}),
        # A ring that was lost with its launcher leaves all but its failure.
        ("at_takeover", {"result", "ledger"}, set()),
        # A job that ends leaves all but its secret.
        ("at_end", {"secret", "launcher_pid"}, {"launcher_pid"}),
    ],
)
def test_what_is_left_of_the_contents(tmp_path, moment, removed, emptied):
    left, empty = contents_at(JobDir(tmp_path), moment)
    assert (ALL - left, empty) == (removed, emptied)


def test_a_job_that_goes_on_from_a_checkpoint_goes_on_with_its_ledger(tmp_path):
    job_dir = JobDir(tmp_path)
    job_dir.checkpoints.mkdir()
    checkpoint_files.path_of(job_dir.checkpoints, 40).touch()
    job_dir.ledger.mkdir()
    job_dir.clear("at_start")
    assert job_dir.ledger.is_dir()


def names_in(tree, names):
    """The names of a job's files that a program joins to a path, or spells as they are."""
    for node in ast.walk(tree):
        match node:
            case ast.BinOp(op=ast.Div(), right=ast.Constant(value=str(name))):
                if name in names:
                    yield name
            case ast.JoinedStr(values=[*_, ast.Constant(value=str(end))]):
                if "/" in end and end.rpartition("/")[2] in names:
                    yield end
            case ast.Constant(value=str(name)):
                if name in names and "." in name:
                    yield name


@pytest.mark.long
def test_no_other_module_spells_the_name_of_a_file_in_it():
    package = Path(job_package.__file__).parents[1]
    names = {entry.name for entry in vars(JobDir).values() if hasattr(entry, "at_start")}
    elsewhere = {
        # The names of other files.
        "config/conf_files.py": {"config.yaml"},  # Hydra's own.
        "config/resolved.py": {"config.yaml"},  # Also in a trained model.
        "files/marker.py": {marker.NAME},  # In every folder of ours.
        "cluster/pods.py": {"/secret"},  # Of a volume.
    }
    spelled_in = {}
    for path in package.rglob("*.py"):
        module = path.relative_to(package).as_posix()
        spelled = set(names_in(ast.parse(path.read_text()), names)) - elsewhere.get(module, set())
        if spelled and module != "job/directory.py":
            spelled_in[module] = spelled
    assert spelled_in == {}
