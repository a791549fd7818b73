"""Where an index is kept, who makes it, and what happens when the data is not as it says."""

import multiprocessing
import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edl_horovod.errors import DataError
from edl_horovod.files import marker
from edl_horovod.records import index_store
from edl_horovod.records.index import Index
from edl_horovod.records.index_store import CACHE_DAYS, SMALL_BYTES
from edl_horovod.records.reader import Reader
from edl_horovod.records.sources.recordio import read_chunks
from tests.forked import fork
from tests.records import NUMBERED_BYTES, write_numbered
from tests.unit.records.record_files import flip_a_bit, keeping_times, numbers

NUM_RECORDS = 2 * 20 + SMALL_BYTES // NUMBERED_BYTES


def indexes(folder: Path) -> list[Path]:
    return sorted(folder.glob(".edl_horovod.*"))


def count_scans(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> list[str]:
    """The names of files that are scanned from now on, each for so long at least."""
    scanned: list[str] = []
    scan = index_store._scan_file

    def counted(path, chunk_format):
        scanned.append(Path(path).name)
        time.sleep(seconds)
        return scan(path, chunk_format)

    monkeypatch.setattr(index_store, "_scan_file", counted)
    return scanned


@pytest.mark.parametrize("has_job", [True, False])
def test_it_is_kept_for_a_job_alone_beside_data_that_may_be_written(data, job, cache, has_job):
    Index.open(str(data), folder=job if has_job else None)
    assert len(indexes(data)) == has_job
    assert not job.exists()
    assert not cache.exists()


def test_a_directory_of_ours_gets_nothing_that_it_does_not_list(data, job, cache):
    marker.write(data, "prepared records")
    Index.open(str(data), folder=job)
    assert not indexes(data)[1:]  # The marker alone.
    assert len(indexes(job)) == len(indexes(cache)) == 1


def as_another_user(data: Path, job: Path) -> None:
    """Open the data in a process with the rights of nobody, where we are root."""

    def open_it() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setegid(65534)
            os.seteuid(65534)
        assert Index.open(str(data), folder=job).num_records == NUM_RECORDS

    in_process(open_it)


def in_process(do: Callable[[], None]) -> None:
    assert os.waitpid(fork(do), 0)[1] == 0


@pytest.fixture
def read_only(data, tmp_path):
    """The data, where only its owner may write, for a user who is not the owner."""
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 1:
            folder.chmod(folder.stat().st_mode | 1)
        if folder.name.startswith("pytest-of"):
            break
    data.chmod(0o555)
    return data


def test_read_only_data_has_its_index_with_the_job_and_in_the_cache(read_only, job, cache):
    for folder in (job.parent, cache.parent.parent):
        folder.mkdir(parents=True)
        folder.chmod(0o777)

    as_another_user(read_only, job)
    assert not indexes(read_only)
    (stored,) = indexes(job)
    (cached,) = indexes(cache)
    assert stored.read_bytes()[:8] == cached.read_bytes()[:8] == b"EDLINDX3"

    # The next job has another folder, and finds the index in the cache.
    another = job.parent / "another"
    as_another_user(read_only, another)
    assert not another.exists()


def test_where_nothing_may_be_written_the_files_are_scanned(read_only, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    as_another_user(read_only, tmp_path / "file" / "index")
    assert not indexes(read_only)


def test_a_full_disk_costs_the_index_and_nothing_else(data, tmp_path):
    def open_with_little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        assert Index.open(str(data), folder=tmp_path / "job").num_records == NUM_RECORDS

    in_process(open_with_little_room)
    assert not indexes(data)
    assert not [path for path in data.iterdir() if path.name.endswith((".partial", ".lock"))]


def change_a_chunk(path: Path, number: int) -> None:
    """Write another record into a chunk, of the same size, with its right checksum."""
    first = sum(chunk.num_records for chunk in read_chunks(str(path)).chunks[:number])
    whole = path.with_name("whole")
    records = enumerate(numbers(path))
    write_numbered(whole, (7000 if place == first else record for place, record in records))
    with keeping_times(path):
        path.write_bytes(whole.read_bytes())
    whole.unlink()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: write_numbered(path, range(100, 125)), "bytes"),
        (lambda path: os.utime(path, ns=(1, 1)), "time"),
        (lambda path: change_a_chunk(path, 0), "chunk"),
        (lambda path: change_a_chunk(path, -1), "chunk"),
    ],
    ids=["size", "time", "first chunk", "last chunk"],
)
def test_only_a_changed_file_is_indexed_again(data, job, monkeypatch, change, reason):
    Index.open(str(data), folder=job)
    change(data / "b.recordio")
    scanned, messages = count_scans(monkeypatch), []

    index = Index.open(str(data), folder=job, tell=messages.append)

    assert scanned == ["b.recordio"]
    (text,) = messages
    assert text.startswith("1 of 3 ")
    assert f"{data}/b.recordio (" in text
    assert reason in text
    expected = [number for name in "abc" for number in numbers(data / f"{name}.recordio")]
    assert numbers(data, folder=job) == expected
    # The new index is stored, so no file is scanned again.
    assert scanned == ["b.recordio", "a.recordio", "b.recordio", "c.recordio"]
    assert Index.open(str(data), folder=job).fingerprint == index.fingerprint
    assert len(scanned) == 4


