import csv
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edl_horovod
from edl_horovod.cli.main import main
from edl_horovod.config import resolved
from edl_horovod.config.sweep import expand
from edl_horovod.errors import ConfigError, DataError, Interrupted, OutputError
from edl_horovod.sweeps.run import make_plan
from tests.unit.sweeps.trainings import Trainings

RATES = "train.learning_rate=0.1,0.2,0.3"


@pytest.fixture
def trainings(monkeypatch):
    return Trainings.in_place(monkeypatch)


@pytest.fixture
def edl(capsys, tmp_path):
    def run(*argv: str) -> tuple[int, str, str]:
        code = main(["train", "-m", "model_def=m", "data=/d", f"output={tmp_path}/s", *argv])
        return code, *capsys.readouterr()

    return run


def states(folder: Path) -> list[str]:
    return [job["state"] for job in json.loads((folder / "s" / "sweep.json").read_text())["jobs"]]


@pytest.mark.long
def test_each_job_has_its_folder_and_its_row(edl, trainings, tmp_path):
    code, out, err = edl(RATES)

    assert code == 0
    assert trainings.rates == [0.1, 0.2, 0.3]
    assert (tmp_path / "s" / "learning_rate=0.2" / "trained_model.pb").exists()
    lines = out.splitlines()
    columns = ["train.learning_rate", "STATE", "TRAIN LOSS", "VAL accuracy", "SECONDS"]
    assert re.split("  +", lines[0]) == columns
    assert lines[2].split()[:4] == ["0.2", "finished", "0.2", "0.5"]
    assert lines[-1] == f"output: {tmp_path}/s (sweep.json, sweep.csv)"
    progress = err.splitlines()
    begin = progress.index("job 2 of 3: train.learning_rate=0.2")
    assert progress[begin + 1] == "trained with 0.2"

    jobs = json.loads((tmp_path / "s" / "sweep.json").read_text())["jobs"]
    assert jobs[1]["chosen"] == {"train.learning_rate": "0.2"}
    assert (jobs[1]["loss"], jobs[1]["steps"], jobs[1]["metrics"]) == (0.2, 5, {"accuracy": 0.5})
    rows = list(csv.DictReader((tmp_path / "s" / "sweep.csv").read_text().splitlines()))
    assert [row["train.learning_rate"] for row in rows] == ["0.1", "0.2", "0.3"]
    assert rows[0]["metrics.accuracy"] == "0.5"


@pytest.mark.long
def test_the_loss_in_a_row_is_of_the_step_that_its_metrics_are_of(edl, trainings, tmp_path):
    """As of the best step, whose weights a training that stops early may restore."""
    trainings.later_metrics = {"accuracy": 0.4}

    edl(RATES)

    jobs = json.loads((tmp_path / "s" / "sweep.json").read_text())["jobs"]
    assert (jobs[1]["loss"], jobs[1]["metrics"]) == (0.2, {"accuracy": 0.5})


@pytest.mark.long
def test_a_failed_job_does_not_stop_the_others_and_is_tried_again(edl, trainings, tmp_path):
    trainings.errors = {0.1: DataError("no file"), 0.2: DataError("no file")}

    code, out, err = edl(RATES)

    assert code == 1
    assert states(tmp_path) == ["failed", "failed", "finished"]
    assert out.count("no file") == 1
    failed = out.splitlines().index("failed: learning_rate=0.1, learning_rate=0.2")
    assert out.splitlines()[failed + 1] == "  no file"
    assert "2 of 3" in err.splitlines()[-1]
    trainings.errors = {}

    code, out, _ = edl(RATES)

    assert code == 0
    assert trainings.rates == [0.1, 0.2, 0.3, 0.1, 0.2]
    assert states(tmp_path) == ["finished", "finished", "earlier"]
    assert out.splitlines()[3].split()[:4] == ["0.3", "earlier", "0.3", "0.5"]


