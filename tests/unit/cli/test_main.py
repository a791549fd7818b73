import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import yaml
from omegaconf import OmegaConf

import edl_horovod
from edl_horovod import api
from edl_horovod import preparation as data_prepare
from edl_horovod.cli.main import VERBS, Verb, main
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import (
    ConfigError,
    Interrupted,
    MissingDependency,
    NotEnoughWorkers,
)
from edl_horovod.launch.local import LocalTarget
from edl_horovod.launch.target import TARGETS
from edl_horovod.supervisor.plan import LaunchPlan
from edl_horovod.supervisor.run import JobResult, OnEvents
from tests.job_events import recorded
from tests.programs import run_python

TRAIN = ["data=/d/*.recordio", "output=/o", "model_def=mnist"]


@pytest.fixture
def edl(capsys):
    def run(*argv: str) -> tuple[int, str, str]:
        code = main(argv)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def launched(monkeypatch):
    """The configs that reached the launcher, which does nothing."""
    configs: list[JobConfig] = []

    class Recorder(LocalTarget):
        def launch(
            self, plan: LaunchPlan, *, on_events: OnEvents | None = None, warm: object = None
        ) -> JobResult:
            configs.append(plan.config)
            if on_events:
                on_events([recorded("log", message="hello")])
            return JobResult(
                output="/o", job_dir="/o.job", steps=7, metrics={"accuracy": 0.5}, seconds=2.0
            )

    for kind in ("local", "mpi"):
        monkeypatch.setitem(TARGETS, kind, Recorder)
    return configs


def test_help_lists_verbs_and_exit_codes(edl):
    code, out, _ = edl("--help")

    assert code == 0
    for verb in ("train", "evaluate", "predict", "prepare", "scale", "status", "dashboard"):
        assert f"\n  {verb} " in out
    assert all(named in out for named in ("Keras", "PyTorch", "\n  6  ", "\n  130 "))


def test_a_job_starts_without_what_is_for_its_help_and_for_its_coordinator(tmp_path):
    program = (
        "import inspect, sys\n"
        "inspect.getsource = None\n"  # The settings' meanings stand in the source alone.
        "from edl_horovod.cli.main import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "assert 'edl_horovod.coordinator.messages' not in sys.modules"
    )
    words = ["train", *TRAIN[:1], f"output={tmp_path}/o", "model_def=mnist", "--dry-run"]

    run_python("-c", program, *words, check=True)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "usage: edl"),
        (["image", "push", "model_zoo=zoo"], "base_image and image_repository"),
        (["train", "-m", *TRAIN, "train.epochs=1,2", "--cfg=job"], "Leave out -m"),
    ],
    ids=["no verb", "all settings that are missing", "the settings of a sweep"],
)
def test_what_is_missing_or_too_much_is_told(edl, words, named):
    code, out, err = edl(*words)

    assert (code, out) == (2, "")
    assert named in err


def test_version_is_printed(edl):
    assert edl("--version")[1] == f"edl_horovod {edl_horovod.__version__}\n"


@pytest.mark.parametrize("argv", [["train", "--help"], ["train", "-h"], ["help", "train"]])
def test_help_of_a_verb_shows_every_setting_with_its_meaning_and_its_choices(capsys, argv):
    with pytest.raises(SystemExit) as end:
        main(argv)

    out = capsys.readouterr().out
    assert end.value.code == 0
    assert re.search(r"train\.learning_rate +float or null  null\n      Passed to", out)
    assert re.search(r"model_def +str +\(required\)", out)
    assert re.search(r"\n  checkpoint=spot +Save each minute: for spot", out)
    assert "examples:\n  edl train" in out


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["trainn"], "'train'? Verbs: train,"),
        (["train", "--dry-rum"], "'--dry-run'"),
        (["train", "--data"], "'--data'. A setting is written data=value."),
        (["train", "--dry-rum", "model_def=m"], "'--dry-run'"),
        (["train", "--config-dri", "conf"], "'--config-dir'"),
        (["train", *TRAIN, "--num_epochs", "3"], "called 'train.epochs'"),
        (["train", *TRAIN, "--restful", "yes"], "'restful'"),
        (["help", "trainn"], "'train'"),
        (["train", *TRAIN, "train.epoch=3"], "'train.epochs'"),
        (["train", *TRAIN, "--learnig_rate=3"], "'train.learning_rate'"),
        (["train", *TRAIN, "foo"], "key=value"),
        (["prepare", "shards=3"], "Allowed: data, output"),
        (["status"], "required: JOB"),
        (["status", "a", "b"], "argument 'b'"),
        (["scale", "/x", "--np", "many"], "'many'"),
        # A path that the system refuses.
        (["status", "/tmp/" + "a" * 300], "too long"),
        (["ledger", "/tmp/" + "a" * 300], "too long"),
    ],
)
def test_a_wrong_command_is_one_message_and_exit_code_2(edl, argv, named):
    code, out, err = edl(*argv)

    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert named in err
    assert "Traceback" not in err
    assert err.count("\n") == 1 or "too long" not in err