def test_a_damaged_file_of_the_same_size_and_time_is_an_error_and_no_other_records(data, job):
    Index.open(str(data), folder=job)
    path = data / "b.recordio"
    flip_a_bit(path, read_chunks(str(path)).chunks[-1].offset)
    with pytest.raises(DataError, match=r"b\.recordio: chunk \d+ "):
        Index.open(str(data), folder=job)


@pytest.mark.parametrize(
    ("change", "number"),
    [(lambda path: flip_a_bit(path, NUMBERED_BYTES), 0), (lambda path: change_a_chunk(path, 3), 3)],
    ids=["a bit of the first chunk", "a whole chunk"],
)
def test_a_changed_chunk_within_a_file_is_an_error_when_it_is_read(data, job, change, number):
    Index.open(str(data), folder=job)
    change(data / "b.recordio")
    with (
        Reader.open(str(data), folder=job) as reader,
        pytest.raises(DataError, match=rf"b\..*: chunk {number} .*checksum"),
    ):
        list(reader)


def test_csv_files_are_known_by_their_rows(tmp_path, job, monkeypatch):
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("x,y\n" + "1,2\n" * (SMALL_BYTES // 4))
    Index.open(f"{tmp_path}/*.csv", folder=job)
    path = tmp_path / "a.csv"
    with keeping_times(path):
        path.write_text("x,y\n" + "3,4\n" * (SMALL_BYTES // 4))
    scanned = count_scans(monkeypatch)
    Index.open(f"{tmp_path}/*.csv", folder=job)
    assert scanned == ["a.csv"]


def test_processes_of_two_jobs_that_start_together_leave_one_whole_index(data, tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(6), context.Queue()

    def open_at_once(number: int) -> None:
        barrier.wait(60)
        index = Index.open(str(data), damaged="skip", folder=tmp_path / f"job{number % 2}")
        answers.put((index.fingerprint, index.num_records))

    processes = [context.Process(target=open_at_once, args=(number,)) for number in range(6)]
    for process in processes:
        process.start()
    results = {answers.get(timeout=60) for _ in processes}
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 6
    assert len(results) == 1
    assert len(indexes(data)) == 1  # No lock and no part of a file is left.


def test_the_cache_forgets_what_no_job_has_used_for_long_and_keeps_the_rest(data, job, cache):
    cache.mkdir(parents=True)
    long_ago = time.time() - (CACHE_DAYS + 1) * 24 * 3600
    for name, content in (("old", b"EDLINDX1 and more"), ("foreign", b"somebody's")):
        path = cache / f".edl_horovod.{name}.index"
        path.write_bytes(content)
        os.utime(path, (long_ago, long_ago))
    marker.write(data, "prepared records")  # So that it is not kept beside the data.

    Index.open(str(data), folder=job)

    old, foreign = (cache / f".edl_horovod.{name}.index" for name in ("old", "foreign"))
    assert (old.exists(), foreign.exists(), len(indexes(cache))) == (False, True, 2)
    # What a job uses counts as new.
    shutil.rmtree(job)
    (cached,) = {*indexes(cache)} - {foreign}
    os.utime(cached, (0, 0))
    Index.open(str(data), folder=job)
    assert cached.stat().st_mtime > time.time() - 3600


def test_a_long_scan_says_how_far_it_is(data, monkeypatch):
    monkeypatch.setattr(index_store, "TELL_SECONDS", 0.02)
    count_scans(monkeypatch, seconds=0.1)
    messages: list[str] = []
    Index.open(str(data), tell=messages.append)
    assert any("1 of 3 " in message and "10 chunks" in message for message in messages)


def test_copies_share_nothing_and_mapped_arrays_are_shared(data, job):
    scanned, mapped = Index.open(str(data), folder=job), Index.open(str(data), folder=job)
    for index in (scanned, mapped):
        # Also who has made the index maps it, instead of keeping arrays of its own.
        for name in ("chunks", "chunk_starts", "block_starts", "block_counts"):
            array = getattr(index.tables, name)
            assert not array.flags.owndata
            assert not array.flags.writeable
