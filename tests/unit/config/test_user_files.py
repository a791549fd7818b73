"""A user's own directory of settings, as Hydra's users expect it."""

import re
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from omegaconf.resolvers import oc

from edl_horovod.cli.main import main
from edl_horovod.config import fields
from edl_horovod.config.compose import compose, compose_as, describe
from edl_horovod.config.conf_files import ConfigFiles, choices_table, conf_dir
from edl_horovod.config.schema import ImageConfig, JobConfig, PrepareConfig
from edl_horovod.config.sweep import Search, expand
from edl_horovod.errors import ConfigError

MNIST = """\
# @package _global_
defaults:
  - override /launch: mpi
  - override /data_plan: seven
model_def: mnist
data: ${oc.env:RECORDS}/*.recordio
output: /runs/${train.epochs}
train:
  epochs: 3
  batch_size: 64
params:
  hidden: {units: [10, 20], act: relu}
"""


@pytest.fixture
def user_dir(tmp_path, monkeypatch):
    folder = tmp_path / "conf"
    write(folder / "experiment" / "mnist.yaml", MNIST)
    write(folder / "data_plan" / "seven.yaml", "shuffle: false\nseed: 7\n")
    monkeypatch.setenv("RECORDS", "/records")
    return folder


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def composed(folder: Path, *overrides: str, name: str = "") -> JobConfig:
    return compose("train", overrides, files=ConfigFiles(str(folder), name))


def experiment(user_dir: Path, name: str, text: str, defaults: str = "") -> str:
    """Write an experiment; gives the override that chooses it."""
    write(user_dir / "experiment" / f"{name}.yaml", f"# @package _global_\n{defaults}{text}")
    return f"+experiment={name}"


def refusal(folder: Path, *overrides: str, name: str = "") -> str:
    with pytest.raises(ConfigError) as error:
        composed(folder, *overrides, name=name)
    return str(error.value)


def test_an_experiment_chooses_files_of_both_directories_and_sets_keys(user_dir):
    config = composed(user_dir, "+experiment=mnist", "train.epochs=5", "params.hidden.act=tanh")

    assert (config.launch.kind, config.data_plan.shuffle) == ("mpi", False)
    assert (config.data, config.output) == ("/records/*.recordio", "/runs/5")
    assert (config.train.epochs, config.train.batch_size) == (5, 64)
    assert config.params == {"hidden": {"units": [10, 20], "act": "tanh"}}


@pytest.mark.long
def test_the_directory_may_be_relative_to_the_command(user_dir, monkeypatch):
    monkeypatch.chdir(user_dir.parent)
    assert composed(Path("conf"), "+experiment=mnist") == composed(user_dir, "+experiment=mnist")


@pytest.mark.long
def test_a_first_file_of_the_user_starts_from_ours(user_dir):
    defaults = "defaults: [config, experiment: mnist, _self_, override launch: mpi]\n"
    write(user_dir / "mine.yaml", f"{defaults}train: {{epochs: 7}}\n")

    config = composed(user_dir, "launch.np=2", name="mine")

    assert (config.launch.kind, config.launch.np) == ("mpi", 2)
    assert (config.train.epochs, config.train.batch_size) == (7, 64)
    assert composed(user_dir, "experiment=mnist", name="mine").train.epochs == 7


def test_prepare_and_image_take_the_directory_too(user_dir):
    write(user_dir / "records.yaml", "defaults: [prepare, _self_]\ndata: /in\noutput: /o\n")
    write(user_dir / "ours.yaml", "defaults: [image, _self_]\nbase_image: a\nimage_repository: b\n")
    records, ours = (ConfigFiles(str(user_dir), name) for name in ("records", "ours"))

    prepare = compose_as(PrepareConfig, ["model_def=m"], files=records)
    image = compose_as(ImageConfig, [], files=ours)

    assert (prepare.data, prepare.output) == ("/in", "/o")
    assert (image.base_image, image.image_repository) == ("a", "b")


def test_the_time_is_that_of_the_command(user_dir):
    config = composed(user_dir, "+experiment=mnist", "output=/runs/${now:%Y-%m-%d}")
    assert re.fullmatch(r"/runs/\d{4}-\d\d-\d\d", config.output)