SETTINGS = {
    "model_zoo": "/no/zoo",
    "model_def": "fintech.MyKerasModel",
    "params": "hidden_units=[10, 100, 20, 5], learning_rate=0.01",
    "params.bias": "-1",
    "data": "/d/train/*.recordio",
    "train.epochs": "3",
}


@pytest.mark.parametrize("between", ["=", " "], ids=["as our reference", "as ElasticDL"])
def test_settings_may_be_flags(edl, launched, between):
    words = [word for key, value in SETTINGS.items() for word in (f"--{key}", value)]
    if between == "=":
        words = [f"--{key}={value}" for key, value in SETTINGS.items()]
    code, _, err = edl("train", *words[:2], "-q", *words[2:], "--output=/o")

    assert (code, err) == (0, "")
    (config,) = launched
    assert config.output == "/o"
    assert (config.model_zoo, config.model_def) == ("/no/zoo", "fintech.MyKerasModel")
    params = {"hidden_units": [10, 100, 20, 5], "learning_rate": 0.01, "bias": -1}
    assert config.params == params
    assert (config.data, config.train.epochs) == ("/d/train/*.recordio", 3)


def test_debug_shows_the_traceback(edl):
    for argv in (["train", "foo", "--debug"], ["--debug", "train", "foo"]):
        code, _, err = edl(*argv)
        assert code == 2
        assert err.startswith("Traceback")
        assert err.splitlines()[-1].startswith("error: ")


def test_dry_run_prints_yaml_and_the_plan_and_starts_nothing(edl, launched):
    code, out, _ = edl("train", *TRAIN, "--dry-run", "launch.np=2", "params=a=[1, 2]")

    settings = yaml.safe_load(out)
    assert code == 0
    assert settings["launch"]["np"] == 2
    assert settings["params"] == {"a": [1, 2]}
    assert "directory: /o.job" in out
    assert launched == []


def test_a_job_runs_and_its_result_is_printed_quietly_without_its_progress(edl, launched):
    code, out, err = edl("train", *TRAIN, "train.epochs=3")

    assert code == 0
    assert launched[0].train.epochs == 3
    assert out.splitlines()[:2] == ["accuracy: 0.5", "output:   /o"]
    assert err == "hello\n"
    _, out, err = edl("evaluate", "-q", "data=/d", "trained_model=/m")
    assert launched[1].task == "evaluate"
    assert "accuracy: 0.5" in out
    assert err == ""


def test_a_verb_is_a_module_and_a_line_in_the_table(edl, monkeypatch):
    def run(verb: str, summary: str, argv: Sequence[str]) -> int:
        sys.stdout.write(f"{verb} {argv[0]}\n")
        return 7

    module = ModuleType("greet")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "edl_horovod.cli.verbs.greet", module)
    monkeypatch.setitem(VERBS, "greet", Verb("Say what follows.", "edl_horovod.cli.verbs.greet"))

    assert edl("greet", "you") == (7, "greet you\n", "")
    assert re.search(r"\n  greet +Say what follows\.", edl("--help")[1])


class _Interrupted:
    """An attribute during whose class Ctrl-C comes: Python 3.11 raises another error then."""

    def __set_name__(self, owner, name):
        raise KeyboardInterrupt


def _class_error():
    try:
        type("Owner", (), {"attribute": _Interrupted()})
    except BaseException as error:
        return error


