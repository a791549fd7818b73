"""Runs of prepare from settings to output, with a pool that works in the test's own process."""

import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from edl_horovod.config.schema import PrepareConfig
from edl_horovod.errors import (
    ConfigError,
    DataError,
    Interrupted,
    JobFailed,
    OutputError,
    UserCodeError,
)
from edl_horovod.files import marker
from edl_horovod.preparation import describe
from edl_horovod.preparation.groups import prepare_group, source_digest
from edl_horovod.preparation.job import run_with
from edl_horovod.records.index_store import SMALL_BYTES
from edl_horovod.records.reader import Reader
from edl_horovod.records.sources.recordio import read_chunks
from tests.unit.records.record_files import keeping_times, read

FUNCTION = """
from pathlib import Path

def prepare_data_for_a_single_file(filename):
    text = Path(filename).read_text()
    if text == "none":
        return None
    if text == "many":
        return (f"{filename}:{part}".encode() for part in range(3))
    if text == "bad":
        raise ValueError("not an image")
    if text == "text":
        return text
    return f"{Path(filename).parent.name}/{text}".encode()
"""


class InlinePool:
    """Does the groups one after another, and may fail after some of them."""

    def __init__(self, settings, *, fail_after=None, error=None, source=None):
        self.settings = settings
        self.numbers = []
        self._fail_after = fail_after
        self._error = error
        self._source = source

    def source(self):
        return self._source or source_digest(self.settings.model_zoo, self.settings.model_def)

    def work(self, groups, on_work):
        for group in groups:
            if len(self.numbers) == self._fail_after:
                raise self._error
            self.numbers.append(group.number)
            yield prepare_group(self.settings, group, on_work)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def inputs(tmp_path):
    folder = tmp_path / "in"
    for name in "abc":
        (folder / name).mkdir(parents=True)
        for number in range(10):
            (folder / name / f"{number}.txt").write_text(str(number))
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "texts.py").write_text(FUNCTION)
    return folder


@pytest.fixture
def config(tmp_path, inputs):
    def config(**settings) -> PrepareConfig:
        defaults = {
            "data": str(inputs),
            "output": str(tmp_path / "out"),
            "model_zoo": str(tmp_path / "zoo"),
            "model_def": "texts",
        }
        return PrepareConfig(**{**defaults, **settings})

    return config


@pytest.fixture
def prepare(config):
    """Run; `prepare.groups` are the numbers of the groups that the last run did."""

    def prepare(on_progress=lambda *_: None, *, fail_after=None, error=None, source=None, **keys):
        def open_pool(settings, num_groups):
            pool = InlinePool(settings, fail_after=fail_after, error=error, source=source)
            prepare.groups = pool.numbers
            return contextlib.nullcontext(pool)

        return run_with(open_pool, config(**keys), on_progress)

    return prepare


def interrupt(prepare, num_groups=3, **settings):
    """Run until some groups of four files are done."""
    with pytest.raises(JobFailed):
        prepare(files_per_group=4, fail_after=num_groups, error=JobFailed("x"), **settings)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


ALL = [f"{name}/{number}".encode() for name in "abc" for number in range(10)]


def test_every_file_of_a_folder_gives_its_record(prepare, tmp_path):
    result = prepare(records_per_shard=12)
    names = [f"part-{number:05d}-00000.recordio" for number in range(3)]
    assert result.files == [str(tmp_path / "out" / name) for name in names]
    assert sorted(os.listdir(tmp_path / "out")) == [marker.NAME, *names]
    assert sorted(os.listdir(tmp_path)) == ["in", "out", "zoo"]
    assert (result.num_files, result.num_records, result.num_empty) == (30, 30, 0)
    assert sorted(read(tmp_path / "out")) == ALL


def test_each_shard_holds_every_class(prepare):
    for file in prepare(records_per_shard=15).files:
        assert {record[:1] for record in read(file)} == {b"a", b"b", b"c"}