@pytest.mark.long
def test_all_jobs_of_a_sweep_have_the_same_time(user_dir):
    from edl_horovod.config.compose import compose_sweep

    points = [(["+experiment=mnist", "params.t=${now:%f}", f"train.epochs={n}"], {}) for n in "12"]
    first, second = compose_sweep(points, ConfigFiles(str(user_dir)))
    assert first.params["t"] == second.params["t"]


def test_values_may_stand_for_others_in_a_command(user_dir, monkeypatch):
    monkeypatch.setenv("TOKENIZER", "/t")  # Such a variable is no secret.
    words = ["job_dir=${output}/${HOME}", "params.n=${train.epochs}"]
    config = composed(user_dir, "+experiment=mnist", *words, "params.t=${oc.env:TOKENIZER}")
    assert (config.job_dir, config.params["n"]) == ("/runs/3/${HOME}", 3)
    assert config.params["t"] == "/t"


@pytest.fixture
def in_file(user_dir, monkeypatch):
    """What is said of a text in an experiment that builds on another; no secret is in it."""
    monkeypatch.setenv("S3_TOKEN", "s3cr3t")

    def said_of(text: str, defaults: str = "defaults: [mnist, _self_]\n") -> str:
        said = refusal(user_dir, experiment(user_dir, "wrong", text, defaults))
        assert f"{user_dir}/experiment/wrong.yaml." in said
        assert "s3cr3t" not in said
        return said

    return said_of


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("train:\n  epoch: 3\n", "'train.epoch'. Did you mean 'train.epochs'? Allowed"),
        ("lunch:\n  np: 3\n", "'lunch'. Did you mean 'launch'?"),
        ("train:\n  epochs: many\n", "train.epochs must be of type int"),
        ("train:\n  epochs: 0\n", "must be 1 or more. Received: train.epochs=0."),
        ("task: predict\n", "'task'"),
        ("data: ${oc.env:NOT_THERE}\n", "KeyError"),
        ("data: ${train.epoch}\n", "Interpolation key"),
        ("data: ${oc.env:S3_TOKEN}\n", "a secret"),
        ("data: https://me:s3cr3t@host/x\n", "a password"),
        ("params: {a: '${oc.env:\"S3_TOKEN\"}'}\n", "a secret"),
        ("params: {a: ['${oc.env:S3_TOKEN}']}\n", "a secret"),
        ("params: {a: '${params.b}', b: {c: '${ oc.env:S3_TOKEN}'}}\n", "a secret"),
        (
            "params: {a: {x: '${params.b}'}, b: {y: '${params.a}', z: '${oc.env:S3_TOKEN}'}}\n",
            "a secret",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_the_file(in_file, text, named):
    assert named in in_file(text)


def test_a_key_of_a_sweeper_that_does_not_have_it_is_told_with_the_file(in_file):
    assert "'n_trials'" in in_file("hydra: {sweeper: {n_trials: 3}}\n", defaults="")


@pytest.mark.long
def test_a_file_without_its_package_is_told_what_it_lacks(user_dir):
    write(user_dir / "experiment" / "bare.yaml", "train: {epochs: 3}\n")
    assert "`# @package _global_`" in refusal(user_dir, "+experiment=bare")


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("+experiment=mnst", "one of mnist. Received: +experiment=mnst."),
        ("+experimentz=mnist", "--config-dir: experiment. Did you mean 'experiment'?"),
        ("experiment=mnist", "use +experiment=mnist"),
        ("data_plan=sevn", "one of ordered, seven, skip_damaged,"),
    ],
)
def test_a_wrong_choice_is_told_with_the_choices(user_dir, override, named):
    assert named in refusal(user_dir, override)


def test_a_file_that_is_no_yaml_or_not_utf_8_is_named(user_dir):
    assert "broken.yaml" in refusal(user_dir, experiment(user_dir, "broken", "train: [1\n"))
    file = user_dir / "experiment" / "latin.yaml"
    file.write_bytes("# @package _global_\nmodel_def: m\xfc\n".encode("latin-1"))
    said = refusal(user_dir, "+experiment=latin")
    assert "UTF-8" in said
    assert f"Received: {file}." in said


def test_a_choice_that_a_file_misspells_is_told_with_the_choices(user_dir):
    typo = experiment(user_dir, "typo", "defaults:\n  - override /data_plan: sevn\n")
    said = refusal(user_dir, typo)
    assert "/sevn" in said
    assert "seven" in said


