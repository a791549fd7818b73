"""What is not installed is told before anything starts."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edl_horovod import api
from edl_horovod.config.frameworks import FRAMEWORKS
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError, EdlError, MissingDependency
from edl_horovod.models.framework_name import framework_name
from edl_horovod.proto.trained_model_pb2 import TrainedModel
from tests.frameworks import NEEDS_KERAS

ZOO = Path(__file__).parents[2] / "zoo"


def a_job(folder: Path, **settings: str) -> JobConfig:
    """A training of a model that is there, on data that are there."""
    data = folder / "data.csv"
    data.write_text("x,y\n1,2\n")
    output = str(folder / "out")
    needed = {"data": str(data), "output": output, "model_zoo": str(ZOO), "model_def": "tiny"}
    return JobConfig(task="train", **{**needed, **settings})


def refused(config: JobConfig, error: type[EdlError], match: str) -> EdlError:
    """The error of a job here that starts nothing and writes nothing."""
    with pytest.raises(error, match=match) as caught:
        api.run(config)
    assert not Path(config.output).exists()
    return caught.value


@pytest.mark.parametrize(
    ("missing", "named", "hint"),
    [
        (("horovod",), "and horovod is", ()),
        (
            ("keras", "tensorflow", "horovod"),
            "and keras and tensorflow and horovod are",
            ("make setup", "pip install -c constraints.txt '.[tensorflow]'"),
        ),
    ],
)
@NEEDS_KERAS
def test_a_job_here_without_what_its_workers_import_starts_nothing(
    tmp_path, monkeypatch, missing, named, hint
):
    for package in missing:
        monkeypatch.setitem(sys.modules, package, None)
    config = a_job(tmp_path)
    error = refused(config, MissingDependency, named)
    assert all(text in error.hint for text in (*hint, "edl setup-horovod"))
    assert str(error).count("edl doctor") == 1
    assert list(tmp_path.iterdir()) == [Path(config.data)]


def test_a_job_whose_half_of_horovod_was_not_built_starts_nothing(tmp_path, monkeypatch):
    entry = replace(FRAMEWORKS["torch"], packages=("numpy",), horovod="horovod.mxnet")
    monkeypatch.setitem(FRAMEWORKS, "torch", entry)
    config = a_job(tmp_path, framework="torch")
    error = refused(config, MissingDependency, "built without")
    assert "setup-horovod" in error.hint
    assert list(tmp_path.iterdir()) == [Path(config.data)]


@pytest.mark.parametrize("by_file", [False, True])
def test_a_backend_of_keras_without_a_ring_is_one_sentence(tmp_path, monkeypatch, by_file):
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    if by_file:
        (tmp_path / "keras.json").write_text('{"backend": "torch"}')
        monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    else:
        monkeypatch.setenv("KERAS_BACKEND", "torch")
    error = refused(a_job(tmp_path), ConfigError, "torch.*KERAS_BACKEND=tensorflow.*framework=t")
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "variables", [{}, {"KERAS_BACKEND": "tensorflow"}, {"KERAS_BACKEND": "tensorflow", "X": ""}]
)
@pytest.mark.parametrize("text", ["", "[]", "{}", '{"backend": "tensorflow"}'])
def test_keras_on_tensorflow_is_taken(tmp_path, variables, text):
    (tmp_path / "keras.json").write_text(text)
    FRAMEWORKS["keras"].check_environment({**variables, "KERAS_HOME": str(tmp_path)})


def test_a_trained_model_needs_its_own_framework_whatever_the_setting_says(tmp_path):
    written = TrainedModel(framework="torch").SerializeToString()
    (tmp_path / "trained_model.pb").write_bytes(written)
    config = JobConfig(task="evaluate", data=str(tmp_path), trained_model=str(tmp_path))
    assert framework_name(config) == "torch"
    assert framework_name(replace(config, trained_model="/no/such/model")) == "keras"
