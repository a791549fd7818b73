import shutil
import subprocess
import sys
from pathlib import Path

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_horovod.config import fields, resolved
from edl_horovod.config.compose import compose, compose_prepare, conf_dir
from edl_horovod.config.schema import JobConfig, PrepareConfig
from edl_horovod.errors import ConfigError

TRAIN = ["data=/d/*.recordio", "output=/o", "model_def=mnist"]


def compose_train(*overrides: str) -> JobConfig:
    return compose("train", [*TRAIN, *overrides])


def test_the_files_of_conf_change_no_default():
    config = compose_train()

    assert config == JobConfig(
        task="train",
        data="/d/*.recordio",
        output="/o",
        model_def="mnist",
        model_zoo=str(Path.cwd() / "model_zoo"),
    )


@pytest.mark.parametrize(
    "path", sorted(conf_dir().glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}={path.stem}"
)
def test_every_file_of_every_group_composes(path: Path):
    compose_train(f"{path.parent.name}={path.stem}")


def test_launch_is_chosen_by_file_and_set_by_key():
    config = compose_train("launch=mpi", "launch.np=2", "train.learning_rate=1e-3")

    assert (config.launch.kind, config.launch.np) == ("mpi", 2)
    assert config.train.learning_rate == 0.001


def test_every_setting_can_be_set():
    typed = {int: "3", float: "2.5", bool: "true", str: "x", int | None: "3", float | None: "0.5"}
    choices = {"launch.kind": "mpi", "data_plan.damaged": "skip", "log_level": "debug"}
    keys = [
        setting for setting in fields.settings(JobConfig) if setting.key not in ("task", "params")
    ]

    config = compose("train", [f"{s.key}={choices.get(s.key, typed[s.annotation])}" for s in keys])

    assert config.launch.np == config.elastic.max_np == config.train.epochs == 3
    assert config.overwrite
    assert config.data_plan.damaged == "skip"


@pytest.mark.parametrize(
    "overrides",
    [
        ["params.hidden_units=[10,100]", "params.learning_rate=0.01"],
        ["params=hidden_units=[10, 100], learning_rate=0.01"],
        ["params={hidden_units: [10, 100], learning_rate: 0.01}"],
        ["params=hidden_units=[10, 100]", "+params.learning_rate=0.01"],
    ],
)
def test_all_spellings_of_params_give_the_same_config(overrides: list[str]):
    expected = compose_train("params.hidden_units=[10, 100]", "++params.learning_rate=1e-2")

    assert compose_train(*overrides) == expected
    assert expected.params == {"hidden_units": [10, 100], "learning_rate": 0.01}


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("true", True),
        ("True", True),
        ("null", None),
        ("None", None),
        ("abc", "abc"),
        ("'a, b'", "a, b"),
        ("-3", -3),
        ("[a,b]", ["a", "b"]),
        ("{a: 1}", {"a": 1}),
        ("{'a': -1}", {"a": -1}),
        ("http://host:80/x", "http://host:80/x"),
        ("${oc.env:HOME}", "${oc.env:HOME}"),
    ],
)
def test_a_param_is_read_as_python_or_hydra_writes_it(typed: str, value: object):
    assert compose_train(f"params.x={typed}").params == {"x": value}


def test_a_param_inside_a_param_is_set():
    assert compose_train("params.a.b=1", "params.a.c=2").params == {"a": {"b": 1, "c": 2}}
    with pytest.raises(ConfigError, match=r"params\.a is not a dict"):
        compose_train("params.a=1", "params.a.b=2")