def test_first_files_must_exist_and_start_from_ours(user_dir):
    write(user_dir / "alone.yaml", "data: /d\n")

    missing = refusal(user_dir, name="alne")
    assert "alne.yaml" in missing
    assert "'alone'" in missing
    assert "`defaults: [config, _self_]`" in refusal(user_dir, name="alone")


def test_a_file_that_ours_would_hide_is_refused(user_dir):
    write(user_dir / "launch" / "local.yaml", (conf_dir() / "launch" / "local.yaml").read_text())
    composed(user_dir, "+experiment=mnist")
    write(user_dir / "launch" / "local.yaml", "kind: mpi\n")

    assert "launch/local.yaml" in refusal(user_dir, "+experiment=mnist")

    (user_dir / "launch").rename(user_dir.parent / "elsewhere")
    (user_dir / "launch").symlink_to(user_dir.parent / "elsewhere")
    assert "launch/local.yaml" in refusal(user_dir, "+experiment=mnist")


def test_a_directory_that_is_not_there_is_refused(tmp_path):
    assert f"--config-dir={tmp_path}/none" in refusal(tmp_path / "none")


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    "override",
    [
        "params.a=${oc.env:DB_PASSWORD}",
        """params.a='${oc.env:"DB_PASSWORD"}'""",
        "kubernetes.env.a='${ oc.env:DB_PASSWORD}'",
        "kubernetes.env.a='${oc.env :DB_PASSWORD}'",
        "params.a=[${oc.env:DB_PASSWORD}]",
        "params={a: [1, '${oc.env:DB_PASSWORD}']}",
        "params.a='${oc.decode:${oc.env:DB_PASSWORD}}'",
        "params.a='${oc.env:${oc.env:NAME_OF_IT}}'",
        "params.a='${oc.decode:${oc.env:READS_IT}}'",
        "params.a=${oc.env:DATABASE_URL}",
        "params.a='${oc.create:[${oc.env:DATABASE_URL}]}'",
        "params.a=${model_zoo}",
        "params.a='postgres://me:s3cr3t@host/a'",
        "train.batch_size=${oc.env:DB_PASSWORD}",
        """kubernetes.env.a='${oc.env:"DB_PASSWORD"}'""",
        "kubernetes.env.a=${oc.env:DATABASE_URL}",
        "output=/o/${oc.env:DB_PASSWORD,none}",
    ],
)
def test_a_secret_is_refused_however_it_is_written(user_dir, monkeypatch, override):
    monkeypatch.setenv("DB_PASSWORD", "s3cr3t")
    monkeypatch.setenv("NAME_OF_IT", "DB_PASSWORD")
    monkeypatch.setenv("READS_IT", "${oc.env:DB_PASSWORD}")
    monkeypatch.setenv("DATABASE_URL", "postgres://me:s3cr3t@host/a")
    monkeypatch.setenv("GIT_TOKEN", "s3cr3t")
    zoo = "model_zoo=git+https://me:${oc.env:GIT_TOKEN}@host/zoo@v1"

    said = refusal(user_dir, "+experiment=mnist", zoo, override)

    assert said.startswith(override.partition("=")[0])
    assert "a secret" in said
    assert "s3cr3t" not in said


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("params.a=postgres://me:s3cr3t@host/a", "params.a"),
        ("params.a=[x,postgres://me:s3cr3t@host/a]", "params.a"),
        ("params={a: {b: [{c: ['postgres://me:s3cr3t@host/a']}]}}", "params.a.b"),
        ("kubernetes.env.a='postgres://me:s3cr3t@host/a'", "kubernetes.env.a"),
        ("output=/o/https://me:s3cr3t@host/a", "output"),
    ],
)
def test_a_password_is_refused_where_no_setting_refers_to_anything(override, key):
    with pytest.raises(ConfigError, match="a secret") as error:
        compose("train", ["model_def=mnist", "data=/records", "output=/o", override])

    assert str(error.value).startswith(f"{key} takes")
    assert "s3cr3t" not in str(error.value)


def test_a_secret_among_the_values_of_a_sweep_is_refused(user_dir, monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "s3cr3t")
    write(
        user_dir / "grid.yaml",
        "defaults: [config, _self_]\n"
        "hydra: {sweeper: {params: {params.a: 'choice(${oc.env:DB_PASSWORD},b)'}}}\n",
    )

    with pytest.raises(ConfigError, match="a secret") as error:
        expand(["+experiment=mnist"], ConfigFiles(str(user_dir), "grid"))
    assert "s3cr3t" not in str(error.value)


