import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edl_horovod.config.schema import PrepareConfig
from edl_horovod.data.prepare import run
from edl_horovod.data.recordio import Reader
from edl_horovod.errors import DataError, OutputError, UserCodeError

FUNCTION = """
from pathlib import Path

def prepare_data_for_a_single_file(filename):
    text = Path(filename).read_text()
    if text == "skip":
        return None
    if text == "many":
        return (f"{filename}:{part}".encode() for part in range(3))
    if text == "bad":
        raise ValueError("not an image")
    if text == "text":
        return text
    return f"{Path(filename).parent.name}/{text}".encode()
"""


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    for name in "abc":
        (folder / name).mkdir(parents=True)
        for number in range(10):
            (folder / name / f"{number}.txt").write_text(str(number))
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "texts.py").write_text(FUNCTION)
    return folder


@pytest.fixture
def prepare(tmp_path: Path, inputs: Path):
    def prepare(on_progress=None, **settings):
        config = {
            "data": str(inputs),
            "output": str(tmp_path / "out"),
            "model_zoo": str(tmp_path / "zoo"),
            "model_def": "texts",
            "processes": 1,
        }
        return run(PrepareConfig(**{**config, **settings}), on_progress)

    return prepare


def records_of(folder: Path) -> list[bytes]:
    with Reader.open(f"{folder}/*.recordio") as reader:
        return list(reader)


def test_every_file_of_a_folder_gives_its_record(prepare, tmp_path: Path):
    result = prepare(records_per_shard=12)
    names = [f"part-{number:05d}-of-00003.recordio" for number in range(3)]
    assert result.files == [str(tmp_path / "out" / name) for name in names]
    assert sorted(os.listdir(tmp_path / "out")) == names
    assert (result.num_files, result.num_records, result.num_skipped) == (30, 30, 0)
    expected = [f"{name}/{number}".encode() for name in "abc" for number in range(10)]
    assert sorted(records_of(tmp_path / "out")) == expected


def test_each_shard_holds_every_class(prepare):
    result = prepare(records_per_shard=15)
    for file in result.files:
        with Reader.open(file) as reader:
            assert {record[:1] for record in reader} == {b"a", b"b", b"c"}


def test_the_number_of_processes_does_not_change_the_result(prepare, tmp_path: Path):
    prepare(output=str(tmp_path / "one"))
    prepare(output=str(tmp_path / "two"), processes=2)
    assert records_of(tmp_path / "one") == records_of(tmp_path / "two")


def test_a_file_may_give_several_records_or_none(prepare, inputs: Path, tmp_path: Path):
    for file in inputs.glob("*/*"):
        file.write_text("skip")
    (inputs / "a" / "0.txt").write_text("many")
    result = prepare()
    assert (result.num_files, result.num_records, result.num_skipped) == (30, 3, 29)
    name = f"{inputs}/a/0.txt"
    assert records_of(tmp_path / "out") == [f"{name}:{part}".encode() for part in range(3)]


def test_a_list_of_files_and_globs(prepare, inputs: Path):
    result = prepare(data=f"{inputs}/a/1.txt, {inputs}/[bc]/2.txt,{inputs}/a/1.txt")
    assert result.num_records == 3


def test_progress_ends_at_the_number_of_files(prepare):
    told = []
    prepare(lambda done, total: told.append((done, total)))
    assert told == sorted(set(told))
    assert told[-1] == (30, 30)


def test_files_that_cannot_be_prepared_are_named_and_nothing_is_written(
    prepare, inputs: Path, tmp_path: Path
):
    for number in range(10):
        (inputs / "a" / f"{number}.txt").write_text("bad")
    (inputs / "b" / "0.txt").write_text("text")
    (inputs / "b" / "1.txt").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"12 of 30 files") as caught:
        prepare()
    assert str(caught.value).count("\n") == 11
    assert "texts.py:11: ValueError: not an image" in str(caught.value)
    assert "and 2 more" in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["in", "zoo"]


def test_a_record_that_is_not_bytes_is_a_failure(prepare, inputs: Path):
    (inputs / "b" / "0.txt").write_text("text")
    with pytest.raises(DataError, match=r"b/0\.txt: .* gave str, not bytes"):
        prepare()


def test_no_input_file_is_an_error(prepare, inputs: Path):
    with pytest.raises(DataError, match=r"no input file.*\*\.png"):
        prepare(data=f"{inputs}/*.png")


def test_no_record_at_all_is_an_error(prepare, inputs: Path):
    (inputs / "a" / "0.txt").write_text("skip")
    with pytest.raises(DataError, match="gave no record"):
        prepare(data=f"{inputs}/a/0.txt")


def test_an_existing_output_is_replaced_only_when_asked(prepare, inputs: Path, tmp_path: Path):
    prepare(records_per_shard=10)
    with pytest.raises(OutputError, match="overwrite=true"):
        prepare()
    prepare(overwrite=True, data=f"{inputs}/a/1.txt")
    assert os.listdir(tmp_path / "out") == ["part-00000-of-00001.recordio"]


def test_a_model_file_that_does_not_load_is_named_by_a_process(prepare, tmp_path: Path):
    (tmp_path / "zoo" / "texts.py").write_text("import no_such_package\n")
    with pytest.raises(UserCodeError, match=r"texts\.py:1: ModuleNotFoundError"):
        prepare()
    assert sorted(os.listdir(tmp_path)) == ["in", "zoo"]


def test_ctrl_c_leaves_nothing(inputs: Path, tmp_path: Path):
    slow = "import time\n\ndef prepare_data_for_a_single_file(filename):\n    time.sleep(0.2)\n"
    (tmp_path / "zoo" / "slow.py").write_text(slow)
    script = tmp_path / "zoo" / "prepare.py"
    script.write_text(
        "from edl_horovod.config.schema import PrepareConfig\n"
        "from edl_horovod.data.prepare import run\n"
        "if __name__ == '__main__':\n"
        f"    run(PrepareConfig(data={str(inputs)!r}, output={str(tmp_path / 'out')!r},\n"
        f"        model_zoo={str(tmp_path / 'zoo')!r}, model_def='slow', processes=2),\n"
        "        lambda *_: print('working', flush=True))\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    assert any("partial" in name for name in os.listdir(tmp_path))
    started = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    assert time.monotonic() - started < 10
    assert sorted(os.listdir(tmp_path)) == ["in", "zoo"]
