import re
import shutil
import subprocess
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
from tests.programs import run_python

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
PREDICT = ["trained_model=m", "data=d", "output=o"]
PREPARE = ["data=/in", "output=/o", "model_def=m"]


def compose_train(*overrides: str) -> JobConfig:
    return compose("train", [*TRAIN, *overrides])


def test_the_files_of_conf_change_no_default():
    needed = dict(word.split("=") for word in TRAIN)
    model_zoo = str(Path.cwd() / "model_zoo")

    assert compose_train() == JobConfig(task="train", model_zoo=model_zoo, **needed)


def test_launch_is_chosen_by_file_and_set_by_key():
    config = compose_train("launch=mpi", "launch.np=2", "train.learning_rate=1e-3")

    assert (config.launch.kind, config.launch.np) == ("mpi", 2)
    assert config.train.learning_rate == 0.001


def test_every_setting_can_be_set():
    typed = {
        **{int: "3", float: "2.5", bool: "true", str: "x", int | None: "3", float | None: "0.5"},
        **{list[str]: "[x]", list[float]: "[2.5]"},
    }
    choices = dict(
        text.split("=", 1)
        for text in (
            *("framework=keras", "launch.kind=mpi", "launch.options={a: b}", "log_level=debug"),
            *("data_plan.damaged=skip", "data_plan.processes=2", "resume=auto", "trust=changed"),
            *("train.precision=mixed_bfloat16", "train.batch_norm=own", "train.compile=false"),
            *("train.onnx=false", "train.compression=bf16", "train.early_stopping.mode=max"),
            *("train.local.steps=0", "train.local.warmup_steps=0", "train.local.method=diloco"),
            *("train.local.inner_state=keep", "train.local.outer_momentum=0.5"),
            *("train.local.fragments=1", "train.local.fragment_steps=1"),
            *("federated.rounds=0", "federated.local_epochs=1", "federated.local_steps=0"),
            *("federated.round_seconds=0", "federated.local_variables=[]"),
            *("federated.share_metrics=false", "federated.fraction=1"),
            *("federated.weighting=examples", "federated.proximal_mu=0"),
            *("federated.secure_sums=false", "federated.secure_range=32"),
            *("federated.privacy.clip=0", "federated.privacy.noise=0"),
            *("federated.privacy.delta=1e-5", "federated.privacy.max_epsilon=0"),
            *("federated.party=''", "federated.quorum=0.5", "federated.listen=localhost:7100"),
            "federated.address=north:7101",
            *("adversarial.method=pgd", "adversarial.ratio=0.5", "adversarial.clip=[0, 1]"),
            *("elastic.autoscale=false", "elastic.batching=per_rank", "elastic.join_share=0.5"),
            "elastic.autoscale_efficiency=0.3",
            *("slurm.options=[--exclusive]", "kubernetes.style=mpirun", "kubernetes.worker.cpu=2"),
            *("kubernetes.worker.memory=1Gi", "kubernetes.worker.node_selector={a.b/c: d}"),
            *("kubernetes.launcher.cpu=100m", "kubernetes.launcher.memory=64Mi"),
            "kubernetes.launcher.node_selector={pool: stable}",
            "kubernetes.worker.tolerations=[{key: gpu}]",
            "kubernetes.launcher.tolerations=[{key: b}]",
            "kubernetes.volumes={data: {claim: data, mount: /data}}",
            *("kubernetes.env={A: 1}", "kubernetes.secret_env={B: s3/key}"),
            *("kubernetes.labels={team: x}", "kubernetes.annotations={note: x}"),
        )
    )
    keys = [
        setting
        for setting in fields.settings(JobConfig)
        # A model in files stands in place of model_def: tests/unit/config/test_model_spec.py.
        if setting.key not in (*fields.SET_BY_US, "params", "model", "model_spec")
    ]

    words = [f"{s.key}={choices.get(s.key) or typed[s.annotation]}" for s in keys]
    config = compose("train", words)

    assert config.launch.np == config.elastic.max_np == config.train.epochs == 3
    assert config.overwrite
    assert config.data_plan.damaged == "skip"


@pytest.mark.long(after=1)
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