@pytest.fixture
def replaced_env():
    OmegaConf.register_new_resolver(
        "oc.env", lambda name: f"https://me:{name}@theirs", replace=True
    )
    yield
    OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


@pytest.mark.usefixtures("replaced_env")
def test_a_resolver_that_a_program_has_replaced_stays_and_its_secrets_are_refused(user_dir):
    said = refusal(user_dir, "+experiment=mnist", "params.a=${oc.env:X}")

    assert "a secret" in said
    assert OmegaConf.create({"a": "${oc.env:X}"}).a == "https://me:X@theirs"


@pytest.mark.long
def test_a_password_for_a_model_zoo_may_come_from_the_environment(user_dir, monkeypatch):
    monkeypatch.setenv("GIT_TOKEN", "s3cr3t")
    zoo = "model_zoo=git+https://me:${oc.env:GIT_TOKEN}@host/zoo@v1"

    assert "s3cr3t" in composed(user_dir, "+experiment=mnist", zoo).model_zoo
    shown = describe("train", ["+experiment=mnist", zoo], ConfigFiles(str(user_dir)))
    assert "s3cr3t" not in shown


def test_the_settings_are_shown_with_where_they_come_from(user_dir):
    words = ["+experiment=mnist", "params.x=1", "train.batch_size=32"]
    lines = describe("train", words, ConfigFiles(str(user_dir))).splitlines()

    file = f"{user_dir}/experiment/mnist.yaml"
    shown = [
        ("data: ${oc.env:RECORDS}/*.recordio", file),
        ("  epochs: 3", file),
        ("  batch_size: 32", "command line"),
        ("  kind: mpi", "conf/launch/mpi.yaml"),
        ("  shuffle: false", f"{user_dir}/data_plan/seven.yaml"),
        ("  lanes: 0", "default"),
        ("    metric: ''", "default"),
        ("params: {hidden: {units: [10, 20], act: relu}, x: 1}", f"{file}, command line"),
    ]
    assert {f"{line}  # {source}" for line, source in shown} <= set(lines)


@pytest.mark.long
def test_a_job_records_where_its_settings_came_from(user_dir, monkeypatch):
    monkeypatch.chdir(user_dir.parent)
    config = compose(
        "train",
        ["+experiment=mnist", "params.x=1", "train.batch_size=32"],
        values={"validation_data": "/v"},
        files=ConfigFiles("conf"),
    )

    file = f"{user_dir}/experiment/mnist.yaml"
    assert config.origins == {
        "task": "edl train",
        "data": f"{file}, environment",
        "output": file,
        "model_def": file,
        "params": f"{file}, command line",
        "validation_data": "program",
        "train.epochs": file,
        "train.batch_size": "command line",
        "data_plan.shuffle": f"{user_dir}/data_plan/seven.yaml",
        "data_plan.seed": f"{user_dir}/data_plan/seven.yaml",
        "launch.kind": "conf/launch/mpi.yaml",
    }
    assert config == composed(
        user_dir, "+experiment=mnist", "params.x=1", "train.batch_size=32", "validation_data=/v"
    ), "two jobs with the same settings are the same, whoever set them"
    assert not config.public().origins, "files of this machine are no business of who gets a model"


@pytest.mark.long
def test_no_file_may_say_where_settings_came_from(user_dir):
    experiment(user_dir, "lies", "origins: {data: moon}\n")

    assert "origins" in refusal(user_dir, "+experiment=mnist", "+experiment@_global_=lies")
    assert "origins" in refusal(user_dir, "+experiment=mnist", "origins.data=moon")


def test_settings_that_are_not_complete_are_shown_too():
    assert "output: ???  # default" in describe("prepare", ["data=x"], ConfigFiles())


@pytest.mark.long
def test_a_value_with_several_lines_is_shown_in_one():
    for override in ("params.a='one\ntwo: #3'", f"params.a={'word ' * 4000}"):
        shown = describe("train", [override], ConfigFiles())
        assert (
            yaml.safe_load(shown)["params"]
            == compose("train", [override, "model_def=m", "data=/d", "output=/o"]).params
        )


