"""A job never replaces what it reads, nor anything that we did not write."""

import os
from pathlib import Path

import pytest

from edl_horovod.errors import ConfigError, OutputError
from edl_horovod.files import marker
from edl_horovod.job.directory import with_job_dir
from edl_horovod.supervisor.run import check_inputs
from tests.jobs import config_of
from tests.unit.job.test_directory import contents


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with data, a model zoo and a trained model, in which commands are given."""
    monkeypatch.chdir(tmp_path)
    for name in ("ds/train.recordio", "ds/more/test.recordio", "zoo/m.py", "model/config.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def check(task, *overrides):
    models = {"train": ["model_zoo=zoo", "model_def=m"]}.get(task, ["trained_model=model"])
    check_inputs(with_job_dir(config_of(task, ["data=ds/train.recordio", *models, *overrides])))


def mark(folder, kind="prepared records"):
    """Make a folder look as one that we made, with all that is in it."""
    folder.mkdir(exist_ok=True)
    marker.write(folder, kind, holds=[str(path.relative_to(folder)) for path in folder.rglob("*")])


@pytest.mark.parametrize(
    ("task", "overrides"),
    [
        ("train", ["output=ds"]),
        ("train", ["output=."]),
        ("train", ["output=ds/train.recordio"]),
        ("train", ["output=../{here}/ds"]),
        ("train", ["output=ds", "data=ds/*.recordio"]),
        ("train", ["output=ds", "data=ds/**/*.recordio"]),
        ("train", ["output=ds/out", "data=ds"]),
        ("train", ["output=ds/more", "validation_data=ds/more/test.recordio"]),
        ("train", ["output=zoo"]),
        ("train", ["output=zoo/out"]),
        ("train", ["output=model", "init_from=model"]),
        ("train", ["output=j", "job_dir=j"]),
        ("train", ["output=j/out", "job_dir=j"]),
        ("train", ["output=out", "job_dir=out/job"]),
        ("train", ["output=out", "job_dir=ds"]),
        ("train", ["output=out", "job_dir=."]),
        ("predict", ["output=ds/train.recordio"]),
        ("predict", ["output=ds"]),
        ("predict", ["output=model"]),
        ("predict", ["output=model/out"]),
        ("evaluate", ["output=model"]),
        ("evaluate", ["output=link"]),
        ("evaluate", ["output=data", "data=data/train.recordio"]),
        ("evaluate", ["output=ds", "data=data/train.recordio"]),
        ("evaluate", ["output=ds", "data=linked/a.recordio"]),
    ],
)
def test_an_output_that_is_or_holds_or_lies_in_what_is_read_is_refused(place, task, overrides):
    (place / "link").symlink_to("model")
    (place / "data").symlink_to("ds")
    (place / "linked").mkdir()
    (place / "linked" / "a.recordio").symlink_to("../ds/train.recordio")
    for folder in ("ds", "ds/more", "zoo", "model"):
        mark(place / folder)
    with pytest.raises(OutputError):
        check(task, *(text.format(here=place.name) for text in overrides), "overwrite=true")


@pytest.mark.parametrize(
    "overrides",
    [
        ["output=out"],
        ["output=ds/out"],
        ["output=ds-2"],
        ["output=out", "data=ds"],
        ["output=out", "data=ds", "job_dir=ds/job"],
        ["output=out", "data=s3://bucket/ds/*.recordio,ds"],
    ],
)
def test_an_output_of_its_own_is_taken(place, overrides, monkeypatch):
    from edl_horovod.supervisor import run as job

    monkeypatch.setattr(job, "check_sources", lambda *_: None)  # There is no such bucket.
    check("train", *overrides)


def test_a_result_that_holds_nothing_else_is_replaced_when_that_is_asked(place):
    (place / "out").mkdir()
    (place / "out" / "part.recordio").touch()
    mark(place / "out")
    with pytest.raises(OutputError, match="overwrite=true"):
        check("train", "output=out")
    check("train", "output=out", "overwrite=true")
    (place / "out" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"notes\.txt"):
        check("train", "output=out", "overwrite=true")


@pytest.mark.parametrize("kind", ["job", "sweep", "partial", "of another version"])
def test_what_is_ours_but_no_result_is_not_replaced(place, kind):
    mark(place / "out", kind)
    with pytest.raises(OutputError, match="of a result"):
        check("train", "output=out", "overwrite=true")


def test_an_output_in_another_job_s_directory_is_refused(place):
    mark(place / "other.job", "job")
    with pytest.raises(OutputError, match="lies in"):
        check("train", "output=other.job/logs/out")


@pytest.mark.parametrize(
    ("task", "output"),
    [
        ("train", "x" * 260),
        ("evaluate", "x" * 240),
        ("predict", "x" * 240),
        ("predict", "x" * 250 + ".recordio"),
        ("train", "/".join(["x" * 100] * 60)),
    ],
)
def test_a_name_that_is_too_long_is_told_before_any_work(place, task, output):
    with pytest.raises(OutputError, match="too long") as caught:
        check(task, f"output={output}")
    assert caught.value.hint


@pytest.mark.parametrize("output", ["file/out", "/proc/out", f"{'a' * 300}/out"])
def test_an_output_that_could_not_be_written_at_the_end_is_refused_at_the_start(place, output):
    (place / "file").touch()
    before = contents(place)
    with pytest.raises(OutputError, match="be written"):
        check("train", f"output={output}", "job_dir=job")
    assert contents(place) == before
    assert not (place / "job").exists()


def test_an_output_where_a_file_system_is_mounted_is_refused(place):
    mounts = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
    readable = [mount for mount in mounts if os.path.isdir(mount) and os.access(mount, os.R_OK)]
    empty = [mount for mount in readable if not os.listdir(mount)]
    if not empty:
        pytest.skip("no empty file system is mounted here")
    with pytest.raises(OutputError, match="mount point"):
        check("train", f"output={empty[0]}", "job_dir=job")


def test_the_folders_above_an_output_need_not_be_there(place):
    check("train", "output=new/folder/out", "job_dir=job")
    assert not (place / "new").exists()


@pytest.mark.parametrize(("output", "job_dir"), [("m", "m"), ("m/", "./m"), ("m", "m/job")])
def test_a_job_directory_that_is_the_output_or_lies_in_it_is_refused(place, output, job_dir):
    with pytest.raises(OutputError, match=r"(is|holds) .* job_dir,"):
        check("train", f"output={output}", f"job_dir={job_dir}")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_told(place):
    (place / "out").mkdir(mode=0o000)
    with pytest.raises(OutputError, match="Permission denied"):
        check("train", "output=out")


def test_a_path_of_what_is_there_that_goes_over_a_link_out_of_the_output_is_refused(place):
    mark(place / "out")
    (place / "out" / "link").symlink_to("../ds")
    mark(place / "out")
    with pytest.raises(OutputError, match=r"holds .*data,"):
        check("train", "output=out", "data=out/link/train.recordio", "overwrite=true")


TAKES_OUTPUTS = "class PredictionOutputsProcessor:\n    def process(self, *_): ...\n"


@pytest.mark.parametrize(
    ("files", "is_taken"),
    [
        ({"m.py": "class M: ...\n"}, False),
        ({"m.py": "class M: ...\n", "other.py": TAKES_OUTPUTS}, False),
        ({"m.py": f"class M: ...\n{TAKES_OUTPUTS}"}, True),
        ({"m.py": "from base import *\n", "base.py": f"class M: ...\n{TAKES_OUTPUTS}"}, True),
        (
            {
                "m.py": "import base\nclass M(base.B): ...\n",
                "base.py": "class B:\n    outputs_processor = dict\n",
            },
            True,
        ),
    ],
    ids=["none", "another model's", "its own", "imported", "inherited"],
)
def test_predictions_that_nothing_takes_are_refused_before_there_is_a_job(place, files, is_taken):
    from edl_horovod.proto.trained_model_pb2 import TrainedModel

    (place / "model" / "trained_model.pb").write_bytes(
        TrainedModel(model_def="m").SerializeToString()
    )
    (place / "model" / "zoo").mkdir()
    for name, text in files.items():
        (place / "model" / "zoo" / name).write_text(text)
    if is_taken:
        check("predict")
    else:
        with pytest.raises(ConfigError, match="where predictions"):
            check("predict")
    check("predict", "output=out")
    assert not list(place.glob("*.job"))