@pytest.mark.long(after=1)
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
    with pytest.raises(ConfigError, match=r"params\.a is"):
        compose_train("params.a=1", "params.a.b=2")


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("train.epoch=3", "'train.epoch'"),
        ("train.epoch=3", "'train.epochs'"),
        ("train.epoch=3", "under train: b"),
        ("lunch.np=2", "'launch.np'"),
        ("lunch.np=2", "Allowed: data, output"),
        ("epochs=3", "'train.epochs'"),
        ("learnig_rate=3", "'train.learning_rate'"),
        ("launch=mpy", "kubernetes, local, mpi"),
        ("launch=mpy", "'mpi'"),
        ("task=predict", "'task'"),
        ("hydra.run.dir=/x", "'hydra.run.dir'"),
        ("foo", "key=value, with"),
        ("foo", "Received: 'foo'"),
        ("=3", "key=value"),
        ("~data", "removed"),
        ("train.epochs=abc", "type int"),
        ("train.epochs=abc", "Received: train.epochs=abc."),
        ("train.epochs=1.5", "train.epochs must be of type int"),
        ("train.epochs=null", "train.epochs must be of type int"),
        ("train.epochs=", "train.epochs must be of type int"),
        ("train.epochs=1,2", "train.epochs takes one"),
        ("train.epochs=1,2", "edl train -m"),
        ("train.epochs=[1", "train.epochs cannot"),
        ("train={epoch: 3}", "'train.epochs'"),
        ("train={epochs: x}", "train.epochs must be of type int"),
        ("overwrite=maybe", "overwrite must be of type bool"),
        ("train.learning_rate=fast", "float or null"),
        ("train.epochs=0", "train.epochs must be 1 or more. Received: train.epochs=0."),
        ("train.learning_rate=-1", "train.learning_rate must be 0"),
        ("log_level=dbug", "'debug'"),
        ("output=", "\n  output=...  Directory"),
        ("num_epochs=3", "called 'train.epochs'"),
        ("training_data=/d", "called 'data'"),
        ("lr=3", "called 'train.learning_rate'"),
        ("params.x=a=b", "params.x cannot"),
        ("params.x=1,2", "params.x takes one"),
        ("params.1x=1", "name a parameter"),
        ("params=x=__import__('os').system('id')", "character 3"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(override, named):
    with pytest.raises(ConfigError, match=re.escape(named)):
        compose_train(override)


def test_all_settings_that_must_be_given_are_named_at_once():
    with pytest.raises(ConfigError) as error:
        compose("train", ["model_def=mnist"])

    first, *missing = str(error.value).splitlines()
    assert first.startswith("train needs model_def, data and output.")
    assert [line.split("=")[0] for line in missing] == ["  data", "  output"]
    with pytest.raises(ConfigError, match=r"\n  trained_model=\.\.\.  Directory"):
        compose("predict", ["data=/d", "output=/o"])


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@pytest.mark.long
@settings(max_examples=15)
@given(text.filter(lambda value: value != "???"))
def test_any_text_is_taken_letter_for_letter(value):
    config = compose_train(f"trained_model=/{value}", f"model_def={value}")

    assert config.model_def == value
    assert Path(config.trained_model) == Path("/" + value).absolute() or ".." in value


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    "name",
    [
        *("train-*.recordio", "a b", "a=b", "it's", '"q"', "${x}", "\\${x}", "\\\\${x}", "a\\"),
        *("x:y(z)", "[a]", "{a}", "null", "1_000", "007", "ü", "a?b", "#c", "~x", "a@b"),
    ],
)
def test_a_path_means_what_the_shell_handed_over(name):
    config = compose_train(f"data=/d/{name}", f"output=/o/{name}")

    assert (config.data, config.output) == (f"/d/{name}", f"/o/{name}")


def test_relative_paths_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")

    paths = ("data=a/*.r, ../b/*.r,", "validation_data=~/v", "output=o/", "job_dir=j")
    config = compose_train(*paths)

    assert config.data == f"{tmp_path}/a/*.r,{tmp_path.parent}/b/*.r"
    assert config.validation_data == "/home/me/v"
    assert config.output == f"{tmp_path}/o"
    assert config.job_dir == f"{tmp_path}/j"
    assert config.model_zoo == f"{tmp_path}/model_zoo"


def test_addresses_stay_as_they_are():
    config = compose_train("data=gs://b/*.r,memory://x", "model_zoo=git@host:me/zoo")

    assert config.data == "gs://b/*.r,memory://x"
    assert config.model_zoo == "git@host:me/zoo"


@pytest.mark.parametrize("key", ["output", "job_dir", "trained_model", "init_from"])
def test_what_is_written_or_read_as_files_is_no_address(key):
    # Else it would be a folder of the name "gs:" where the command runs.
    with pytest.raises(ConfigError, match="must be a path") as error:
        compose_train(f"{key}=gs://b/o")
    assert error.value.received == {key: "gs://b/o"}


def test_composing_leaves_the_hydra_of_a_program_around_it_alone(tmp_path):
    (tmp_path / "theirs.yaml").write_text("a: 1\n")
    with hydra.initialize_config_dir(str(tmp_path), version_base="1.3"):
        first, second = compose_train("launch.np=2"), compose_train()
        assert hydra.compose("theirs").a == 1

    assert (first.launch.np, second.launch.np) == (2, 1)
    assert not GlobalHydra.instance().is_initialized()


@pytest.mark.long
def test_composing_keeps_the_job_of_a_program_under_hydra_main(tmp_path):
    script = tmp_path / "theirs.py"
    script.write_text(THEIRS)

    words = ("-m", "+rate=0.5,0.25", "hydra.sweep.dir=out")
    done = run_python(script, *words, cwd=tmp_path, env={"PYTHONPATH": str(conf_dir().parent)})

    lines = [line.split() for line in done.stdout.splitlines()]
    for number, rate in enumerate(("0.5", "0.25")):
        assert [rate, "theirs", str(number), "True", "now-of-theirs"] in lines, done.stderr