@pytest.mark.long(after=1)
@pytest.mark.parametrize("quote", ['"{}"', "'{}'", "{}"])
def test_params_and_texts_are_read_with_quotes_of_hydra_and_without(user_dir, quote):
    keys = ("data", "output", "trained_model", "model_zoo")
    words = [f"params={quote.format('a=1, b=2')}"]
    words += [f"{key}={quote.format('/a b/*.csv')}" for key in keys]
    config = composed(user_dir, "+experiment=mnist", *words)
    assert (config.params["a"], config.params["b"]) == (1, 2)
    assert [getattr(config, key) for key in keys] == ["/a b/*.csv"] * 4


@pytest.mark.long
def test_a_sweep_goes_over_experiments_and_takes_values_of_files(user_dir):
    write(
        user_dir / "grid.yaml",
        "defaults: [config, _self_]\n"
        "hydra: {sweeper: {params: {train.learning_rate: 'choice(0.1,0.01)', "
        "train.epochs: '1,2'}}}\n",
    )
    experiment(user_dir, "more", "model_def: other\n")
    words = ["+experiment=glob(m*)", "train.epochs=9", "data=/a,/b"]

    points = expand(words, ConfigFiles(str(user_dir), "grid"))

    assert not isinstance(points, Search)
    assert [tuple(point.chosen.values()) for point in points] == [
        (rate, name) for rate in ("0.1", "0.01") for name in ("mnist", "more")
    ]
    config = composed(user_dir, *points[-1].overrides, "output=/o", name="grid")
    assert (config.model_def, config.train.epochs, config.train.learning_rate) == ("other", 9, 0.01)


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("hydra.sweeper.params.train.epochs=1", r"Write train\.epochs=a,b\."),
        ("hydra.sweeper.params={train.epochs: 1}", r"Write key=a,b\."),
    ],
)
def test_a_command_gives_values_of_a_sweep_to_the_setting_itself(override, hint):
    with pytest.raises(ConfigError, match=hint):
        expand([override])


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("sweeper", "params", "named"),
    [
        ("basic", "{train: {epochs: '1,2'}}", r"Write train\.epochs: a,b in one line"),
        ("basic", "3", r"hydra\.sweeper\.params .*It is set in .*grid\.yaml"),
        ("optuna", "3", r"must be a dict .*hydra\.sweeper\.params=3\. It is set in .*grid\.yaml"),
    ],
)
def test_values_of_a_sweep_in_a_file_are_a_dict_with_dots_in_its_keys(
    user_dir, sweeper, params, named
):
    write(
        user_dir / "grid.yaml",
        f"defaults: [config, override hydra/sweeper: {sweeper}, _self_]\n"
        f"hydra: {{sweeper: {{params: {params}}}}}\n",
    )

    with pytest.raises(ConfigError, match=named):
        expand(["+experiment=mnist"], ConfigFiles(str(user_dir), "grid"))


CHOICES = sorted(conf_dir().glob("*/*.yaml"))


@pytest.mark.long(after=1)
@pytest.mark.parametrize("file", CHOICES, ids=lambda file: f"{file.parent.name}={file.stem}")
def test_every_choice_says_when_to_take_it_and_shows_in_a_dry_run(file, capsys):
    job = ["model_def=m", "data=/data/d", "validation_data=/data/v", "output=/data/o"]
    choice = f"{file.parent.name}={file.stem}"
    if file.parent.name == "kubernetes":
        job += ["launch=kubernetes", "image=a:1", "kubernetes.volumes.data.mount=/data"]
        job += ["++kubernetes.volumes.data.host_path=/shared", "-o", "yaml"]
    elif file.stem == "kubernetes":
        pytest.skip("the cases of the group kubernetes are of this launch")

    assert main(["train", choice, *job, "--dry-run"]) == 0

    printed = capsys.readouterr().out
    chosen = yaml.safe_load(file.read_text())
    leaves = {key.rpartition(".")[2]: value for key, value in fields.flat(chosen)}
    shown = [
        re.search(rf"\b{key}: '?{re.escape(str(value).lower())}", printed.lower())
        for key, value in leaves.items()
        if not isinstance(value, list)
    ]
    assert shown
    assert all(shown)
    assert re.search(rf"  {choice} +[A-Z].*[.]$", choices_table(), re.MULTILINE)