@pytest.mark.long
@pytest.mark.parametrize("error", [Interrupted("ctrl-c"), KeyboardInterrupt()])
def test_an_interrupt_ends_the_sweep_and_shows_the_table(edl, trainings, tmp_path, error):
    trainings.errors = {0.2: error}

    code, out, _ = edl(RATES)

    assert code == 130
    assert trainings.rates == [0.1, 0.2]
    assert states(tmp_path) == ["finished", "interrupted", "waiting"]
    assert "0.3                  waiting" in out


@pytest.mark.long
def test_a_wider_sweep_finds_the_earlier_results_unless_they_are_overwritten(edl, trainings):
    edl(RATES)
    edl("train.learning_rate=0.05,0.1,0.2")
    assert trainings.rates == [0.1, 0.2, 0.3, 0.05]

    code, _, _ = edl(RATES, "overwrite=true")
    assert code == 0
    assert trainings.rates[4:] == [0.1, 0.2, 0.3]


@pytest.mark.long
def test_a_model_zoo_in_git_is_the_same_if_its_url_is(edl, trainings, tmp_path):
    url = "git+https://me:secret@host/zoo@v1"
    edl(RATES, f"model_zoo={url}")
    for file in (tmp_path / "s").glob("*/config.yaml"):
        before = replace(resolved.load(file), model_zoo="/cache/zoo/abc", model_zoo_commit="abc")
        source = "git+https://host/zoo@v1"
        resolved.dump(replace(before, model_zoo_source=source, framework="torch"), file)

    assert edl(RATES, f"model_zoo={url}")[0] == 0
    code, _, err = edl(RATES, "model_zoo=https://host/zoo@v2")

    assert len(trainings.rates) == 3
    assert code == 7
    versions = [f"'git+https://host/zoo@{version}'" for version in ("v1", "v2")]
    assert all(version in err for version in versions)


def plan_of(*overrides):
    """The plan of a sweep, of a model `m` unless the settings say otherwise."""
    model = [] if any(text.startswith("model_def") for text in overrides) else ["model_def=m"]
    return make_plan(expand(["data=/d", "output=/o", *model, *overrides]))


@pytest.mark.long
def test_the_password_of_a_zoo_is_in_no_name_and_no_table():
    zoos = ",".join(f"git+https://me:s3cr3t@host/{name}@main" for name in "ab")
    jobs = plan_of(f"model_zoo={zoos}").jobs
    chosen = {job.chosen["model_zoo"] for job in jobs}
    assert chosen == {f"git+https://host/{name}@main" for name in "ab"}
    assert "s3cr3t" not in repr(jobs)


MODEL = """
from helper import WIDTH
from edl_horovod import ElasticDLSpec

class Model(ElasticDLSpec):
    words = "words.txt"
"""


@pytest.fixture
def inputs(tmp_path):
    """What a job reads, by what is in it."""
    files = {
        "model": tmp_path / "zoo" / "mine.py",
        "import": tmp_path / "zoo" / "helper.py",
        "named": tmp_path / "zoo" / "words.txt",
        "another model": tmp_path / "zoo" / "another.py",
        "notes": tmp_path / "zoo" / "README.md",
        "data": tmp_path / "d" / "a.csv",
        "validation data": tmp_path / "v" / "a.csv",
        "start": tmp_path / "first" / "trained_model.pb",
    }
    for file in files.values():
        file.parent.mkdir(exist_ok=True)
        file.write_text("x,y\n1,2\n" if file.suffix == ".csv" else "WIDTH = 3\n")
    files["model"].write_text(MODEL)
    return files


@pytest.fixture
def sweep(edl, inputs, tmp_path):
    def run(*argv: str) -> tuple[int, str, str]:
        read = {"model_zoo": "zoo", "data": "d", "validation_data": "v", "init_from": "first"}
        overrides_of_job = [f"{key}={tmp_path}/{name}" for key, name in read.items()]
        return edl(RATES, *overrides_of_job, "model_def=mine.Model", *argv)

    return run


