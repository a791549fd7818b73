import os

import pytest

from edl_horovod.errors import OutputError
from edl_horovod.models import zoo_files
from edl_horovod.models.modules import load_module
from edl_horovod.models.zoo_files import ZooReads, watching_opens

MODEL = """
from pathlib import Path
HERE = Path(__file__).parent
WORDS = (HERE / "vocab.csv").read_text()
LATER = ("tables", "labels.bin")
"""


pytestmark = pytest.mark.usefixtures("imports_end_with_the_test")


@pytest.fixture
def model_zoo(tmp_path):
    zoo = tmp_path / "zoo"
    for name in ("fintech/vocab.csv", "fintech/tables/labels.bin", "other/vocab.csv", ".git/x.csv"):
        (zoo / name).parent.mkdir(parents=True, exist_ok=True)
        (zoo / name).write_text("x")
    (zoo / "fintech" / "model.py").write_text(MODEL)
    return zoo


def test_what_is_opened_for_reading_is_heard_and_nothing_else(model_zoo, tmp_path, monkeypatch):
    heard = []
    (tmp_path / "beside").write_text("")
    monkeypatch.chdir(model_zoo)
    with watching_opens(model_zoo, heard.append):
        (model_zoo / "fintech" / "vocab.csv").read_text()
        os.close(os.open("other/vocab.csv", os.O_RDONLY))
        (model_zoo / "log").write_text("written")
        (tmp_path / "beside").read_text()
    (model_zoo / ".git" / "x.csv").read_text()
    assert heard == [str(model_zoo / "fintech/vocab.csv"), str(model_zoo / "other/vocab.csv")]


def test_a_model_reads_what_it_opens_and_what_its_code_names(model_zoo):
    reads = ZooReads(model_zoo)
    with reads.recording():
        load_module(model_zoo / "fintech" / "model.py", zoo=model_zoo)
    files = zoo_files.with_reads(model_zoo, reads.files())
    names = [file.as_posix() for file in files]
    assert names == ["fintech/model.py", "fintech/tables/labels.bin", "fintech/vocab.csv"]


@pytest.mark.parametrize(
    ("name", "marker"),
    [(".git/x.csv", ""), ("env/x.csv", "pyvenv.cfg"), ("m/x.csv", ".edl_horovod.json")],
)
def test_what_is_hidden_or_of_an_environment_or_a_result_is_not_carried(model_zoo, name, marker):
    file = model_zoo / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("x")
    if marker:
        (file.parent / marker).write_text("{}")
    assert file.relative_to(model_zoo) not in zoo_files.with_reads(model_zoo, [file])


def test_a_link_out_of_the_zoo_is_not_carried_because_it_was_opened(model_zoo, tmp_path):
    (tmp_path / "secret").write_text("password")
    (model_zoo / "link.csv").symlink_to(tmp_path / "secret")
    assert zoo_files.with_reads(model_zoo, [model_zoo / "link.csv"]) == zoo_files.sources(model_zoo)


def test_more_than_a_trained_model_may_carry_is_refused(model_zoo):
    large = model_zoo / "fintech" / "weights.h5"
    with large.open("wb") as stream:
        stream.truncate(zoo_files.MAX_READ_BYTES + 1)
    with pytest.raises(OutputError, match=r"268435456 .*'fintech/weights\.h5'"):
        zoo_files.with_reads(model_zoo, [large])


def test_a_zoo_of_one_file_carries_what_the_file_reads_beside_it(model_zoo):
    zoo = model_zoo / "fintech" / "model.py"
    reads = ZooReads(zoo)
    with reads.recording():
        load_module(zoo, zoo=zoo)
    names = [file.as_posix() for file in zoo_files.with_reads(zoo, reads.files())]
    assert names == ["model.py", "tables/labels.bin", "vocab.csv"]