def test_an_index_lies_beside_large_output_and_spares_a_job_the_scan(prepare, inputs, tmp_path):
    for file in inputs.rglob("*.txt"):
        file.write_text(file.name * 50_000)
    for overwrite in (False, True):
        files = prepare(codec="none", overwrite=overwrite).files
    (index,) = {path.name for path in (tmp_path / "out").glob(".*")} - {marker.NAME}
    assert index in marker.read(tmp_path / "out" / marker.NAME)["holds"]
    assert sum(map(os.path.getsize, files)) > SMALL_BYTES
    for file in files:
        with keeping_times(Path(file)), open(file, "r+b") as stream:
            for chunk in read_chunks(file).chunks[1:-1]:
                stream.seek(chunk.offset)
                stream.write(bytes(chunk.header_bytes))  # A scan would refuse it.
    with Reader.open(str(tmp_path / "out")) as reader:
        assert len(reader) == 30
    os.utime(files[0])
    with pytest.raises(DataError, match=r"chunk 1 .*damaged"):
        Reader.open(str(tmp_path / "out"))


def test_without_shuffle_the_order_is_that_of_the_names(prepare, tmp_path):
    prepare(shuffle=False, records_per_shard=7)
    assert read(tmp_path / "out") == ALL


def test_a_file_may_give_several_records_or_none(prepare, inputs, tmp_path):
    for file in inputs.glob("*/*"):
        file.write_text("none")
    (inputs / "a" / "0.txt").write_text("many")
    result = prepare()
    assert (result.num_files, result.num_records, result.num_empty) == (30, 3, 29)
    name = f"{inputs}/a/0.txt"
    assert read(tmp_path / "out") == [f"{name}:{part}".encode() for part in range(3)]


def test_progress_counts_files_and_records(prepare, inputs):
    (inputs / "a" / "0.txt").write_text("many")
    reports = []
    prepare(lambda *counts: reports.append(counts))
    assert reports[0] == (0, 30, 0)
    assert reports[-1] == (30, 30, 32)


def test_bad_files_end_the_run_and_are_named(prepare, inputs, tmp_path):
    for number in range(10):
        (inputs / "a" / f"{number}.txt").write_text("bad")
    (inputs / "b" / "0.txt").write_text("text")
    (inputs / "b" / "1.txt").write_bytes(b"\xff")
    with pytest.raises(DataError, match="12 input") as caught:
        prepare()
    assert str(caught.value).count("\n") == 11
    assert "texts.py:11: ValueError:" in str(caught.value)
    assert "2 more" in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["in", "out.bad_files.jsonl", "zoo"]


def test_a_bad_file_is_reported_once_and_a_skipped_one_is_logged(prepare, inputs, caplog):
    (inputs / "a" / "0.txt").write_text("bad")
    with pytest.raises(DataError, match="an image"):
        prepare()
    assert caplog.messages == []
    prepare(bad_files="skip")
    assert [f"{inputs}/a/0.txt" in message for message in caplog.messages] == [True]


def test_a_released_function_is_given_the_open_file_and_its_name(prepare, inputs, tmp_path):
    (tmp_path / "zoo" / "texts.py").write_text(
        "def prepare_data_for_a_single_file(file_object, filename):\n"
        "    yield filename.rpartition('/')[2].encode() + b' ' + file_object.read()\n"
    )
    prepare(shuffle=False, data=f"{inputs}/a")
    expected = [f"{number}.txt {number}".encode() for number in range(10)]
    assert read(tmp_path / "out") == expected


def test_bad_files_are_skipped_and_listed(prepare, inputs, tmp_path):
    (inputs / "a" / "0.txt").write_text("bad")
    (inputs / "b" / "0.txt").write_text("text")
    result = prepare(bad_files="skip", max_bad_files=2)
    assert (result.num_records, result.num_bad, result.num_empty) == (28, 2, 0)
    lines = [json.loads(line) for line in Path(result.bad_files).read_text().splitlines()]
    reasons = {line["path"]: line["reason"] for line in lines}
    assert sorted(reasons) == [f"{inputs}/a/0.txt", f"{inputs}/b/0.txt"]
    assert "texts.py:11: ValueError" in reasons[f"{inputs}/a/0.txt"]
    assert reasons[f"{inputs}/b/0.txt"].endswith(" str, not bytes.")
    assert result.bad_files == str(tmp_path / "out.bad_files.jsonl")


