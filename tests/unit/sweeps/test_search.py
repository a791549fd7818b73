import json
from collections.abc import Callable
from pathlib import Path

import pytest

from edl_horovod.cli.main import main
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import DataError, Interrupted
from tests.later import LATER
from tests.unit.sweeps.trainings import Trainings

if LATER:
    pytest.importorskip("optuna", reason="needs the extra [dev]")

SEARCH = [
    "hydra/sweeper=optuna",
    "hydra.sweeper.metric=accuracy",
    "hydra.sweeper.direction=maximize",
    "hydra.sweeper.n_trials=6",
    "hydra.sweeper.sampler.seed=1",
]
RATE = "train.learning_rate=tag(log, interval(0.001,1))"
Run = Callable[..., tuple[int, str, str]]


def near_a_tenth(config: JobConfig) -> dict[str, float]:
    rate = config.train.learning_rate or 0.0
    return {"loss": abs(rate - 0.1), "accuracy": 1 - abs(rate - 0.1)}


@pytest.fixture
def trainings(monkeypatch):
    return Trainings.in_place(monkeypatch, metrics=near_a_tenth)


@pytest.fixture
def edl(capsys, tmp_path, trainings):
    def run(*argv: str) -> tuple[int, str, str]:
        job = ["model_def=m", "data=/d", "validation_data=/v", f"output={tmp_path}/s"]
        return main(["train", "-m", *job, *SEARCH, *argv]), *capsys.readouterr()

    return run


def rows(folder: Path) -> list[dict[str, str]]:
    jobs: list[dict[str, str]] = json.loads((folder / "s" / "sweep.json").read_text())["jobs"]
    return jobs


@pytest.mark.long
def test_it_runs_as_many_jobs_as_asked_and_names_the_best(edl, trainings, tmp_path):
    code, out, _ = edl(RATE)

    assert code == 0
    assert len(trainings.rates) == 6
    assert all(0.001 <= rate <= 1 for rate in trainings.rates)
    best = min(trainings.rates, key=lambda rate: abs(rate - 0.1))
    assert f"learning_rate={best} (accuracy " in out
    assert [row["state"] for row in rows(tmp_path)] == ["finished"] * 6


@pytest.mark.further
def test_the_same_command_goes_on_after_an_interrupt(edl, trainings, tmp_path):
    trainings.end_with(Interrupted("ctrl-c"), at=3)
    assert edl(RATE)[0] == 130
    interrupted = trainings.rates[-1]

    code, _, _ = edl(RATE)

    assert code == 0
    assert [row["state"] for row in rows(tmp_path)] == ["earlier"] * 2 + ["finished"] * 4
    assert trainings.rates[3] == interrupted
    assert len(trainings.rates) == 7
    assert edl(RATE)[0] == 0
    assert len(trainings.rates) == 7


@pytest.mark.further
def test_a_failed_job_ends_no_search_and_is_tried_again(edl, trainings, tmp_path):
    trainings.end_with(DataError("no file"), at=2)

    assert edl(RATE)[0] == 1
    assert [row["state"] for row in rows(tmp_path)].count("failed") == 1
    failed = trainings.rates[1]
    assert edl(RATE)[0] == 0
    assert trainings.rates[6:] == [failed]


@pytest.mark.long
def test_choices_and_ranges_are_searched_too(edl, trainings, tmp_path):
    code, _, _ = edl(
        "params.act=choice(relu,ta nh)", "train.epochs=range(2,9,3)", "launch.np=interval(1,2)"
    )

    assert code == 0
    for row in rows(tmp_path):
        assert row["chosen"]["train.epochs"] in ("2", "5", "8")
        assert row["chosen"]["launch.np"] in ("1", "2")
        assert row["chosen"]["params.act"] in ("relu", r"ta\ nh")


def test_a_dry_run_shows_what_is_searched(edl, trainings, tmp_path):
    code, out, _ = edl(RATE, "--dry-run")

    assert (code, trainings.rates) == (0, [])
    assert out.splitlines() == ["6 jobs, chosen by Optuna to maximize accuracy:", f"  {RATE}"]
    assert not (tmp_path / "s").exists()


WRONG_IN_ALL = [
    (["validation_data="], "Give validation_data"),
    (["train.epochs=1,many"], "train.epochs=many"),
    (["launch=kubernetes"], "one by one"),
]


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["hydra.sweeper.metric=auc"], "'auc'"),
        (["hydra.sweeper.direction=up"], "minimize, maximize"),
        (["hydra.sweeper.n_trials=0"], "n_trials must be 1"),
        (["hydra.sweeper.n_trial=3"], "n_trial"),
        (["hydra/sweeper=optun"], "optun"),
        (["hydra.run.dir=/x"], "hydra.run.dir"),
        *WRONG_IN_ALL[:2],
    ],
)
def test_a_wrong_search_is_refused(edl, trainings, words, named):
    code, _, err = edl(RATE, *words)

    assert code in (1, 2)
    assert named in err


