import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_horovod.config import fields, resolved
from edl_horovod.config.compose import compose, compose_as
from edl_horovod.config.conf_files import conf_dir
from edl_horovod.config.schema import JobConfig, PrepareConfig
from edl_horovod.errors import ConfigError

THEIRS = """
import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobRuntime
from omegaconf import OmegaConf
from edl_horovod.config.compose import compose

OmegaConf.register_new_resolver("theirs", lambda: "now-of-theirs")

@hydra.main(version_base=None)
def main(cfg):
    before = GlobalHydra.instance().hydra
    config = compose("train", [f"train.learning_rate={cfg.rate}", "data=/d", "output=/o",
                               "model_def=m"])
    HydraConfig.get().job.name == "theirs" or exit("the job's name is lost")
    print(config.train.learning_rate, JobRuntime.instance().get("name"), HydraConfig.get().job.num,
          GlobalHydra.instance().hydra is before, OmegaConf.create({"a": "${theirs:}"}).a)

main()
"""
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
def test_every_file_of_every_group_composes(path):
    compose_train(f"{path.parent.name}={path.stem}", "validation_data=/v")


def test_launch_is_chosen_by_file_and_set_by_key():
    config = compose_train("launch=mpi", "launch.np=2", "train.learning_rate=1e-3")

    assert (config.launch.kind, config.launch.np) == ("mpi", 2)
    assert config.train.learning_rate == 0.001


