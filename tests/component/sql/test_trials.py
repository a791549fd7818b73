"""Trials of a TRAIN on sqlite with a stand-in for the ring: what is run, kept, told and removed."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from edl_horovod import api
from edl_horovod.errors import ConfigError, DataError, Interrupted, JobFailed, TrainingError
from edl_horovod.sql.jobs import find_jobs, request_kill
from edl_horovod.sql.settings import read_settings
from edl_horovod.sql.statements import StatementError
from tests.component.sql.sessions import run as run_all
from tests.component.sql.sessions import session_on
from tests.unit.sweeps.trainings import Trainings

TRAINED = """SELECT name, salary FROM employee TRAIN regressor.DNN
WITH train.learning_rate={rates}, train.split='sequential', train.split_fraction=0.25{attributes}
LABEL salary INTO m"""
CANDIDATES = "HPARAM_CANDIDATES([1, 0.1, 0.5])"
RANGE = "HPARAM_RANGE(0.001, 1, 'log')"


def near_a_tenth(config):
    rate = config.train.learning_rate
    return {"loss": abs(rate - 0.1), "score": 1 - abs(rate - 0.1)}


@pytest.fixture
def trainings(monkeypatch):
    return Trainings.in_place(monkeypatch, metrics=near_a_tenth)


@pytest.fixture
def models(tmp_path):
    return tmp_path / "models"


@pytest.fixture
def configs():
    """The settings of the trials, with how many rows each finds."""
    return []


@pytest.fixture
def session(sqlite, tmp_path, trainings, configs):
    rows = ", ".join(f"('n{number}', {number})" for number in range(12))
    sqlite.run(
        "CREATE TABLE employee (name TEXT, salary REAL)", f"INSERT INTO employee VALUES {rows}"
    )
    messages = []

    def run_job(config):
        counts = [
            sum(pq.read_metadata(file).num_rows for file in Path(folder).iterdir())
            for folder in (config.data, config.validation_data)
        ]
        configs.append((config, counts))
        return api.run(config)

    with session_on(sqlite, tmp_path, run_job, messages.append) as session:
        session.messages = messages
        yield session


def run(session, rates=CANDIDATES, attributes="", after=""):
    return run_all(session, TRAINED.format(rates=rates, attributes=attributes) + after)


@pytest.mark.long
def test_the_best_of_all_combinations_becomes_the_version(session, trainings, configs, models):
    attributes = ", hidden_units=HPARAM_CANDIDATES([[10], [20, 5]])"
    trained, described = run(session, attributes=attributes, after="; DESCRIBE MODEL m")
    assert trainings.rates == [1, 1, 0.1, 0.1, 0.5, 0.5]
    assert [config.params["hidden_units"] for config, _ in configs] == [[10], [20, 5]] * 3
    assert [counts for _, counts in configs] == [[9, 3]] * 6
    assert trained.metrics == {"loss": 0.0, "score": 1.0}
    assert "=0.1, hidden_units=[10], " in trained.message
    facts = [row for row in described.rows if row[0] in ("metric", "chosen")]
    assert facts == [
        ("metric", "loss", 0.0),
        ("metric", "score", 1.0),
        ("chosen", "train.learning_rate", "0.1"),
        ("chosen", "hidden_units", "[10]"),
    ]
    trials = [row[1:] for row in described.rows if row[0] == "trial"]
    assert len(trials) == 6
    assert trials[4][0] == "5"
    assert trials[4][1].startswith("train.learning_rate=0.5, hidden_units=[10]: loss=0.4, score=")
    shown = session.run(session.parse("SHOW TRIALS m")[0]).dicts()
    assert [row["train.learning_rate"] for row in shown] == ["1", "1", "0.1", "0.1", "0.5", "0.5"]
    assert [row["trial"] for row in shown if row["best"]] == [3]
    assert [row["validation_score"] for row in shown][2:4] == [1.0, 1.0]
    assert {(row["state"], row["error"]) for row in shown} == {("finished", None)}
    stored = models / "m" / "1" / "model"
    assert "learning_rate: 0.1" in (stored / "config.yaml").read_text()
    assert list((models / ".jobs").iterdir()) == []


@pytest.mark.long
def test_the_trials_are_told_as_they_run(session):
    run(session)
    first, *_ = (place for place, said in enumerate(session.messages) if "Trial" in said)
    assert "minimize loss" in session.messages[0]
    assert session.messages[first : first + 3] == [
        "Trial 1 of 3: train.learning_rate=1",
        "Trial 1 of 3 has ended: loss=0.9, score=0.1",
        "Trial 2 of 3: train.learning_rate=0.1",
    ]
    assert sum("rows were" in said for said in session.messages) == 1


@pytest.mark.long
def test_a_metric_may_be_the_higher_the_better(session):
    attributes = ", sweep.metric='score', sweep.direction='minimize'"
    worst, best = (
        run(session, attributes=attributes),
        run(session, attributes=attributes.replace("minimize", "maximize")),
    )
    assert worst[0].metrics["score"] == pytest.approx(0.1)
    assert best[0].metrics["score"] == 1.0


@pytest.mark.long
def test_a_search_runs_as_many_trials_as_asked(session, trainings, models):
    (result,) = run(session, RANGE, ", sweep.num_trials=4, sweep.seed=1")
    assert len(trainings.rates) == 4
    assert all(0.001 <= rate <= 1 for rate in trainings.rates)
    best = min(trainings.rates, key=lambda rate: abs(rate - 0.1))
    assert f"={best}, the best" in result.message
    assert list((models / ".jobs").iterdir()) == []
    first = list(trainings.rates)
    run(session, RANGE, ", sweep.num_trials=4, sweep.seed=1")
    assert trainings.rates[4:] == first


@pytest.mark.long
def test_values_that_a_search_draws_twice_are_trained_once(session, trainings):
    attributes = ", sweep.num_trials=9, sweep.seed=1, hidden_units=HPARAM_CANDIDATES([[1], [2]])"
    run(session, "HPARAM_CANDIDATES([0.1, 0.2])", attributes)
    assert len(trainings.rates) <= 4


@pytest.mark.long
def test_a_trial_that_fails_is_told_and_kept_in_mind(session, trainings):
    reason = "The loss is not finite."
    trainings.errors[0.1] = TrainingError(reason)
    trained, described = run(session, after="; DESCRIBE MODEL m")
    assert trained.metrics["loss"] == pytest.approx(0.4)
    assert any("2 of 3" in message and reason in message for message in session.messages)
    assert ("trial", "2", f"train.learning_rate=0.1: failed: {reason}") in [
        row[:3] for row in described.rows
    ]


@pytest.mark.long
def test_trials_that_all_fail_are_an_error_with_the_first_reason(session, trainings, models):
    trainings.errors |= {rate: DataError(f"no {rate}") for rate in (1, 0.1, 0.5)}
    with pytest.raises(JobFailed, match=r"3 trials.*: no 1"):
        run(session)
    assert not (models / "m").exists()


@pytest.mark.long
def test_settings_that_no_trial_can_do_with_end_the_statement(session, trainings):
    trainings.errors[1] = ConfigError("There is no parameter x.")
    with pytest.raises(ConfigError, match="no parameter x"):
        run(session)
    assert trainings.rates == [1]
    trainings.errors = {0.5: ConfigError("The rate is odd.")}
    assert "best of 3" in run(session)[0].message


@pytest.mark.long
def test_an_unknown_metric_ends_the_statement_with_its_place(session, trainings):
    attributes = ",\n sweep.metric='acuracy', sweep.direction='maximize'"
    with pytest.raises(StatementError, match="'acuracy'") as caught:
        run(session, attributes=attributes)
    assert caught.value.position.line == 3
    assert "loss, score" in str(caught.value)
    assert len(trainings.rates) == 1


@pytest.mark.long
@pytest.mark.parametrize("rates", [CANDIDATES, RANGE])
def test_wrong_settings_are_refused_before_rows_are_read(session, trainings, models, rates):
    attributes = ", train.batch_size=HPARAM_CANDIDATES([8, 'many'])"
    with pytest.raises(ConfigError, match=r"batch_size"):
        run(session, rates, attributes)
    assert trainings.rates == []
    assert not any("read" in said for said in session.messages)
    assert list((models / ".jobs").iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("rates", [CANDIDATES, RANGE])
def test_a_killed_statement_ends_its_trials_and_leaves_nothing(
    session, trainings, configs, models, rates
):
    run_job = session.context.run_job

    def killed(config):
        (entry,) = find_jobs(models)
        if len(configs) == 1:
            assert entry.title.startswith("TRAIN m, trial 2 of ")
            assert entry.job_dir == Path(config.job_dir)
            request_kill(models, entry.number)
        return run_job(config)

    session.context.run_job = killed
    with pytest.raises(Interrupted, match="KILL 1"):
        run(session, rates)
    assert len(trainings.rates) == 2
    assert find_jobs(models) == ()
    assert session.context.store.names() == ()


@pytest.mark.long
@pytest.mark.parametrize("rates", [CANDIDATES, RANGE])
def test_an_interrupt_leaves_nothing(session, trainings, models, rates):
    trainings.end_with(KeyboardInterrupt(), at=2)
    with pytest.raises(Interrupted):
        run(session, rates)
    assert len(trainings.rates) == 2
    assert list((models / ".jobs").iterdir()) == []


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("rates", "said", "rate"),
    [
        (CANDIDATES, "3 trials, ", "1.0"),
        (RANGE, "20 trials, ", "0.001"),
    ],
)
def test_a_dry_run_shows_the_trials_and_the_settings_of_one(
    session, trainings, models, rates, said, rate
):
    session.context.is_dry_run = True
    (result,) = run(session, rates)
    assert f"# {said}" in result.message
    assert f"  learning_rate: {rate}" in result.message
    assert f"{models}/.jobs/N/validation" in result.message
    assert trainings.rates == []
    assert not models.exists()


@pytest.mark.long
def test_a_setting_of_the_program_cannot_vary_too(session, models):
    words = [f"db={session.context.settings.db}", f"models={models}", "launch.np=1"]
    session.context.settings = read_settings(words, {})
    with pytest.raises(ConfigError, match=r"\.np .*twice"):
        run(session, attributes=", engine.num_workers=HPARAM_CANDIDATES([1, 2])")