def _unbound_error():
    """What OmegaConf raises if Ctrl-C comes where it sets a key: another error, without a cause."""
    node = OmegaConf.create({"b": 2})._get_node("b")
    with (
        mock.patch.object(type(node), "_key", side_effect=KeyboardInterrupt),
        pytest.raises(UnboundLocalError) as caught,
    ):
        OmegaConf.create({"a": 1})["b"] = node
    return caught.value


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (NotEnoughWorkers("too few"), 6),
        (KeyboardInterrupt(), 130),
        (_class_error(), 130),
        (_unbound_error(), 130),
    ],
)
def test_an_error_of_the_job_is_its_exit_code(edl, monkeypatch, raised, code):
    class Failing(LocalTarget):
        def launch(
            self, plan: LaunchPlan, *, on_events: object = None, warm: object = None
        ) -> JobResult:
            raise raised

    monkeypatch.setitem(TARGETS, "local", Failing)

    exit_code, out, err = edl("train", *TRAIN)

    assert (exit_code, out) == (code, "")
    assert err.startswith("error: ")


def test_prepare_calls_the_data_side(edl, monkeypatch):
    def run(config: Any, on_progress: Callable[[int, int, int], None]):
        on_progress(1, 2, 9)
        return data_prepare.PrepareResult(
            num_records=9, num_files=2, num_empty=0, num_bad=0, files=["/o/part"], bad_files=""
        )

    monkeypatch.setattr(data_prepare, "run", run)

    code, out, err = edl("prepare", "data=/in", "output=/o", "model_def=m")

    assert code == 0
    assert out.startswith("records: 9\n")
    assert err == "1 of 2 files | 9 records\n"


def test_a_dry_run_of_prepare_counts_the_files(edl, tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        (tmp_path / "in" / name).write_text(name)

    settings = (f"data={tmp_path}/in", f"output={tmp_path}/out", "model_def=m")
    code, out, _ = edl("prepare", "--dry-run", *settings)

    assert code == 0
    assert yaml.safe_load(out)["model_def"] == "m"
    assert "files: 2 (" in out
    assert "groups: 1 of" in out
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.long
def test_python_calls_and_commands_give_the_same_config(edl, launched):
    edl("train", *TRAIN, "train.epochs=3", "launch=mpi", "params=a=[1, 2], b='x'", "overwrite=true")
    same = {"data": "/d/*.recordio", "output": "/o", "model_def": "mnist", "launch": "mpi"}

    api.train(**same, train={"epochs": 3}, params={"a": [1, 2], "b": "x"}, overwrite=True)
    api.train(**same, **{"train.epochs": "3"}, params="a=[1, 2], b='x'", overwrite="true")
    api.train(**same, **{"train.epochs": 3, "params.a": [1, 2], "params.b": "x"}, overwrite=True)

    assert launched == [launched[0]] * 4


def test_the_calls_of_the_reference_document(launched, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")

    api.train(
        model_zoo="$HOME/work",
        model_def="fintech.MyKerasModel",
        params="hidden_units=[10, 100, 20, 5], learning_rate=0.01",
        data="gs://bucket-name/tony/imagenet/train/*.recordio",
        output="/filestore/tony/my_trained_model",  # Results in buckets are refused, clearly.
    )
    api.predict(
        data="/filestore/yiwang/imagenet/test/*.recordio",
        trained_model="/filestore/tony/my_keras_model",
        output="/filestore/yiwang/imagenet-eval.recordio",
    )

    train, predict = launched
    assert train.model_zoo == "/home/me/work"
    assert train.params == {"hidden_units": [10, 100, 20, 5], "learning_rate": 0.01}
    assert train.data == "gs://bucket-name/tony/imagenet/train/*.recordio"
    assert predict.trained_model == "/filestore/tony/my_keras_model"


def test_python_calls_take_paths_and_lists_of_them_and_text_verbatim(launched):
    api.evaluate(trained_model=Path("/m"), data=[Path("/d/a"), "/d/b*"])
    api.predict(data="/d/a b=${x}", trained_model="/m", output="/o", elastic={"max_np": None})

    assert (launched[0].trained_model, launched[0].data) == ("/m", "/d/a,/d/b*")
    assert launched[1].data == "/d/a b=${x}"


def test_a_python_call_shows_progress_and_tells_its_caller_only_where_it_is_asked(launched, capsys):
    events: list[dict[str, Any]] = []

    api.train(model_def="m", data="/d", output="/o", progress=True, on_events=events.extend)

    assert capsys.readouterr().err == "hello\n"
    assert [recorded.event.message for recorded in events] == ["hello"]
    api.train(model_def="m", data="/d", output="/o")
    assert capsys.readouterr() == ("", "")


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"epochs": 3}, "'train.epochs'"),
        ({"data": None}, "\n  data=...  Input"),
        ({"validation_data": 3.5, "data": ["/a,b"]}, "a comma"),
        ({"launch.kind": None}, "launch.kind must"),
        ({"num_epochs": 3}, "called 'train.epochs'"),
        ({"train": {"epochs": [1]}}, "train.epochs must be of type int"),
        ({"params": {"a": (1, 2)}}, "params.a holds a tuple"),
        ({"params.a": {1, 2}}, "params.a holds a set"),
    ],
)
def test_a_wrong_python_call_is_refused(keywords, named):
    with pytest.raises(ConfigError, match=re.escape(named)):
        api.train(**{"data": "/d", "output": "/o", "model_def": "m", **keywords})


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("script", "allowed"),
    [
        ("import edl_horovod", set()),
        ("import edl_horovod; edl_horovod.train, edl_horovod.Mode", set()),
        ("from edl_horovod.cli.main import main; main(['--help'])", set()),
        ("from edl_horovod.cli.main import main; main(['status', '/nowhere'])", set()),
        (
            f"from edl_horovod.cli.main import main; main(['train', '--dry-run', *{TRAIN}])",
            {"hydra", "numpy"},
        ),
    ],
)
def test_nothing_heavy_is_imported(script, allowed):
    names = "tensorflow keras horovod hydra numpy rich starlette uvicorn jinja2"
    heavy = set(names.split()) - allowed
    script += f"\nimport json, sys; print(json.dumps(sorted({heavy!r} & set(sys.modules))))"

    done = run_python("-c", script, check=True)

    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_the_public_names_are_there():
    import edl_horovod

    for name in edl_horovod.__all__:
        assert getattr(edl_horovod, name)
        assert name in dir(edl_horovod)
    with pytest.raises(AttributeError, match="trainn"):
        edl_horovod.trainn  # noqa: B018


