"""A job's outcome, from the process that knows it to the one that shows it."""

import json
import math

import pytest

from edl_horovod.errors import DataError, JobFailed
from edl_horovod.job import outcome
from edl_horovod.job.outcome import Failure, Success

FILES = [
    (
        Success(steps=7, metrics={"auc": 0.5}, output="/out"),
        '{"state": "finished", "steps": 7, "metrics": {"auc": 0.5}, "output": "/out"}',
    ),
    (
        Success(steps=7, metrics={}, examples=30, output=""),
        '{"state": "finished", "steps": 7, "metrics": {}, "examples": 30, "output": ""}',
    ),
    (
        Failure(error="DataError", message="no files"),
        '{"state": "failed", "error": "DataError", "message": "no files"}',
    ),
    (
        Failure(worker="localhost:0", error="DataError", message="no files"),
        '{"state": "failed", "worker": "localhost:0", "error": "DataError", "message": "no files"}',
    ),
]


@pytest.mark.parametrize(("ended", "text"), FILES)
def test_an_outcome_and_its_file(tmp_path, ended, text):
    outcome.save(tmp_path / "result.json", ended)

    assert (tmp_path / "result.json").read_text() == text
    assert outcome.load(tmp_path / "result.json") == ended


def test_a_job_without_the_file_has_no_outcome_yet(tmp_path):
    assert outcome.load(tmp_path / "result.json") is None


def test_a_field_of_a_newer_version_is_passed_over(tmp_path):
    ended, text = FILES[0]
    newer = {**json.loads(text), "colour": ["blue"]}
    (tmp_path / "result.json").write_text(json.dumps(newer))

    assert outcome.load(tmp_path / "result.json") == ended


def test_a_metric_that_is_not_finite_stays_so(tmp_path):
    outcome.save(tmp_path / "result.json", Success(steps=7, metrics={"auc": math.nan}, output=""))

    assert math.isnan(outcome.load(tmp_path / "result.json").metrics["auc"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("{}", "its state"),
        ('{"state": ["finished"]}', "its state"),
        ('{"state": "finished", "metrics": {}, "output": ""}', "'steps' is missing"),
        ('{"state": "finished", "steps": "7", "metrics": {}, "output": ""}', "'steps' .*type"),
        ('{"state": "failed", "error": "DataError"}', "'message' is missing"),
    ],
)
def test_a_damaged_file_is_reported_with_what_is_wrong_with_it(tmp_path, text, problem):
    (tmp_path / "result.json").write_text(text)

    with pytest.raises(JobFailed, match=rf"{problem}.*result\.json"):
        outcome.load(tmp_path / "result.json")


def test_an_error_keeps_its_class_and_its_text():
    error = DataError("No file matches.", received={"data": "/d"}, hint="Give another path.")

    back = Failure.of(error).as_error()

    assert (type(back), str(back)) == (DataError, str(error))
