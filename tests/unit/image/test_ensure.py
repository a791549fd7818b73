import logging
from pathlib import Path

import pytest

from edl_horovod import image
from edl_horovod.config.compose import compose
from edl_horovod.errors import ConfigError, DataError, MissingDependency
from edl_horovod.image import job as image_job
from edl_horovod.proto.trained_model_pb2 import TrainedModel

GIVEN = "host/zoo@sha256:" + "ab" * 32
PARTS = ("base_image=host/base:1", "image_repository=host/zoo")


def train(*overrides):
    return compose("train", ["model_def=m", "data=d", "output=o", *overrides])


def predict(trained_model: Path, *overrides):
    return compose("predict", [f"trained_model={trained_model}", "data=d", "output=o", *overrides])


def write_model(folder: Path, **fields: str) -> Path:
    folder.mkdir()
    (folder / "trained_model.pb").write_bytes(TrainedModel(**fields).SerializeToString())
    return folder


def test_a_given_image_is_taken_with_its_zoo_which_may_be_elsewhere():
    job = image.ensure(train(f"image=docker-pullable://{GIVEN}"))
    assert (job.image, job.model_zoo) == (GIVEN, "/model_zoo")
    assert image.ensure(train(f"image={GIVEN}", "model_zoo=/mnt/zoo")).model_zoo == "/mnt/zoo"


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ([f"image={GIVEN}", "model_zoo=git+https://host/zoo.git@v1"], "pre-built"),
        (["image=host/zoo:latest"], "than latest"),
        (["model_zoo=zoo", "base_image=host/base:1"], r": image_repository\."),
    ],
)
def test_what_names_no_single_image_is_refused(overrides, named):
    with pytest.raises(ConfigError, match=named):
        image.ensure(train(*overrides))


def of_files(*overrides):
    spec = ["model.spec.model_name=cnn", "model.spec.model_definition=/cnn.pt"]
    name = "model.name=PytorchFLModel"
    return compose("train", ["data=d", "output=o", name, *spec, *overrides])


def test_a_given_image_and_a_model_in_files_contradict_each_other():
    with pytest.raises(ConfigError) as caught:
        image.ensure(of_files(f"image={GIVEN}"))

    assert caught.value.received == {"image": GIVEN, "model.name": "PytorchFLModel"}


def test_a_model_in_files_has_its_zoo_in_the_image():
    job = image.as_if_built(of_files(*PARTS))
    assert (job.model_zoo, job.model_def) == ("/model_zoo", "model_of_spec.Model")


@pytest.mark.parametrize("trust", ["", "trust=changed"])
def test_the_image_that_a_model_names_is_shown_and_not_run_by_itself(tmp_path, trust):
    model = write_model(tmp_path / "m", docker_commit_id=GIVEN)
    with pytest.raises(ConfigError, match=rf"{GIVEN}.*={GIVEN}.*trust=image"):
        image.ensure(predict(model, *filter(None, [trust])))


def test_the_image_that_a_model_names_runs_where_that_is_allowed(tmp_path, caplog):
    model = write_model(tmp_path / "m", docker_commit_id=GIVEN)
    with caplog.at_level(logging.INFO):
        job = image.ensure(predict(model, "trust=changed,image"))
    assert job.image == GIVEN
    assert GIVEN in caplog.text


def test_a_given_image_needs_no_trust(tmp_path):
    other = "host/other@sha256:" + "cd" * 32
    model = write_model(tmp_path / "m", docker_commit_id=GIVEN)
    assert image.ensure(predict(model, f"image={other}")).image == other


def test_no_image_is_built_of_code_that_was_changed(tmp_path):
    model = write_model(tmp_path / "m", zoo_hash="ab")
    (model / "zoo").mkdir()
    (model / "zoo" / "requirements.txt").write_text("evil\n")
    with pytest.raises(DataError, match="trust=changed"):
        image.ensure(predict(model, *PARTS))


@pytest.mark.long
def test_a_dry_run_names_the_place_of_the_image_and_builds_none(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    model = write_model(tmp_path / "m")
    (model / "zoo").mkdir()
    of_model = image.as_if_built(predict(model, "trust=changed", *PARTS))
    of_zoo = image.as_if_built(train("model_zoo=git+https://host/zoo.git@v1", *PARTS))
    assert of_model.image == of_zoo.image == "host/zoo:not-built-yet"
    assert of_zoo.model_zoo == "/model_zoo"
    assert image.as_if_built(train(f"image={GIVEN}")) == image.ensure(train(f"image={GIVEN}"))


def test_a_model_that_only_the_pods_see_needs_a_given_image(tmp_path):
    with pytest.raises(ConfigError, match="read here"):
        image.ensure(predict(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("content", "error", "problem"),
    [(b"", ConfigError, "Missing: base_image"), (b"\xff\xff", DataError, "damaged")],
    ids=["trained without an image", "damaged"],
)
def test_a_model_that_names_no_image_is_refused_without_one(tmp_path, content, error, problem):
    model = write_model(tmp_path / "m")
    (model / "trained_model.pb").write_bytes(content)
    with pytest.raises(error, match=problem):
        image.ensure(predict(model))


def test_no_builder_is_told_with_all_that_was_tried(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(MissingDependency, match=r"none\.sock"):
        image_job.connect()


def test_the_usual_sockets_are_tried_where_none_is_named(monkeypatch):
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert image_job.sockets() == [
        "unix:///var/run/docker.sock",
        "unix:///run/user/7/docker.sock",
        "unix:///run/user/7/podman/podman.sock",
        "unix:///run/podman/podman.sock",
    ]