def test_every_setting_can_be_set():
    typed = {
        int: "3",
        float: "2.5",
        bool: "true",
        str: "x",
        int | None: "3",
        float | None: "0.5",
        list[str]: "[x]",
        list[float]: "[2.5]",
    }
    choices = {
        "framework": "keras",
        "launch.kind": "mpi",
        "launch.options": "{a: b}",
        "data_plan.damaged": "skip",
        "data_plan.processes": "2",
        "log_level": "debug",
        "resume": "auto",
        "trust": "changed",
        "train.precision": "mixed_bfloat16",
        "train.batch_norm": "own",
        "train.compile": "false",
        "train.onnx": "false",
        "train.compression": "bf16",
        "train.local.steps": "0",
        "train.local.warmup_steps": "0",
        "train.local.method": "diloco",
        "train.local.inner_state": "keep",
        "train.local.outer_momentum": "0.5",
        "train.local.fragments": "1",
        "train.local.fragment_steps": "1",
        "federated.rounds": "0",
        "federated.local_epochs": "1",
        "federated.local_steps": "0",
        "federated.round_seconds": "0",
        "federated.local_variables": "[]",
        "federated.share_metrics": "false",
        "federated.fraction": "1",
        "federated.weighting": "examples",
        "federated.proximal_mu": "0",
        "federated.secure_sums": "false",
        "federated.secure_range": "32",
        "federated.privacy.clip": "0",
        "federated.privacy.noise": "0",
        "federated.privacy.delta": "1e-5",
        "federated.privacy.max_epsilon": "0",
        "federated.party": "''",
        "federated.quorum": "0.5",
        "federated.listen": "localhost:7100",
        "federated.address": "north:7101",
        "adversarial.method": "pgd",
        "adversarial.ratio": "0.5",
        "adversarial.clip": "[0, 1]",
        "train.early_stopping.mode": "max",
        "kubernetes.style": "mpirun",
        "slurm.options": "[--exclusive]",
        "kubernetes.worker.cpu": "2",
        "elastic.autoscale": "false",
        "elastic.batching": "per_rank",
        "elastic.autoscale_efficiency": "0.3",
        "elastic.join_share": "0.5",
        "kubernetes.worker.memory": "1Gi",
        "kubernetes.launcher.cpu": "100m",
        "kubernetes.launcher.memory": "64Mi",
        "kubernetes.volumes": "{data: {claim: data, mount: /data}}",
        "kubernetes.worker.node_selector": "{a.b/c: d}",
        "kubernetes.worker.tolerations": "[{key: gpu}]",
        "kubernetes.launcher.node_selector": "{pool: stable}",
        "kubernetes.launcher.tolerations": "[{key: b}]",
        "kubernetes.env": "{A: 1}",
        "kubernetes.secret_env": "{B: s3/key}",
        "kubernetes.labels": "{team: x}",
        "kubernetes.annotations": "{note: x}",
    }
    keys = [
        setting
        for setting in fields.settings(JobConfig)
        # A model in files stands in place of model_def: tests/unit/config/test_model_spec.py.
        if setting.key not in (*fields.SET_BY_US, "params", "model", "model_spec")
    ]

    config = compose(
        "train", [f"{s.key}={choices.get(s.key) or typed[s.annotation]}" for s in keys]
    )

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
def test_all_spellings_of_params_give_the_same_config(overrides):
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
        ("${HOME}", "${HOME}"),
        ("\\${oc.env:HOME}", "${oc.env:HOME}"),
    ],
)
def test_a_param_is_read_as_python_or_hydra_writes_it(typed, value):
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
        ("launch=mpy", "launch must be one of kubernetes, local, mpi"),
        ("launch=mpy", "Did you mean 'mpi'?"),
        ("task=predict", "no setting 'task'"),
        ("hydra.run.dir=/x", "no setting 'hydra.run.dir'"),
        ("foo", "written key=value, with no space beside the =. Received: 'foo'"),
        ("=3", "A setting is written key=value"),
        ("~data", "cannot be removed"),
        ("train.epochs=abc", "train.epochs must be of type int. Received: train.epochs=abc."),
        ("train.epochs=1.5", "train.epochs must be of type int"),
        ("train.epochs=null", "train.epochs must be of type int"),
        ("train.epochs=", "train.epochs must be of type int"),
        ("train.epochs=1,2", "train.epochs takes one value"),
        ("train.epochs=1,2", "To train with each value in turn, use edl train -m."),
        ("train.epochs=[1", "train.epochs cannot be read"),
        ("train={epoch: 3}", "Did you mean 'train.epochs'?"),
        ("train={epochs: x}", "train.epochs must be of type int"),
        ("overwrite=maybe", "overwrite must be of type bool"),
        ("train.learning_rate=fast", "must be of type float or null"),
        (
            "train.epochs=0",
            "train.epochs must be 1 or more. Received: train.epochs=0."
            " Give train.epochs another value, or leave it out.",
        ),
        ("train.learning_rate=-1", "train.learning_rate must be 0 or more"),
        ("log_level=dbug", "Did you mean 'debug'?"),
        ("output=", "Give what is missing:\n  output=...  Directory that will hold"),
        ("num_epochs=3", "It is called 'train.epochs' here."),
        ("training_data=/d", "It is called 'data' here."),
        ("lr=3", "It is called 'train.learning_rate' here."),
        ("params.x=a=b", "params.x cannot be read"),
        ("params.x=1,2", "params.x takes one value"),
        ("params.1x=1", "cannot name a parameter"),
        ("params=x=__import__('os').system('id')", "params cannot be read at character 3"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(override, named):
    with pytest.raises(ConfigError) as error:
        compose_train(override)

    assert named in str(error.value)


def test_all_settings_that_must_be_given_are_named_at_once():
    with pytest.raises(ConfigError) as error:
        compose("train", ["model_def=mnist"])

    first, *missing = str(error.value).splitlines()
    assert first == "train needs model_def, data and output. Give what is missing:"
    assert [line.split("=")[0] for line in missing] == ["  data", "  output"]
    with pytest.raises(ConfigError, match=r"\n  trained_model=\.\.\.  Directory of a trained"):
        compose("predict", ["data=/d", "output=/o"])


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@settings(max_examples=15)
@given(text.filter(lambda value: value != "???"))
def test_any_text_is_taken_letter_for_letter(value):
    config = compose_train(f"trained_model=/{value}", f"model_def={value}")

    assert config.model_def == value
    assert Path(config.trained_model) == Path("/" + value).absolute() or ".." in value


@pytest.mark.parametrize(
    "name",
    [
        "train-*.recordio",
        "a b",
        "a=b",
        "it's",
        '"q"',
        "${x}",
        "\\${x}",
        "\\\\${x}",
        "a\\",
        "x:y(z)",
        "[a]",
        "{a}",
        "null",
        "1_000",
        "007",
        "ü",
        "a?b",
        "#c",
        "~x",
        "a@b",
    ],
)
def test_a_path_means_what_the_shell_handed_over(name):
    config = compose("train", [f"data=/d/{name}", f"output=/o/{name}", "model_def=m"])

    assert config.data == f"/d/{name}"
    assert config.output == f"/o/{name}"


def test_relative_paths_become_absolute(tmp_path, monkeypatch):
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
        ["data=gs://b/*.r,memory://x", "output=/o", "model_zoo=git@host:me/zoo", "model_def=m"],
    )

    assert config.data == "gs://b/*.r,memory://x"
    assert config.model_zoo == "git@host:me/zoo"