@pytest.mark.parametrize(
    ("override", "named"),
    [
        (
            "train.epoch=3",
            "no setting 'train.epoch'. Did you mean 'train.epochs'? Allowed under train: b",
        ),
        ("lunch.np=2", "Did you mean 'launch.np'? Allowed: data, output"),
        ("epochs=3", "Did you mean 'train.epochs'?"),
        ("learnig_rate=3", "Did you mean 'train.learning_rate'?"),
        ("launch=mpy", "launch must be one of local, mpi"),
        ("launch=mpy", "Did you mean 'mpi'?"),
        ("task=predict", "no setting 'task'"),
        ("hydra.run.dir=/x", "no setting 'hydra.run.dir'"),
        ("foo", "A setting is written key=value. Received: 'foo'"),
        ("=3", "A setting is written key=value"),
        ("~data", "cannot be removed"),
        ("train.epochs=abc", "train.epochs must be of type int. Received: train.epochs=abc."),
        ("train.epochs=1.5", "train.epochs must be of type int"),
        ("train.epochs=null", "train.epochs must be of type int"),
        ("train.epochs=", "train.epochs must be of type int"),
        ("train.epochs=1,2", "train.epochs takes one value"),
        ("train.epochs=[1", "train.epochs cannot be read"),
        ("train={epoch: 3}", "Did you mean 'train.epochs'?"),
        ("train={epochs: x}", "train.epochs must be of type int"),
        ("overwrite=maybe", "overwrite must be of type bool"),
        ("train.learning_rate=fast", "must be of type float or null"),
        ("train.epochs=0", "train.epochs must be 1 or more"),
        ("log_level=dbug", "Did you mean 'debug'?"),
        ("output=", "output must name a directory"),
        ("params.x=a=b", "params.x cannot be read"),
        ("params.x=1,2", "params.x takes one value"),
        ("params.1x=1", "cannot name a parameter"),
        ("params=x=__import__('os').system('id')", "params cannot be read at character 3"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(override: str, named: str):
    with pytest.raises(ConfigError) as error:
        compose_train(override)

    assert named in str(error.value)


def test_a_setting_that_must_be_given_is_named():
    with pytest.raises(ConfigError, match=r"data is missing\. Input files"):
        compose("train", ["output=/o", "model_def=mnist"])
    with pytest.raises(ConfigError, match="trained_model must name"):
        compose("predict", ["data=/d", "output=/o"])


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@settings(max_examples=15, deadline=None)
@given(text.filter(lambda value: value != "???"))
def test_any_text_is_taken_letter_for_letter(value: str):
    config = compose_train(f"trained_model=/{value}", f"model_def={value}")

    assert config.model_def == value
    assert Path(config.trained_model) == Path("/" + value).absolute() or ".." in value


@pytest.mark.parametrize(
    "name",
    ["train-*.recordio", "a b", "a=b", "it's", '"q"', "${x}", "\\${x}", "\\\\${x}", "a\\", "x:y(z)",
     "[a]", "{a}", "null", "1_000", "007", "ü", "a?b", "#c", "~x", "a@b"],
)  # fmt: skip
def test_a_path_means_what_the_shell_handed_over(name: str):
    config = compose("train", [f"data=/d/{name}", f"output=/o/{name}", "model_def=m"])

    assert config.data == f"/d/{name}"
    assert config.output == f"/o/{name}"


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")

    config = compose(
        "train",
        ["data=a/*.r, ../b/*.r,", "validation_data=~/v", "output=o/", "job_dir=j", "model_def=m"],
    )

    assert config.data == f"{tmp_path}/a/*.r,{tmp_path.parent}/b/*.r"
    assert config.validation_data == "/home/me/v"
    assert config.output == f"{tmp_path}/o"
    assert config.job_dir == f"{tmp_path}/j"
    assert config.model_zoo == f"{tmp_path}/model_zoo"


def test_addresses_stay_as_they_are():
    config = compose(
        "train",
        [
            "data=gs://b/*.r,memory://x",
            "output=gs://b/o",
            "model_zoo=git@host:me/zoo",
            "model_def=m",
        ],
    )

    assert (config.data, config.output) == ("gs://b/*.r,memory://x", "gs://b/o")
    assert config.model_zoo == "git@host:me/zoo"


def test_composing_leaves_the_hydra_of_a_program_around_it_alone(tmp_path: Path):
    (tmp_path / "theirs.yaml").write_text("a: 1\n")
    with hydra.initialize_config_dir(str(tmp_path), version_base="1.3"):
        first, second = compose_train("launch.np=2"), compose_train()
        assert hydra.compose("theirs").a == 1

    assert (first.launch.np, second.launch.np) == (2, 1)
    assert not GlobalHydra.instance().is_initialized()


def test_prepare_has_its_own_settings():
    config = compose_prepare(["data=/in", "output=/o", "model_def=m", "records_per_shard=10"])

    assert config == PrepareConfig(
        data="/in",
        output="/o",
        model_def="m",
        model_zoo=str(Path.cwd() / "model_zoo"),
        records_per_shard=10,
    )


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("launch.np=2", "no setting 'launch.np'. Allowed: data, output"),
        ("record_per_shard=2", "Did you mean 'records_per_shard'?"),
        ("codec=snapy", "Did you mean 'snappy'?"),
        ("params.x=1", "no setting 'params.x'"),
        ("prefix=a/b", "start of a file name"),
    ],
)
def test_a_wrong_setting_of_prepare_is_refused_by_name(override: str, named: str):
    with pytest.raises(ConfigError) as error:
        compose_prepare(["data=/in", "output=/o", "model_def=m", override])

    assert named in str(error.value)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A copy of what composing needs as an installed package has it, with conf/ inside."""
    package = tmp_path / "site" / "edl_horovod"
    source = Path(resolved.__file__).parent
    shutil.copytree(source, package / "config", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "errors.py"):
        shutil.copy(source.parent / name, package / name)
    shutil.copytree(conf_dir(), package / "conf")
    return package


def compose_installed(package: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    script = (
        "from edl_horovod.config.compose import compose, conf_dir\n"
        "print(conf_dir())\n"
        f"print(compose('train', {[*TRAIN, *overrides]!r}).launch.kind)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=package.parent.parent,
        env={"PYTHONPATH": str(package.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_conf_is_found_inside_an_installed_package(installed: Path):
    done = compose_installed(installed, "launch=mpi")

    assert done.stdout.split() == [str(installed / "conf"), "mpi"]


def test_a_wrong_key_in_a_file_of_conf_is_refused(installed: Path):
    (installed / "conf" / "train" / "long.yaml").write_text("epoch: 30\n")

    done = compose_installed(installed, "train=long")

    last = done.stderr.splitlines()[-1]
    assert "ConfigError" in last
    assert "train/long" in last
    assert "Key 'epoch'" in last


def test_a_missing_conf_is_named(installed: Path):
    shutil.rmtree(installed / "conf")

    done = compose_installed(installed)

    assert f"{installed / 'conf'} and {installed.parent / 'conf'}" in done.stderr.splitlines()[-1]


def test_every_setting_says_what_it_means():
    for config_class in (JobConfig, PrepareConfig):
        assert [s.key for s in fields.settings(config_class) if not s.meaning] == []
