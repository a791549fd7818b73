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

    (warning,) = [each.message for each in caplog.records]
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

    for given in (
        [f"model_spec={file}"],
        ["model.name=PytorchFLModel", f"model.spec={tmp_path / name}"],
    ):
        found = composed(*given).model["spec"]
        assert found["model_definition"] == str(tmp_path / "files" / "cnn.pt")


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
    assert config.model["spec"] == {
        "model_name": "cnn",
        "model_architecture": str(above / "a.json"),
        "model_weights": str(tmp_path / "w.h5"),
        "custom_objects": [{"key": "loss", "value": "own_loss", "path": str(above / "loss.py")}],
        "compile_model_options": {
            "optimizer": {"value": "Own", "path": str(tmp_path / "own.py"), "args": {"lr": 1}}
        },
    }
    assert config.framework == "keras"


def test_python_gives_it_as_a_dict():
    config = compose("train", TRAIN, values={"model": SECTION})

    assert config.origins["model"] == "program"
    assert config.model["spec"]["model_definition"] == str(Path.cwd() / "files" / "cnn.pt")


def test_a_class_in_a_python_file_keeps_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    config = composed(
        "model.name=PytorchFLModel",
        "model.spec.model_name=net",
        "model.spec.model_architecture=net.py:Net",
    )

    assert config.model["spec"]["model_architecture"] == f"{tmp_path}/net.py:Net"


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
WRONG = {
    "name": (["model.name=KerasModel"], r"one of KerasFLModel.*mean 'KerasFLModel'"),
    "no name": ([DEFINITION], r"model.name must be one of"),
    "key": ([*KERAS, DEFINITION, "model.fusion=x"], r"no 'fusion'"),
    "path": (
        [*KERAS, DEFINITION, "model.path=ibmfl.model.pytorch_fl_model"],
        r"does not belong to KerasFLModel.*ibmfl.model.keras_fl_model",
    ),
    "no definition": (KERAS, r"lacks model_definition, or model_architecture"),
    "no model_name": (["model.name=KerasFLModel", DEFINITION], r"lacks model_name"),
    "no spec": (["model.name=KerasFLModel"], r"model.spec must be keys and values"),
    "unknown key": ([*KERAS, "model.spec.model_definiton=/a"], r"mean 'model_definition'"),
    "a key of another name": (
        [*KERAS, DEFINITION, "model.spec.loss_criterion=nn.L1Loss"],
        r"KerasFLModel has no key 'loss_criterion'",
    ),
    "two definitions": (
        [*KERAS, DEFINITION, "model.spec.model_architecture=/a.json"],
        r"both model_definition and model_architecture",
    ),
    "both spellings": (
        [
            *KERAS,
            DEFINITION,
            "model.spec.compile_model_options={}",
            "model.spec.compiled_options={}",
        ],
        r"both compile_model_options and compiled_options",
    ),
    "weights of a whole": (
        [*KERAS, DEFINITION, "model.spec.model_weights=/w.h5"],
        r"Leave model_weights out",
    ),
    "custom objects": (
        [*KERAS, DEFINITION, "model.spec.custom_objects=[{key: a, value: b}]"],
        r"a list of \{key, value, path\}",
    ),
    "framework": ([*KERAS, DEFINITION, "framework=torch"], r"framework must be keras for a Keras"),
    "model_def": (
        [*KERAS, DEFINITION, "model_def=mnist"],
        r"model_def names a model of the model zoo, and.*Leave one out",
    ),
    "no file": (["model_spec=/nowhere.yml"], r"cannot be read: No such file.*/nowhere.yml"),
}


@pytest.mark.parametrize(("overrides", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_right_is_told(overrides, message):
    with pytest.raises(ConfigError, match=message):
        composed(*overrides)


def test_the_framework_of_another_name_is_told_also_where_it_is_the_default():
    with pytest.raises(ConfigError, match="framework must be torch for a PytorchFLModel"):
        composed(
            "model.name=PytorchFLModel", "model.spec.model_name=a", DEFINITION, "framework=keras"
        )


def test_a_file_and_a_section_are_one_too_many(tmp_path):
    file = written(tmp_path / "config.yml", {"model": SECTION})

    with pytest.raises(ConfigError, match="both describe the model"):
        composed(f"model_spec={file}", *KERAS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "neither YAML nor JSON"),
        ("- a", "must hold keys"),
        ("data: {}", "no section `model:`"),
    ],
)
def test_a_file_without_a_section_is_told(text, message, tmp_path):
    (tmp_path / "config.yml").write_text(text)

    with pytest.raises(ConfigError, match=message):
        composed(f"model_spec={tmp_path / 'config.yml'}")


def test_a_model_in_files_is_trained_and_nothing_else():
    with pytest.raises(ConfigError, match="model belongs to train"):
        compose("predict", ["data=/d", "output=/o", "trained_model=/m", *KERAS, DEFINITION])


def test_trust_in_a_model_is_one_of_three():
    assert composed(*KERAS, DEFINITION, "trust=model").trusts("model")
    assert composed(*KERAS, DEFINITION, "trust=true").trusts("model")
    assert compose("train", [*TRAIN, "model_def=m"], values={"trust": "True"}).trusts("changed")
    assert not composed(*KERAS, DEFINITION, "trust=changed,image").trusts("model")


@pytest.mark.parametrize("override", ["model_spec=config.yml", "model.name=KerasFLModel"])
@pytest.mark.parametrize(
    ("config_class", "needed", "message"),
    [
        (
            PrepareConfig,
            ["data=/in", "output=/o"],
            "edl prepare makes records with a function .* a model in files has no.*Give model_def=",
        ),
        (
            ImageConfig,
            ["base_image=r/b:1", "image_repository=r/z"],
            "edl image puts a model zoo on an image.*only when a job starts.*edl train launch=kub",
        ),
    ],
)
def test_verbs_without_a_model_in_files_say_what_to_do_instead(
    config_class, needed, message, override, tmp_path
):
    with pytest.raises(ConfigError, match=message):
        compose_as(config_class, [*needed, override])

    key, _, value = override.partition("=")
    file = tmp_path / "own.yaml"
    start = "prepare" if config_class is PrepareConfig else "image"
    nested = {"model": {"name": value}} if "." in key else {key: value}
    file.write_text(yaml.safe_dump({"defaults": [start, "_self_"], **nested}))
    with pytest.raises(ConfigError, match=f"{message}.*own.yaml|own.yaml.*Give|own.yaml.*Start"):
        compose_as(config_class, needed, files=ConfigFiles(str(tmp_path), "own"))