def test_more_bad_files_than_may_be_end_the_run_until_the_bound_is_raised(prepare, inputs):
    for name in "abc":
        (inputs / name / "0.txt").write_text("bad")
    with pytest.raises(DataError, match="bad_files=2"):
        prepare(bad_files="skip", max_bad_files=2, files_per_group=5)
    result = prepare(bad_files="skip", max_bad_files=3, files_per_group=5)
    assert (result.num_records, result.num_bad) == (27, 3)
    assert len(prepare.groups) < 6


def test_bad_files_that_an_earlier_run_left_out_end_a_strict_one(prepare, inputs):
    (inputs / "a" / "0.txt").write_text("bad")
    interrupt(prepare, 3, bad_files="skip", shuffle=False)
    with pytest.raises(DataError, match="1 input"):
        prepare(shuffle=False, files_per_group=4)
    assert prepare.groups == []


def test_finished_groups_are_reused_after_a_bad_file_was_repaired(prepare, inputs, tmp_path):
    (inputs / "a" / "0.txt").write_text("bad")
    with pytest.raises(DataError, match="same command") as caught:
        prepare(shuffle=False, files_per_group=5, data=f"{inputs}/b,{inputs}/a")
    assert "bad_files=" in caught.value.hint
    (inputs / "a" / "0.txt").write_text("mended and longer")
    prepare(shuffle=False, files_per_group=5, data=f"{inputs}/b,{inputs}/a")
    assert prepare.groups == [2, 3]
    assert read(tmp_path / "out")[10] == b"a/mended and longer"
    assert sorted(os.listdir(tmp_path)) == ["in", "out", "zoo"]


def test_no_record_at_all_is_an_error(prepare, inputs, tmp_path):
    (inputs / "a" / "0.txt").write_text("none")
    with pytest.raises(DataError, match="no record"):
        prepare(data=f"{inputs}/a/0.txt")
    assert sorted(os.listdir(tmp_path)) == ["in", "zoo"]


def test_an_existing_output_is_replaced_only_when_asked(prepare, inputs, tmp_path):
    prepare(records_per_shard=10)
    with pytest.raises(OutputError, match="overwrite=true"):
        prepare()
    prepare(overwrite=True, data=f"{inputs}/a/1.txt")
    assert sorted(os.listdir(tmp_path / "out")) == [marker.NAME, "part-00000-00000.recordio"]


@pytest.mark.long(after=1)
@pytest.mark.parametrize("error", [JobFailed("A process was killed."), KeyboardInterrupt()])
def test_a_continued_run_gives_the_same_bytes(prepare, tmp_path, error):
    prepare(output=str(tmp_path / "whole"), files_per_group=4)
    with pytest.raises((JobFailed, Interrupted), match="3 of 8 groups"):
        prepare(files_per_group=4, fail_after=3, error=error)
    assert not (tmp_path / "out").exists()
    (tmp_path / "out.partial" / "shards" / "part-00003-00000.recordio").write_text("half a shard")
    (tmp_path / "out.partial" / "shards" / "part-00003-00009.recordio").write_text("a stray")
    reports = []
    result = prepare(lambda *counts: reports.append(counts), files_per_group=4)
    assert prepare.groups == [3, 4, 5, 6, 7]
    assert reports[0] == (12, 30, 12)
    assert result.num_records == 30
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert not (tmp_path / "out.partial").exists()


