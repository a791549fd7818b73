"""The settings `model` and `model_spec`: what they may say, and whose paths they name."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from edl_horovod.config.compose import compose, compose_as
from edl_horovod.config.conf_files import ConfigFiles
from edl_horovod.config.schema import ImageConfig, JobConfig, PrepareConfig
from edl_horovod.errors import ConfigError

TRAIN = ["data=/d/*.npz", "output=/o"]
KERAS = ["model.name=KerasFLModel", "model.spec.model_name=cnn"]
SPEC = {"model_name": "cnn", "model_definition": "files/cnn.pt", "optimizer": "optim.Adam"}
SECTION = {"name": "PytorchFLModel", "path": "ibmfl.model.pytorch_fl_model", "spec": SPEC}


def composed(*overrides: str) -> JobConfig:
    return compose("train", [*TRAIN, *overrides])


def written(file: Path, content: Any) -> Path:
    file.write_text(json.dumps(content) if file.suffix == ".json" else yaml.safe_dump(content))
    return file


@pytest.mark.parametrize("name", ["config.yml", "config.json"])
def test_a_file_of_a_federation_is_a_model_and_its_other_sections_are_named_once(
    name, tmp_path, caplog
):
    sections = {"model": SECTION, "fusion": {"name": "IterAvg"}, "connection": {}}

    with caplog.at_level(logging.WARNING):
        config = composed(f"model_spec={written(tmp_path / name, sections)}")

    (warning,) = [record.message for record in caplog.records]
    assert "connection, fusion" in warning
    path = str(tmp_path / "files" / "cnn.pt")
    assert config.model == {**SECTION, "spec": {**SPEC, "model_definition": path}}
    assert (config.framework, config.model_spec, config.model_def) == ("torch", "", "")
    assert config.origins["model"] == f"command line, {tmp_path / name}"
    assert "model_spec" not in config.origins


@pytest.mark.parametrize("name", ["spec.yml", "spec.json"])
def test_a_spec_may_be_a_file_of_its_own(name, tmp_path):
    written(tmp_path / name, SPEC)
    file = written(tmp_path / "config.yml", {"model": {**SECTION, "spec": name}})

    for overrides in (
        [f"model_spec={file}"],
        ["model.name=PytorchFLModel", f"model.spec={tmp_path / name}"],
    ):
        spec = composed(*overrides).model["spec"]
        assert spec["model_definition"] == str(tmp_path / "files" / "cnn.pt")


def test_the_settings_say_it_inline_with_paths_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    config = composed(
        *KERAS,
        "model.spec.model_architecture=../a.json",
        "model.spec.model_weights=w.h5",
        "model.spec.custom_objects=[{key: loss, value: own_loss, path: ../loss.py}]",
        "model.spec.compile_model_options={optimizer: {value: Own, path: own.py, args: {lr: 1}}}",
    )

    above = tmp_path.parent
    optimizer = {"value": "Own", "path": str(tmp_path / "own.py"), "args": {"lr": 1}}
    assert config.model["spec"] == {
        "model_name": "cnn",
        "model_architecture": str(above / "a.json"),
        "model_weights": str(tmp_path / "w.h5"),
        "custom_objects": [{"key": "loss", "value": "own_loss", "path": str(above / "loss.py")}],
        "compile_model_options": {"optimizer": optimizer},
    }
    assert config.framework == "keras"
    spec = ("model.spec.model_name=net", "model.spec.model_architecture=net.py:Net")
    config = composed("model.name=PytorchFLModel", *spec)
    assert config.model["spec"]["model_architecture"] == f"{tmp_path}/net.py:Net"


def test_python_gives_it_as_a_dict():
    config = compose("train", TRAIN, values={"model": SECTION})

    assert config.origins["model"] == "program"
    assert config.model["spec"]["model_definition"] == str(Path.cwd() / "files" / "cnn.pt")


def test_a_group_of_the_users_own_is_a_model(tmp_path):
    (tmp_path / "model").mkdir()
    written(
        tmp_path / "model" / "cnn.yaml", {**SECTION, "spec": {**SPEC, "optimizer": "optim.SGD"}}
    )

    config = compose("train", [*TRAIN, "+model=cnn"], files=ConfigFiles(str(tmp_path), ""))

    assert config.model["spec"]["optimizer"] == "optim.SGD"


def test_a_function_is_called_by_nobody_who_composes():
    config = composed("model.name=TensorFlowFLModel", "model.spec=specs:make")

    assert config.model["spec"] == "specs:make"


def test_a_key_of_a_federation_inside_the_spec_has_no_effect(caplog):
    with caplog.at_level(logging.WARNING):
        config = composed(
            *KERAS, "model.spec.model_definition=/a.h5", "model.spec.is_classification=true"
        )

    assert "is_classification" in caplog.text
    assert "is_classification" not in config.model["spec"]


DEFINITION = "model.spec.model_definition=/a.h5"
OPTIONS = ("compile_model_options", "compiled_options")
WRONG = {
    "name": (["model.name=KerasModel"], "'KerasFLModel'"),
    "no name": ([DEFINITION], "model.name must"),
    "key": ([*KERAS, DEFINITION, "model.fusion=x"], "'fusion'"),
    "path": ([*KERAS, DEFINITION, "model.path=ibmfl.model.pytorch_fl_model"], "keras_fl_model"),
    "no definition": (KERAS, "lacks model_definition"),
    "no model_name": (["model.name=KerasFLModel", DEFINITION], "lacks model_name"),
    "no spec": (["model.name=KerasFLModel"], "model.spec must"),
    "unknown key": ([*KERAS, "model.spec.model_definiton=/a"], "'model_definition'"),
    "a key of another name": (
        [*KERAS, DEFINITION, "model.spec.loss_criterion=nn.L1Loss"],
        "KerasFLModel .*'loss_criterion'",
    ),
    "two definitions": (
        [*KERAS, DEFINITION, "model.spec.model_architecture=/a.json"],
        "both model_definition",
    ),
    "both spellings": (
        [*KERAS, DEFINITION, *(f"model.spec.{key}={{}}" for key in OPTIONS)],
        "both compile_model_options",
    ),
    "weights of a whole": ([*KERAS, DEFINITION, "model.spec.model_weights=/w.h5"], "model_weights"),
    "custom objects": (
        [*KERAS, DEFINITION, "model.spec.custom_objects=[{key: a, value: b}]"],
        r"\{key, value, path\}",
    ),
    "framework": ([*KERAS, DEFINITION, "framework=torch"], "must be keras"),
    "framework by default": (
        ["model.name=PytorchFLModel", "model.spec.model_name=a", DEFINITION, "framework=keras"],
        "must be torch",
    ),
    "model_def": ([*KERAS, DEFINITION, "model_def=mnist"], "model_def names"),
    "no file": (["model_spec=/nowhere.yml"], "No such file.*/nowhere.yml"),
}


@pytest.mark.long(after=1)
@pytest.mark.parametrize(("overrides", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_right_is_told(overrides, message):
    with pytest.raises(ConfigError, match=message):
        composed(*overrides)


def test_a_file_and_a_section_are_one_too_many(tmp_path):
    file = written(tmp_path / "config.yml", {"model": SECTION})

    with pytest.raises(ConfigError, match="both describe"):
        composed(f"model_spec={file}", *KERAS)


@pytest.mark.parametrize(
    ("text", "named"), [("{", "JSON"), ("- a", "hold keys"), ("data: {}", "`model:`")]
)
def test_a_file_without_a_section_is_told(text, named, tmp_path):
    (tmp_path / "config.yml").write_text(text)

    with pytest.raises(ConfigError, match=named):
        composed(f"model_spec={tmp_path / 'config.yml'}")


def test_a_model_in_files_is_trained_and_nothing_else():
    with pytest.raises(ConfigError, match="to train"):
        compose("predict", ["data=/d", "output=/o", "trained_model=/m", *KERAS, DEFINITION])


@pytest.mark.long
def test_trust_in_a_model_is_one_of_three():
    assert composed(*KERAS, DEFINITION, "trust=model").trusts("model")
    assert composed(*KERAS, DEFINITION, "trust=true").trusts("model")
    assert compose("train", [*TRAIN, "model_def=m"], values={"trust": "True"}).trusts("changed")
    assert not composed(*KERAS, DEFINITION, "trust=changed,image").trusts("model")


@pytest.mark.long(after=1)
@pytest.mark.parametrize("override", ["model_spec=config.yml", "model.name=KerasFLModel"])
@pytest.mark.parametrize(
    ("config_class", "needed", "verb", "hint"),
    [
        (PrepareConfig, ["data=/in", "output=/o"], "edl prepare", "model_def="),
        (ImageConfig, ["base_image=r/b:1", "image_repository=r/z"], "edl image", "launch=kub"),
    ],
)
def test_verbs_without_a_model_in_files_say_what_to_do_instead(
    config_class, needed, verb, hint, override, tmp_path
):
    key, _, value = override.partition("=")
    start = "prepare" if config_class is PrepareConfig else "image"
    nested = {"model": {"name": value}} if "." in key else {key: value}
    file = written(tmp_path / "own.yaml", {"defaults": [start, "_self_"], **nested})
    for overrides, files in (([override], ConfigFiles()), ([], ConfigFiles(str(tmp_path), "own"))):
        with pytest.raises(ConfigError, match=verb) as error:
            compose_as(config_class, [*needed, *overrides], files=files)
        assert hint in str(error.value)
        assert (file.name in str(error.value)) == (not overrides)