@pytest.mark.further
@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([RATE, "train.epochs=7"], "train.epochs=1, now 7"),
        (["train.learning_rate=interval(0.001,2)"], "train.learning_rate='FloatDistribution"),
        ([RATE, "train.epochs=1,2"], "train.epochs=1, now"),
        (["train.learning_rate=0.1,0.2"], "train.learning_rate='FloatDistribution"),
        (["train.epochs=1,2"], "train.learning_rate='FloatDistribution"),
        ([RATE, "hydra.sweeper.metric=loss"], "metric='accuracy', now 'loss'"),
        ([RATE, "hydra.sweeper.direction=minimize"], "direction='maximize', now 'minimize'"),
    ],
)
def test_a_study_goes_on_with_its_own_settings_alone(edl, trainings, tmp_path, words, named):
    edl(RATE)
    before = (tmp_path / "s" / "sweep.json").read_text()

    code, _, err = edl(*words)

    assert (code, len(trainings.rates)) == (2, 6)
    assert named in err
    assert "overwrite=true" in err
    assert (tmp_path / "s" / "sweep.json").read_text() == before


@pytest.mark.further
def test_overwrite_begins_a_new_study(edl, trainings, tmp_path):
    edl(RATE)
    code, _, _ = edl(
        "train.learning_rate=interval(2,3)", "hydra.sweeper.n_trials=4", "overwrite=true"
    )

    assert code == 0
    assert [row["state"] for row in rows(tmp_path)] == ["finished"] * 4
    assert all(2 <= (rate or 0) <= 3 for rate in trainings.rates[6:])
    assert len(trainings.rates) == 10
    assert all(row["metrics"] for row in rows(tmp_path))


@pytest.mark.further
def test_a_study_s_settings_may_be_spelled_in_another_way_and_have_more_trials(edl, trainings):
    edl(RATE)
    code, _, _ = edl("train.learning_rate=tag(log, interval(1e-3,1.0))", "log_level=debug")
    assert (code, len(trainings.rates)) == (0, 6)
    edl(RATE, "hydra.sweeper.n_trials=8")
    assert len(trainings.rates) == 8


@pytest.mark.long
def test_the_time_in_a_folder_s_name_is_that_of_the_search(edl, trainings, tmp_path):
    now = "${now:%H-%M-%S-%f}"
    code, _, _ = edl(RATE, f"output={tmp_path}/at-{now}", f"job_dir={tmp_path}/jobs-{now}")

    assert code == 0
    (output,) = tmp_path.glob("at-*")
    (job_dir,) = tmp_path.glob("jobs-*")
    assert len(list(output.glob("learning_rate=*/trained_model.pb"))) == 6
    assert len(list(job_dir.glob("learning_rate=*/events.jsonl"))) == 6


def test_a_password_is_not_searched(edl, trainings, tmp_path):
    zoos = ",".join(f"git+https://me:s3cr3t@host/{name}@main" for name in "ab")
    code, out, err = edl(f"model_zoo={zoos}")

    assert (code, trainings.rates) == (2, [])
    assert "a password" in err
    assert "s3cr3t" not in out + err
    assert not (tmp_path / "s").exists()


@pytest.mark.long
@pytest.mark.parametrize(("words", "named"), WRONG_IN_ALL)
def test_a_dry_run_checks_what_a_search_does(edl, tmp_path, words, named):
    code, out, err = edl(RATE, *words, "--dry-run")

    assert (code, out) == (2, "")
    assert named in err
    assert not (tmp_path / "s").exists()


@pytest.mark.further
def test_values_that_look_alike_in_a_name_have_their_own_jobs(edl, trainings, tmp_path):
    words = ("params.units=choice([10,20],[[10],20],plain)", "hydra.sweeper.n_trials=12")
    code, _, _ = edl(*words)

    assert code == 0
    units = {row["chosen"]["params.units"] for row in rows(tmp_path)}
    assert units == {"[10,20]", "[[10],20]", "plain"}
    names = [row["name"] for row in rows(tmp_path)]
    assert len(set(names)) == 3
    assert "units=plain" in names
    assert edl(*words)[0] == 0
    assert len(trainings.rates) == 3