@pytest.mark.parametrize("key", ["output", "job_dir", "trained_model", "init_from"])
def test_what_is_written_or_read_as_files_is_no_address(key):
    # Else it would be a folder of the name "gs:" where the command runs.
    with pytest.raises(ConfigError, match=f"{key} must be a path.*Received: {key}='gs://b/o'"):
        compose_train(f"{key}=gs://b/o")


def test_composing_leaves_the_hydra_of_a_program_around_it_alone(tmp_path):
    (tmp_path / "theirs.yaml").write_text("a: 1\n")
    with hydra.initialize_config_dir(str(tmp_path), version_base="1.3"):
        first, second = compose_train("launch.np=2"), compose_train()
        assert hydra.compose("theirs").a == 1

    assert (first.launch.np, second.launch.np) == (2, 1)
    assert not GlobalHydra.instance().is_initialized()


def test_composing_keeps_the_job_of_a_program_under_hydra_main(tmp_path):
    script = tmp_path / "theirs.py"
    script.write_text(THEIRS)

    done = subprocess.run(
        [sys.executable, str(script), "-m", "+rate=0.5,0.25", "hydra.sweep.dir=out"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(conf_dir().parent)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "0.5 theirs 0 True now-of-theirs" in done.stdout.splitlines(), done.stderr
    assert "0.25 theirs 1 True now-of-theirs" in done.stdout.splitlines()


@pytest.mark.long
def test_threads_compose_at_the_same_time():
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: compose_train(f"launch.np={n}"), range(1, 33)))

    assert [config.launch.np for config in found] == list(range(1, 33))


def test_a_variable_at_the_start_of_a_path_is_replaced(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("NOWHERE", raising=False)

    config = compose_train("model_zoo=$HOME/work", "data=${HOME}/a,/d/$HOME", "output=$NOWHERE/o")

    assert (config.model_zoo, config.data) == ("/home/me/work", "/home/me/a,/d/$HOME")
    assert config.output == str(Path.cwd() / "$NOWHERE/o")


def test_prepare_has_its_own_settings():
    config = compose_as(
        PrepareConfig, ["data=/in", "output=/o", "model_def=m", "records_per_shard=10"]
    )

    assert config == PrepareConfig(
        data="/in",
        output="/o",
        model_def="m",
        model_zoo=str(Path.cwd() / "model_zoo"),
        records_per_shard=10,
    )


def test_a_list_of_input_files_is_a_path_like_others():
    config = compose_as(PrepareConfig, ["data=@a.txt, b", "output=/o", "model_def=m"])
    assert config.data == f"@{Path.cwd()}/a.txt,{Path.cwd()}/b"


def test_the_number_of_processes_is_not_for_mpirun():
    with pytest.raises(ConfigError, match="with launch=mpi, mpirun -n sets the number"):
        compose_as(
            PrepareConfig, ["data=/in", "output=/o", "model_def=m", "launch=mpi", "processes=2"]
        )


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("launch.np=2", "no setting 'launch.np'. Did you mean 'launch'? Allowed: data, output"),
        ("output=/o.recordio", "must name a directory"),
        ("record_per_shard=2", "Did you mean 'records_per_shard'?"),
        ("codec=snapy", "Did you mean 'snappy'?"),
        ("params.x=1", "no setting 'params.x'"),
        ("prefix=a/b", "start of a file name"),
        ("bytes_per_shard=0", "must be 1 or more"),
        ("bad_files=skipp", "Did you mean 'skip'?"),
        ("launch=kubernetes", "local, mpi"),
    ],
)
def test_a_wrong_setting_of_prepare_is_refused_by_name(override, named):
    with pytest.raises(ConfigError) as error:
        compose_as(PrepareConfig, ["data=/in", "output=/o", "model_def=m", override])

    assert named in str(error.value)