def test_a_group_whose_line_was_cut_short_or_whose_shard_is_gone_is_done_again(prepare, tmp_path):
    interrupt(prepare, 4)
    lines = tmp_path / "out.partial" / "groups.jsonl"
    lines.write_text(lines.read_text()[:-20])
    (tmp_path / "out.partial" / "shards" / "part-00001-00000.recordio").unlink()
    assert prepare(files_per_group=4).num_records == 30
    assert prepare.groups == [1, 3, 4, 5, 6, 7]


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("texts", "settings", "detail"),
    [
        ({}, {"records_per_shard": 3}, "records_per_shard .*4096 .*3"),
        ({}, {"codec": "gzip"}, "codec .*'snappy' .*'gzip'"),
        ({}, {"source": "other code"}, "model code"),
        ({"d.txt": "new"}, {}, "30 input .* 31"),
        ({f"a/{number}.txt": "other" for number in range(10)}, {}, "4 input .* group 0 "),
    ],
    ids=["records_per_shard", "codec", "source", "new_file", "changed_file"],
)
def test_an_earlier_run_that_differs_is_replaced_only_on_request(
    prepare, inputs, tmp_path, texts, settings, detail
):
    interrupt(prepare, 7)
    for name, text in texts.items():
        (inputs / name).write_text(text)
    before = contents(tmp_path / "out.partial" / "shards")
    with pytest.raises(OutputError, match=detail) as caught:
        prepare(files_per_group=4, **settings)
    assert "overwrite=true" in str(caught.value)
    assert contents(tmp_path / "out.partial" / "shards") == before
    prepare(files_per_group=4, overwrite=True, **settings)
    assert prepare.groups[0] == 0


def test_overwrite_goes_on_with_an_interrupted_run_that_fits(prepare):
    interrupt(prepare, overwrite=True)
    prepare(files_per_group=4, overwrite=True)
    assert prepare.groups == [3, 4, 5, 6, 7]


def test_a_partial_folder_of_somebody_else_is_left_alone(prepare, tmp_path):
    for name in ("thesis.tex", "manifest.json", "shards/thesis.tex"):
        file = tmp_path / "out.partial" / name
        file.parent.mkdir(parents=True)
        file.write_text("mine")
        with pytest.raises(OutputError, match=r"\.partial .*output="):
            prepare(overwrite=True)
        assert file.read_text() == "mine"
        shutil.rmtree(tmp_path / "out.partial")
    # And what was put into one of ours.
    interrupt(prepare)
    (tmp_path / "out.partial" / "thesis.tex").write_text("mine")
    with pytest.raises(OutputError, match=r": thesis\.tex"):
        prepare(files_per_group=5, overwrite=True)
    assert (tmp_path / "out.partial" / "thesis.tex").read_text() == "mine"


def test_the_older_output_of_a_killed_run_stays_until_there_is_a_new_one(prepare, tmp_path):
    interrupt(prepare)
    old = tmp_path / "out.partial" / "old" / "part-00000-00000.recordio"
    old.parent.mkdir()
    old.touch()
    with pytest.raises(JobFailed):
        prepare(files_per_group=5, overwrite=True, fail_after=2, error=JobFailed("x"))
    assert old.exists()
    prepare(files_per_group=5)
    assert not old.exists()


