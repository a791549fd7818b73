"""What the ranks of an evaluation take from a trained model without asking."""

import pytest

from edl_horovod.errors import DataError
from edl_horovod.job.events import EventLog
from edl_horovod.tasks import warm as prepare
from tests.alone import ME
from tests.jobs import config_of


@pytest.fixture
def changed_model(train, tmp_path):
    train("train.max_steps=1", job="job")
    model = tmp_path / "job-out"
    (code,) = (model / "zoo").glob("tiny.py")
    code.write_text(f"{code.read_text()}\n# A change.\n")
    return model


def open_model(model, tmp_path, *trust):
    settings = [f"trained_model={model}", f"data={tmp_path / 'data'}", "output=o", *trust]
    config = config_of("evaluate", settings)
    with EventLog(tmp_path / "e.jsonl", "test") as log, prepare.make_warm(config, log, ME):
        pass


def test_a_rank_runs_changed_code_only_where_that_is_allowed(changed_model, tmp_path):
    with pytest.raises(DataError, match=r"trust=changed"):
        open_model(changed_model, tmp_path)
    open_model(changed_model, tmp_path, "trust=changed")