@pytest.mark.further
def test_threads_compose_at_the_same_time():
    with ThreadPoolExecutor(8) as pool:
        configs = list(pool.map(lambda n: compose_train(f"launch.np={n}"), range(1, 33)))

    assert [config.launch.np for config in configs] == list(range(1, 33))


def test_a_variable_at_the_start_of_a_path_is_replaced(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("NOWHERE", raising=False)

    config = compose_train("model_zoo=$HOME/work", "data=${HOME}/a,/d/$HOME", "output=$NOWHERE/o")

    assert (config.model_zoo, config.data) == ("/home/me/work", "/home/me/a,/d/$HOME")
    assert config.output == str(Path.cwd() / "$NOWHERE/o")


def test_prepare_has_its_own_settings():
    needed = dict(word.split("=") for word in PREPARE)
    needed["model_zoo"] = str(Path.cwd() / "model_zoo")

    config = compose_as(PrepareConfig, [*PREPARE, "records_per_shard=10"])
    assert config == PrepareConfig(**needed, records_per_shard=10)


def test_a_list_of_input_files_is_a_path_like_others():
    config = compose_as(PrepareConfig, [*PREPARE[1:], "data=@a.txt, b"])
    assert config.data == f"@{Path.cwd()}/a.txt,{Path.cwd()}/b"


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["launch.np=2"], "'launch.np'. Did you mean 'launch'? Allowed: data, output"),
        (["output=/o.recordio"], "directory"),
        (["record_per_shard=2"], "'records_per_shard'"),
        (["codec=snapy"], "'snappy'"),
        (["params.x=1"], "'params.x'"),
        (["prefix=a/b"], "file name"),
        (["bytes_per_shard=0"], "1 or more"),
        (["bad_files=skipp"], "'skip'"),
        (["launch=kubernetes"], "local, mpi"),
        (["launch=mpi", "processes=2"], "mpirun -n"),
    ],
)
def test_a_wrong_setting_of_prepare_is_refused_by_name(overrides, named):
    with pytest.raises(ConfigError, match=re.escape(named)):
        compose_as(PrepareConfig, [*PREPARE, *overrides])


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
    site = package.parent
    return run_python("-c", script, cwd=site.parent, env={"PYTHONPATH": str(site)})


def test_conf_is_found_inside_an_installed_package(installed):
    done = compose_installed(installed, "launch=mpi")

    assert done.stdout.split() == [str(installed / "conf"), "mpi"]


def test_a_wrong_key_in_a_file_of_conf_is_refused(installed):
    (installed / "conf" / "train" / "long.yaml").write_text("epoch: 30\n")

    last = compose_installed(installed, "train=long").stderr.splitlines()[-1]

    for named in ("ConfigError", "'train.epoch'", "'train.epochs'", "conf/train/long.yaml"):
        assert named in last


def test_a_missing_conf_is_named(installed):
    shutil.rmtree(installed / "conf")

    done = compose_installed(installed)

    assert f"{installed / 'conf'} and {installed.parent / 'conf'}" in done.stderr.splitlines()[-1]


def test_every_setting_says_what_it_means():
    for config_class in (JobConfig, PrepareConfig):
        assert [s.key for s in fields.settings(config_class) if not s.meaning] == []


def test_all_settings_that_cannot_be_taken_are_told_at_once():
    words = ("epochs=3", "launch=mpy", "train.epochs=[", "output", "seed=1")
    with pytest.raises(ConfigError) as caught:
        compose_train(*words)

    first, *lines = str(caught.value).splitlines()
    assert first.startswith("5 settings")
    for line, word in zip(lines, words, strict=True):
        received = word if "=" in word else f"'{word}'"
        assert f"Received: {received}." in line


def test_trust_names_what_a_trained_model_may_do():
    config = compose("predict", [*PREDICT, "trust=image, changed"])
    assert config.trusts("image")
    assert config.trusts("changed")
    assert not compose("predict", PREDICT).trusts("image")


@pytest.mark.parametrize(("typed", "named"), [("all", "changed, image"), ("imge", "'image'")])
def test_a_trust_in_nothing_is_refused(typed, named):
    with pytest.raises(ConfigError, match=named):
        compose("predict", [*PREDICT, f"trust={typed}"])


@pytest.mark.parametrize(
    ("key", "url"),
    [
        ("data", "https://me:s3cr3t@host/a.recordio"),
        ("validation_data", "https://host/a.recordio?X-Amz-Signature=s3cr3t&X-Amz-Expires=60"),
        ("data", "s3://me:s3cr3t@bucket/a.recordio"),
    ],
)
def test_a_password_in_the_url_of_data_is_refused_with_what_to_do(key, url):
    with pytest.raises(ConfigError, match=f"{key} holds a password") as error:
        compose_train(f"{key}=/d/*.recordio, {url}")
    assert "AWS_" in error.value.hint
    assert "FSSPEC_HTTP" in error.value.hint
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