@pytest.fixture
def installed(tmp_path):
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
        "from edl_horovod.config.compose import compose\n"
        "from edl_horovod.config.conf_files import conf_dir\n"
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


def test_conf_is_found_inside_an_installed_package(installed):
    done = compose_installed(installed, "launch=mpi")

    assert done.stdout.split() == [str(installed / "conf"), "mpi"]


def test_a_wrong_key_in_a_file_of_conf_is_refused(installed):
    (installed / "conf" / "train" / "long.yaml").write_text("epoch: 30\n")

    done = compose_installed(installed, "train=long")

    last = done.stderr.splitlines()[-1]
    assert "ConfigError" in last
    assert "no setting 'train.epoch'. Did you mean 'train.epochs'?" in last
    assert "It is set in conf/train/long.yaml." in last


def test_a_missing_conf_is_named(installed):
    shutil.rmtree(installed / "conf")

    done = compose_installed(installed)

    assert f"{installed / 'conf'} and {installed.parent / 'conf'}" in done.stderr.splitlines()[-1]


def test_every_setting_says_what_it_means():
    for config_class in (JobConfig, PrepareConfig):
        assert [s.key for s in fields.settings(config_class) if not s.meaning] == []


def test_all_settings_that_cannot_be_taken_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        compose_train("epochs=3", "launch=mpy", "train.epochs=[", "output", "seed=1")

    first, *lines = str(caught.value).splitlines()
    assert first == "5 settings cannot be taken:"
    for line, received in zip(
        lines, ("epochs=3", "launch=mpy", "train.epochs=[", "'output'", "seed=1"), strict=True
    ):
        assert f"Received: {received}." in line


def test_trust_names_what_a_trained_model_may_do():
    config = compose("predict", ["trained_model=m", "data=d", "output=o", "trust=image, changed"])
    assert config.trusts("image")
    assert config.trusts("changed")
    assert not compose("predict", ["trained_model=m", "data=d", "output=o"]).trusts("image")


@pytest.mark.parametrize(("typed", "told"), [("all", "changed, image"), ("imge", "mean 'image'")])
def test_a_trust_in_nothing_is_refused(typed, told):
    with pytest.raises(ConfigError, match=told):
        compose("predict", ["trained_model=m", "data=d", "output=o", f"trust={typed}"])


@pytest.mark.parametrize("key", ["data", "validation_data"])
@pytest.mark.parametrize(
    "url",
    [
        "https://me:s3cr3t@host/a.recordio",
        "https://host/a.recordio?X-Amz-Signature=s3cr3t&X-Amz-Expires=60",
        "s3://me:s3cr3t@bucket/a.recordio",
    ],
)
def test_a_password_in_the_url_of_data_is_refused_with_what_to_do(key, url):
    with pytest.raises(ConfigError, match=rf"{key} holds a password.*AWS_.*FSSPEC_HTTP") as error:
        compose_train(f"{key}=/d/*.recordio, {url}")
    assert "s3cr3t" not in str(error.value)


@pytest.mark.parametrize(
    "typed",
    [
        "model_zo=git+https://me:s3cr3t@host/a@main",
        "train=git+https://me:s3cr3t@host/a@main",
        "output=https://me:s3cr3t@host/a",
        "params=git+https://me:s3cr3t@host/a@main",
    ],
)
def test_a_password_is_in_no_error_about_settings(typed):
    with pytest.raises(ConfigError) as error:
        compose_train(typed)
    assert "s3cr3t" not in str(error.value)
