"""The model zoo that the command makes of a model spec; no framework is imported for it."""

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError, OutputError, UserCodeError
from edl_horovod.job.output_checks import check_paths
from edl_horovod.launch.local import LocalTarget
from edl_horovod.models import lookup, spec_zoo, zoo_files
from edl_horovod.sweeps.run import result_settings
from tests.jobs import config_of

FUNCTION = """
import os

def make(folder):
    print("talk")
    with open(os.path.join(folder, "cnn.pt"), "w") as stream:
        stream.write("values")
    return {"model_name": "made", "model_definition": os.path.join(folder, "cnn.pt")}

def plain():
    return {"model_name": "made", "model_definition": __file__.replace(".py", ".pt")}

def wrong():
    return {"model_nam": "made"}

def broken():
    raise ValueError("no model today")

def none():
    pass

def unwritable():
    return {"model_name": {1}}

def asks(one, two):
    pass
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cnn.pt").write_text("values")


def config(*overrides: str, **spec: Any) -> JobConfig:
    keys = {"model_name": "My CNN", "model_definition": "cnn.pt", **spec}
    words = [f"model.spec.{key}={value}" for key, value in keys.items() if value]
    return of_words(*words, *overrides)


def of_words(*words: str) -> JobConfig:
    return config_of("train", ["data=d.npz", "output=o", "model.name=PytorchFLModel", *words])


def of_function(name: str, *overrides: str) -> JobConfig:
    return of_words(f"model.spec=making:{name}", *overrides)


def zoo_of(*overrides: str, **spec: Any) -> Path:
    """The zoo that is made of a spec."""
    return Path(spec_zoo.with_zoo(config(*overrides, **spec)).model_zoo)


def test_a_zoo_has_the_files_and_code_that_names_them():
    job = spec_zoo.with_zoo(config(optimizer="optim.Adam"))

    zoo = Path(job.model_zoo)
    assert job.model_def == "model_of_spec.Model"
    assert zoo.parent == spec_zoo.cache()
    assert zoo.name.startswith("my-cnn-")
    names = [
        node.value
        for node in ast.walk(ast.parse((zoo / "model_of_spec.py").read_text()))
        if isinstance(node, ast.Constant)
    ]
    file = zoo / "model_of_spec_files" / "model_definition" / "cnn.pt"
    assert file.read_text() == "values"
    assert str(file.relative_to(zoo)) in names
    assert lookup.files_defining(zoo, job.model_def) == [(zoo / "model_of_spec.py",)]
    sources = {*map(str, zoo_files.sources(zoo))}
    assert {"model_of_spec.py", "model_of_spec.json", "requirements.txt"} <= sources


def test_no_name_of_a_spec_becomes_code_of_the_zoo(tmp_path):
    harmful = '"""; open("ran", "w"); """'
    file = tmp_path / 'a"""; open("ran", "w"); """.pt'
    file.write_text("values")
    plain = config()
    spec = {"model_name": harmful, "model_definition": str(file)}
    job = spec_zoo.with_zoo(dataclasses.replace(plain, model={**plain.model, "spec": spec}))
    code = ast.parse((Path(job.model_zoo) / "model_of_spec.py").read_text())
    assert not [node for node in ast.walk(code) if getattr(node, "id", "") == "open"]


def test_what_is_in_the_zoo_is_what_the_spec_said():
    zoo = zoo_of(optimizer="optim.Adam")

    model = spec_zoo.model_in(zoo)

    assert model.definition == zoo / "model_of_spec_files" / "model_definition" / "cnn.pt"
    assert model.compile_options == {"optimizer": "optim.Adam"}
    assert not model.is_trusted
    assert str(Path.cwd()) not in (zoo / "model_of_spec.json").read_text()


def test_the_same_content_is_the_same_zoo_and_another_is_another(tmp_path):
    job = spec_zoo.with_zoo(config())
    assert not spec_zoo.is_needed(job)
    assert spec_zoo.with_zoo(job) is job
    assert spec_zoo.with_zoo(config()).model_zoo == job.model_zoo

    (tmp_path / "cnn.pt").write_text("other values")

    assert spec_zoo.with_zoo(config()).model_zoo != job.model_zoo
    assert len(list(spec_zoo.cache().iterdir())) == 2


def test_a_folder_is_copied_whole(tmp_path):
    (tmp_path / "saved" / "variables").mkdir(parents=True)
    (tmp_path / "saved" / "variables" / "index").write_text("i")

    zoo = zoo_of(model_definition="saved")

    assert (zoo / "model_of_spec_files/model_definition/saved/variables/index").is_file()


def test_files_of_one_name_are_kept_apart(tmp_path):
    objects = []
    for name in ("a", "b"):
        (tmp_path / "model_zoo" / name).mkdir(parents=True)
        (tmp_path / "model_zoo" / name / "own.py").write_text(f"{name} = 1\n")
        objects.append(f"{{key: {name}, value: {name}, path: model_zoo/{name}/own.py}}")

    zoo = zoo_of(custom_objects=f"[{','.join(objects)}]")

    first, second = spec_zoo.model_in(zoo).custom_objects
    assert (first.path.read_text(), second.path.read_text()) == ("a = 1\n", "b = 1\n")


def test_code_comes_with_what_it_imports_from_beside_it(tmp_path):
    folder = tmp_path / "model_zoo"
    folder.mkdir()
    (folder / "net.py").write_text("import os\nfrom layers import Wide\n")
    (folder / "layers.py").write_text("import net\nimport sizes.small\n")
    (folder / "sizes.py").write_text("")
    (folder / "others.py").write_text("")

    zoo = zoo_of(model_definition="", model_architecture="model_zoo/net.py:Net")

    code = spec_zoo.model_in(zoo).architecture
    assert code is not None
    names = sorted(file.name for file in code.parent.iterdir())
    assert names == ["layers.py", "net.py", "sizes.py"]


def test_a_file_that_is_not_there_is_told():
    with pytest.raises(ConfigError, match=r"model_definition .*no\.pt"):
        spec_zoo.with_zoo(config(model_definition="no.pt"))


def test_code_outside_of_the_model_zoo_needs_trust(tmp_path):
    (tmp_path / "net.py").write_text("")
    architecture = {"model_definition": "", "model_architecture": "net.py:Net"}

    with pytest.raises(ConfigError, match="Python code") as error:
        spec_zoo.with_zoo(config(**architecture))

    assert "trust=model" in error.value.hint
    job = spec_zoo.with_zoo(config("trust=model", **architecture))
    assert json.loads(Path(job.model_zoo, "model_of_spec.json").read_text())["is_trusted"]
    spec_zoo.with_zoo(config(f"model_zoo={tmp_path}", **architecture))

    # A link out of the model zoo is not in it.
    (tmp_path / "model_zoo").mkdir()
    (tmp_path / "model_zoo" / "net.py").symlink_to(tmp_path / "net.py")
    with pytest.raises(ConfigError, match="Python code"):
        spec_zoo.with_zoo(config(model_definition="", model_architecture="model_zoo/net.py:Net"))


@pytest.mark.parametrize("name", ["make", "plain"])
def test_a_trusted_function_returns_the_spec(name, tmp_path, capfd):
    (tmp_path / "making.py").write_text(FUNCTION)
    (tmp_path / "making.pt").write_text("values")

    job = spec_zoo.with_zoo(of_function(name, "trust=model"))

    assert spec_zoo.model_in(Path(job.model_zoo)).definition.read_text() == "values"
    assert capfd.readouterr().out == ""


def test_a_function_runs_untrusted_only_from_the_model_zoo(tmp_path):
    (tmp_path / "making.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')\n{FUNCTION}")

    with pytest.raises(ConfigError, match="trust=model"):
        spec_zoo.with_zoo(of_function("make"))

    assert not (tmp_path / "marker").exists()
    assert spec_zoo.with_zoo(of_function("make", f"model_zoo={tmp_path}")).model_def


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong", "'model_nam'"),
        ("broken", "ValueError: no model today"),
        ("none", "return a dict"),
        ("unwritable", "dict of text"),
        ("asks", "Received: one, two"),
        ("absent", "attribute 'absent'"),
    ],
)
def test_a_function_that_returns_no_spec_is_told(name, message, tmp_path):
    (tmp_path / "making.py").write_text(FUNCTION)

    with pytest.raises((ConfigError, UserCodeError), match=message):
        spec_zoo.with_zoo(of_function(name, "trust=model"))


def test_a_function_of_the_users_zoo_comes_along(tmp_path):
    folder = tmp_path / "model_zoo"
    folder.mkdir()
    (folder / "rows.py").write_text("def feed(records, mode): ...\n")
    (folder / "requirements.txt").write_text("numpy\n")

    zoo = zoo_of("input_fn=rows.feed")

    assert not (zoo_of("loss=mse") / "rows.py").exists()
    assert (zoo / "rows.py").is_file()
    assert zoo_of("data=dataset:rows.Rows") == zoo
    assert (zoo / "requirements.txt").read_text() == "numpy\n"
    assert (zoo / "model_of_spec.py").is_file()


def test_a_dry_run_says_it_and_writes_nothing():
    target = LocalTarget()

    shown = target.describe(target.plan(config()))

    assert str(spec_zoo.cache()) in shown
    assert not spec_zoo.cache().exists()


def test_a_sweep_knows_the_result_of_a_model_in_files():
    now = config()

    assert result_settings(spec_zoo.with_zoo(now)) == result_settings(now)
    assert result_settings(now) != result_settings(config(model_name="another"))


def test_an_output_may_not_replace_the_models_files(tmp_path):
    settings = config(f"output={tmp_path}/cnn.pt", "job_dir=/j")

    with pytest.raises(OutputError, match=r"output is .*model\.spec"):
        check_paths(settings)
