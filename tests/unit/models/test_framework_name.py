"""Where nobody says what a model is written in, the imports of its file do."""

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from edl_horovod import image
from edl_horovod.cli.main import main
from edl_horovod.config import resolved
from edl_horovod.config.conf_files import zoo_dir
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError
from edl_horovod.launch.target import find
from edl_horovod.models.framework_name import framework_name, other_framework, with_framework
from edl_horovod.proto.trained_model_pb2 import TrainedModel
from tests.jobs import config_of

MODEL = "class Net: pass\n"
TORCH, KERAS = f"import torch\n{MODEL}", f"import keras\n{MODEL}"


@dataclass(frozen=True)
class Case:
    files: dict[str, str]
    expected: str
    model_def: str = "net"


def net(beginning: str, folder: str = "", **siblings: str) -> dict[str, str]:
    """The files of a zoo: a model after some lines, and what lies beside it."""
    texts = {"net": f"{beginning}\n{MODEL}", **siblings}
    return {f"{folder}{name}.py": text for name, text in texts.items()}


CASES = {
    "torch": Case(net("import torch"), "torch"),
    "a part of it": Case(net("from torch.nn import Module"), "torch"),
    "its pictures": Case(net("from torchvision.models import resnet18"), "torch"),
    "keras": Case(net("import keras"), "keras"),
    "tensorflow": Case(net("import tensorflow as tf"), "keras"),
    "neither": Case(net("from edl_horovod import ElasticDLSpec"), "keras"),
    "another package of a like name": Case(net("import torchless"), "keras"),
    "under a condition": Case(net("if True:\n    import torch"), "torch"),
    "in a function": Case(net("def make():\n    import torch"), "torch"),
    "in a function beside another": Case(
        net("import keras\ndef make():\n    import torch"), "keras"
    ),
    "functions choose": Case(net("def make(self):\n    import torch\n    import keras"), "keras"),
    "a sibling": Case(net("from base import B", base="import torch"), "torch"),
    "a sibling in a folder": Case(net("import base", "a/", base="import torch"), "torch", "a.net"),
    "as ElasticDL names siblings": Case(
        net("from model_zoo.a import base", "a/", base="import torch"), "torch", "a.net.Net"
    ),
    "siblings in a circle": Case(net("import base", base="import net, torch"), "torch"),
    "a broken sibling": Case(net("import torch, base", base="("), "torch"),
    "another file of the zoo": Case(net("import torch", other=KERAS), "torch"),
    "a symbol in a folder": Case(
        {"a/x.py": TORCH, "a/y.py": "import keras\nclass K: pass"}, "torch", "a.Net"
    ),
}


def job(zoo: Path, *settings: str, model_def: str = "net") -> JobConfig:
    overrides = [f"model_zoo={zoo}", f"model_def={model_def}", f"data={zoo}", f"output={zoo}/out"]
    return config_of("train", [*overrides, *settings])


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_imports_of_the_file_say_it(tmp_path, case):
    zoo = write(tmp_path, case.files)
    assert framework_name(job(zoo, model_def=case.model_def)) == case.expected


def test_a_zoo_of_one_file_has_no_siblings(tmp_path):
    write(tmp_path, net("import torch, base", base="import keras"))
    assert framework_name(job(tmp_path / "net.py", model_def="")) == "torch"


def test_a_file_that_imports_both_needs_the_setting(tmp_path):
    zoo = write(tmp_path, net("import base\nimport torch", base="import keras"))
    with pytest.raises(ConfigError, match=r"framework") as error:
        framework_name(job(zoo))
    text = str(error.value)
    for named in ("framework=keras", "framework=torch", f"{zoo}/net.py", f"{zoo}/base.py"):
        assert named in text
    for name in ("keras", "torch"):
        assert framework_name(job(zoo, f"framework={name}")) == name