@pytest.mark.long
def test_the_settings_are_shown_with_where_they_come_from(edl, tmp_path, launched):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "x.yaml").write_text("# @package _global_\ntrain: {epochs: 3}\n")

    files = ["--config-dir", str(tmp_path), "+experiment=x"]
    code, out, _ = edl("train", *files, *TRAIN, "--cfg", "job")

    assert (code, launched) == (0, [])
    shown = dict(line.strip().split("  # ") for line in out.splitlines() if "  # " in line)
    assert shown["epochs: 3"] == f"{tmp_path}/experiment/x.yaml"
    assert shown["data: /d/*.recordio"] == "command line"
    assert edl("train", *files, *TRAIN)[0] == 0
    assert launched[0].train.epochs == 3


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["prepare"], "prepare"),
        (["image", "build"], "image"),
        *(([verb], "config") for verb in ("train", "evaluate", "predict")),
    ],
)
def test_every_verb_with_settings_takes_a_first_file(edl, tmp_path, words, start):
    (tmp_path / "mine.yaml").write_text(f"defaults: [{start}, _self_]\nmodel_zoo: /theirs\n")

    files = ["--config-dir", str(tmp_path), "--config-name", "mine.yaml"]
    code, out, _ = edl(*words, *files, "-c", "job")

    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("model_zoo:")]
    assert line.split("  # ") == ["model_zoo: /theirs", f"{tmp_path}/mine.yaml"]


def test_ctrl_c_while_the_command_is_imported_is_one_line():
    program = (
        "import signal, sys\n"
        "import edl_horovod.__main__ as command\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'edl_horovod.cli.main':\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "command.main()\n"
    )
    ended = run_python("-c", program)
    assert (ended.returncode, ended.stderr) == (Interrupted.exit_code, "error: interrupted\n")


OPENS_TOO_MUCH = """
import resource
import socket

def run(verb, summary, argv):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    sockets = [socket.socket() for _ in range(100)]
"""


def test_too_few_open_files_are_an_error_that_says_how_to_allow_more(tmp_path):
    (tmp_path / "opens_too_much.py").write_text(OPENS_TOO_MUCH)
    code = "import sys; from edl_horovod.cli.main import VERBS, Verb, main; "
    code += "VERBS['greedy'] = Verb('.', 'opens_too_much'); sys.exit(main(['greedy']))"
    done = run_python("-c", code, cwd=tmp_path)

    assert done.returncode == MissingDependency.exit_code
    assert all(words in done.stderr for words in ("ulimit -n", "edl doctor"))
    assert "Traceback" not in done.stderr