def change(file: Path) -> None:
    """Write a file again, a second later, with as many bytes."""
    before = file.stat()
    text = file.read_text()
    file.write_text(text.replace("3", "4").replace("2", "5").replace("words =", "texts ="))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))


@pytest.mark.further
@pytest.mark.parametrize(
    ("name", "key"),
    [
        *((name, "model_def") for name in ("model", "import", "named")),
        *(("data", "data"), ("validation data", "validation_data"), ("start", "init_from")),
    ],
)
def test_results_of_another_model_or_of_other_data_are_refused(sweep, inputs, trainings, name, key):
    assert sweep()[0] == 0
    change(inputs[name])
    code, _, err = sweep()
    assert (code, len(trainings.rates)) == (7, 3)
    assert f"Received: {key}=" in err
    assert "overwrite=true" in err


@pytest.mark.long
def test_results_that_were_trained_again_are_those_of_what_is_there_now(sweep, inputs, trainings):
    sweep()
    change(inputs["model"])
    assert sweep("overwrite=true")[0] == 0
    assert sweep()[0] == 0
    assert len(trainings.rates) == 6


@pytest.mark.long
def test_a_file_of_data_that_comes_or_goes_is_a_change(sweep, inputs, trainings):
    sweep()
    another = inputs["data"].with_name("b.csv")
    shutil.copy(inputs["data"], another)
    assert sweep()[0] == 7
    another.unlink()
    assert sweep()[0] == 0
    assert len(trainings.rates) == 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "write"), [("another model", change), ("notes", change), ("model", os.utime)]
)
def test_what_a_model_does_not_read_may_change_and_what_stays_be_written(
    sweep, inputs, trainings, name, write
):
    sweep()
    write(inputs[name])
    assert sweep()[0] == 0
    assert len(trainings.rates) == 3


@pytest.mark.long
def test_a_change_while_a_job_runs_is_noticed(sweep, inputs, trainings):
    def change_data() -> None:
        if len(trainings.rates) == 1:
            change(inputs["data"])

    trainings.before_launch = change_data
    sweep()
    code, _, err = sweep()
    assert code == 7
    assert "learning_rate=0.1 " in err or "learning_rate=0.2 " in err


@pytest.mark.long
def test_a_result_of_which_nobody_knows_what_it_read_is_refused(sweep, trainings, tmp_path):
    sweep()
    (tmp_path / "s" / "inputs.json").unlink()
    code, _, err = sweep()
    assert (code, len(trainings.rates)) == (7, 3)
    assert "overwrite=true" in err


@pytest.mark.long
def test_results_of_other_settings_are_refused_before_the_first_job(edl, trainings):
    edl(RATES)
    code, _, err = edl(RATES, "train.epochs=3")

    assert (code, len(trainings.rates)) == (7, 3)
    assert "learning_rate=0.1 " in err
    assert "epochs=1, now 3" in err


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "exit_code", "named"),
    [
        # A wrong value of the last job is found before the first.
        (["train.epochs=1,2,many"], ConfigError.exit_code, "train.epochs=many"),
        (["launch=kubernetes"], ConfigError.exit_code, "one by one"),
        ([f"output={'x' * 260}"], OutputError.exit_code, "shorter name"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(
    edl, trainings, tmp_path, monkeypatch, words, exit_code, named
):
    monkeypatch.chdir(tmp_path)
    code, _, err = edl(RATES, *words)

    assert (code, trainings.rates) == (exit_code, [])
    assert named in err
    assert not (tmp_path / "s").exists()


@pytest.mark.long
def test_dry_run_lists_the_jobs(edl, trainings, tmp_path):
    code, out, _ = edl(RATES, "params.hidden=[10],[20]", "--dry-run")

    assert (code, trainings.rates) == (0, [])
    assert len(out.splitlines()) == 7
    assert out.splitlines()[1].split() == ["0.1", "[10]", "waiting"]
    assert not (tmp_path / "s").exists()


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        (["params.hidden=[10],[20, 5]"], ["hidden=_10", "hidden=_20_5"]),
        (["train.epochs=1", "model_def=a.B,c"], ["model_def=a.B", "model_def=c"]),
        (["launch.np=1,2", "params.np=1"], ["np=1", "np=2"]),
        (
            ["launch.np=1,2", "params.np=1,2"],
            [f"launch.np={first}_params.np={second}" for first in (1, 2) for second in (1, 2)],
        ),
    ],
)
def test_names_are_readable(overrides, names):
    assert [job.name for job in plan_of(*overrides).jobs] == names