def test_it_is_left_alone_by_a_run_that_goes_on_to_its_end_too(prepare, tmp_path):
    interrupt(prepare)
    partial = tmp_path / "out.partial"
    (partial / ".groups.jsonl.0123abcd.partial").touch()  # Of a process that was killed.
    (partial / "thesis.tex").write_text("mine")
    (partial / "old").mkdir()  # Of one that was killed while it published.
    (partial / "old" / "part-00000-00000.recordio").touch()
    prepare(files_per_group=4)
    assert not (partial / "old").exists()
    assert (partial / "thesis.tex").read_text() == "mine"
    (partial / "thesis.tex").unlink()
    prepare(files_per_group=5, overwrite=True)
    assert not partial.exists()


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("data", "output"),
    [
        ("in", "in"),
        ("in", "in/out"),
        ("in/a", "in"),
        ("in/*/1.txt", "in"),
        ("@list.txt", "in"),
        ("in/link/*.txt", "in/a"),
        ("in/a", "zoo"),
        ("in/a", "zoo/out"),
        ("out.partial/shards/*", "out"),
    ],
)
def test_an_output_that_is_or_holds_or_lies_in_what_is_read_is_refused(
    prepare, inputs, tmp_path, data, output, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.txt").write_text("in/a/1.txt\n")
    (inputs / "link").symlink_to("a")
    interrupt(prepare)
    for folder in (inputs / "a", inputs, tmp_path / "zoo"):
        holds = [os.path.relpath(path, folder) for path in folder.rglob("*")]
        marker.write(folder, "prepared records", holds=holds)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(OutputError, match="path of"):
        prepare(data=data, output=output, overwrite=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("kind", ["job", "prepare run"])
def test_an_output_where_a_job_or_a_command_works_is_refused(prepare, tmp_path, kind):
    marker.claim(tmp_path / "m.job", kind, received="job_dir='m.job'")
    with pytest.raises(OutputError, match=r"m\.job, .*output="):
        prepare(output=str(tmp_path / "m.job" / "logs" / "records"))
    assert [path.name for path in (tmp_path / "m.job").iterdir()] == [marker.NAME]


@pytest.mark.parametrize("text", ["mine", '{"path": "a"}\n', "[1]\n"])
def test_a_file_in_the_place_of_the_list_of_bad_files_is_left_alone(prepare, tmp_path, text):
    (tmp_path / "out.bad_files.jsonl").write_text(text)
    with pytest.raises(OutputError, match=r"bad_files\.jsonl.*="):
        prepare(overwrite=True)
    assert (tmp_path / "out.bad_files.jsonl").read_text() == text


def test_there_are_as_many_files_as_the_data_needs(prepare, inputs, tmp_path):
    for number in range(200):
        (inputs / "a" / f"x{number}.txt").write_text(str(number))
    result = prepare(shuffle=False)
    assert len(prepare.groups) > 5
    assert [os.path.basename(file) for file in result.files] == ["part-00000-00000.recordio"]
    assert len(read(tmp_path / "out")) == 230

    result = prepare(shuffle=False, records_per_shard=100, output=str(tmp_path / "more"))
    assert len(result.files) == 3


def test_two_runs_of_one_output_are_kept_apart(prepare):
    def meddle(*_: int) -> None:
        with pytest.raises(ConfigError, match="partial/lock"):
            prepare()

    prepare(meddle)


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(prepare, config, tmp_path):
    size, groups = describe(config(files_per_group=4))
    assert size.startswith("input files: 30 (")
    assert groups.startswith("groups: 8 of about 4")
    assert sorted(os.listdir(tmp_path)) == ["in", "zoo"]
    interrupt(prepare)
    before = contents(tmp_path / "out.partial" / "shards")
    assert "3 of 8" in describe(config(files_per_group=4))[-1]
    assert "files_per_group was 4" in describe(config(files_per_group=5))[-1]
    assert contents(tmp_path / "out.partial" / "shards") == before


def test_a_list_may_name_missing_files_only_if_they_may_be_skipped(prepare, inputs, tmp_path):
    list_file = tmp_path / "list.txt"
    list_file.write_text(f"{inputs}/a/1.txt\n\n{inputs}/gone.txt\n{inputs}/a/2.txt\n")
    with pytest.raises(DataError, match=r"1 of 3 .*gone\.txt"):
        prepare(data=f"@{list_file}")
    result = prepare(data=f"@{list_file}", bad_files="skip", shuffle=False)
    assert (result.num_records, result.num_bad) == (2, 1)
    assert read(tmp_path / "out") == [b"a/1", b"a/2"]


def test_the_model_code_may_be_one_file_or_in_git(prepare, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    repository = tmp_path / "zoo"
    git = ("git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.org")
    for words in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-q", "-m", "a commit")):
        subprocess.run([*git, *words], check=True)
    prepare(output=str(tmp_path / "plain"))
    prepare(output=str(tmp_path / "git"), model_zoo=f"git+file://{repository}@main")
    prepare(output=str(tmp_path / "file"), model_zoo=f"{repository}/texts.py", model_def="")
    assert contents(tmp_path / "git") == contents(tmp_path / "plain")
    assert contents(tmp_path / "file") == contents(tmp_path / "plain")


def test_a_model_that_is_not_there_is_said_before_anything_starts(prepare, tmp_path):
    with pytest.raises(UserCodeError, match="define 'text'"):
        prepare(model_def="text")
    assert sorted(os.listdir(tmp_path)) == ["in", "zoo"]