@pytest.mark.parametrize("model_def", ["regressor.DNN", "classifier.LinearModel"])
def test_the_models_of_tables_are_those_of_keras_unless_somebody_says_torch(model_def):
    assert framework_name(job(zoo_dir(), model_def=model_def)) == "keras"
    chosen = job(zoo_dir(), "framework=torch", model_def=model_def)
    assert framework_name(chosen) == "torch"
    assert other_framework(chosen) == ""


def test_the_setting_counts_and_what_the_file_imports_is_known_to_differ(tmp_path):
    config = job(write(tmp_path, CASES["torch"].files), "framework=keras")
    assert framework_name(config) == "keras"
    assert other_framework(config) == "torch"
    assert other_framework(replace(config, framework="torch")) == ""


def test_a_setting_of_the_other_framework_is_refused_when_the_file_is_known(tmp_path):
    config = job(write(tmp_path, CASES["keras"].files), "train.onnx=true")
    with pytest.raises(ConfigError, match=r"train.onnx .*framework=torch"):
        with_framework(config)
    write(tmp_path, CASES["torch"].files)
    assert with_framework(config).train.onnx


@pytest.mark.parametrize("kind", ["local", "mpi"])
def test_a_job_here_has_it_in_its_settings(tmp_path, kind):
    zoo = write(tmp_path, CASES["torch"].files)
    assert find(kind).plan(job(zoo, f"launch={kind}")).config.framework == "torch"


def test_a_dry_run_shows_it(tmp_path, capsys):
    zoo = write(tmp_path / "zoo", CASES["torch"].files)
    (tmp_path / "d.csv").write_text("x\n1\n")
    words = [f"model_zoo={zoo}", "model_def=net", f"data={tmp_path}/d.csv"]
    assert main(["train", "--dry-run", *words, f"output={tmp_path}/out"]) == 0
    assert "\nframework: torch\n" in capsys.readouterr().out


def test_a_job_in_a_cluster_has_it_where_its_image_is_made_here(tmp_path):
    zoo = write(tmp_path, CASES["torch"].files)
    parts = ("base_image=host/base:1", "image_repository=host/zoo")
    assert image.as_if_built(job(zoo, *parts)).framework == "torch"
    # The zoo is in the image, where the job's launcher will look.
    config = image.ensure(job(zoo, "image=host/zoo:1", "model_zoo=/mnt/zoo"))
    assert config.framework == ""
    assert with_framework(replace(config, model_zoo=str(zoo))).framework == "torch"


def test_a_trained_model_says_its_own(tmp_path):
    (tmp_path / "trained_model.pb").write_bytes(TrainedModel(framework="torch").SerializeToString())
    for task, overrides in (("evaluate", []), ("predict", [f"output={tmp_path}/out"])):
        config = config_of(task, [f"trained_model={tmp_path}", "data=d", *overrides])
        assert with_framework(config).framework == "torch"


@pytest.mark.long
def test_each_job_of_a_sweep_has_that_of_its_model(tmp_path):
    from edl_horovod.config.sweep import expand
    from edl_horovod.sweeps.run import make_plan

    zoo = write(tmp_path / "zoo", {"a.py": TORCH, "b.py": KERAS})
    words = [f"model_zoo={zoo}", "model_def=a,b", "data=d", f"output={tmp_path}/out"]
    plan = make_plan(expand(words))
    assert [config.framework for config in plan.configs] == ["torch", "keras"]


def test_a_zoo_in_git_says_it_when_it_is_fetched(tmp_path, monkeypatch):
    from edl_horovod.models.git_zoo import ensure_local

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    repository = write(tmp_path / "repository", CASES["torch"].files)
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "zoo"]):
        subprocess.run([*git, *command], check=True)
    url = f"git+file://{repository}@main"
    config = config_of("train", [f"model_zoo={url}", "model_def=net", "data=d", "output=o"])
    assert with_framework(config).framework == ""
    fetched = replace(config, model_zoo=str(ensure_local(url).path))
    assert with_framework(fetched).framework == "torch"
    assert resolved.from_dict(resolved.to_dict(with_framework(fetched))).framework == "torch"