@pytest.mark.long
def test_names_that_would_be_alike_or_too_long_are_told_apart():
    long = "x" * 200

    plan = plan_of(f"params.a='a/b','a:b','{long}1','{long}2'")

    names = [job.name for job in plan.jobs]
    assert len(set(names)) == 4
    assert all(len(name) < 100 for name in names)


def test_a_job_dir_holds_one_directory_a_job():
    configs = plan_of("job_dir=/j", "train.epochs=1,2").configs

    assert [config.job_dir for config in configs] == ["/j/epochs=1", "/j/epochs=2"]


@pytest.mark.long
def test_from_python(trainings, tmp_path):
    trainings.errors = {0.2: DataError("no file")}
    seen: list[Any] = []

    result = edl_horovod.sweep(
        {"train.learning_rate": [0.1, 0.2], "params.hidden": [[10], [20]]},
        model_def="m",
        data=["/d/a", "/d/b"],
        output=tmp_path / "s",
        train={"epochs": 2},
        on_events=seen.extend,
    )

    assert [job.state for job in result.jobs] == ["finished"] * 2 + ["failed"] * 2
    assert result.failed[0].error == "no file"
    assert result.jobs[1].chosen == {"train.learning_rate": "0.1", "params.hidden": "[20]"}
    assert resolved.load(Path(result.jobs[1].output) / "config.yaml").params == {"hidden": [20]}
    assert len(seen) == 2
    assert callable(edl_horovod.sweep)


def test_from_python_an_interrupt_is_raised(trainings, tmp_path):
    trainings.errors = {0.2: Interrupted("ctrl-c")}
    values = {"train.learning_rate": [0.1, 0.2]}

    with pytest.raises(Interrupted, match=r"sweep\.json"):
        edl_horovod.sweep(values, model_def="m", data="/d", output=tmp_path / "s")

    assert states(tmp_path) == ["finished", "interrupted"]


@pytest.mark.parametrize("values", ["0.1,0.2", 0.1, []])
def test_from_python_a_sweep_takes_lists_of_values(values, tmp_path):
    with pytest.raises(ConfigError):
        edl_horovod.sweep({"train": values}, model_def="m", data="/d", output=tmp_path / "s")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "named"),
    [
        *((name, "no marker") for name in ("sweep.csv", "sweep.json", "notes.txt")),
        ("trained_model.pb", "trained model"),
    ],
)
def test_a_folder_that_is_not_a_sweep_s_is_left_alone(edl, trainings, tmp_path, name, named):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / name).write_text("mine")
    code, _, err = edl(RATES, "overwrite=true")

    assert (code, trainings.rates) == (OutputError.exit_code, [])
    assert named in err
    assert (tmp_path / "s" / name).read_text() == "mine"


@pytest.mark.long
@pytest.mark.parametrize("key", ["data", "model_zoo"])
def test_a_sweep_does_not_write_where_its_jobs_read(edl, trainings, tmp_path, key):
    (tmp_path / "s").mkdir()
    code, _, err = edl(RATES, f"{key}={tmp_path}/s")

    assert (code, trainings.rates) == (7, [])
    assert f"of {key}, which" in err
