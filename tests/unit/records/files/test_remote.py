"""Data of other systems: against a real S3 server, an emulator of Google's, HTTP, and memory."""

import functools
import http.server
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import gcp_storage_emulator.server
import numpy as np
import pytest
from fsspec.config import conf

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import Codec
from edl_horovod.records.files import remote
from edl_horovod.records.files.pool import open_input
from edl_horovod.records.index import Index
from edl_horovod.records.reader import Reader
from edl_horovod.records.sources.patterns import expand
from tests.ports import free_port
from tests.s3_server import BUCKET
from tests.unit.records import record_files
from tests.web_server import serving

RECORDS = [b"record %d" % n for n in range(90)]
LOGIN = "Basic bWU6cHc="
"""User `me`, password `pw`."""
NAMES = ("train-0.recordio", "train-1.recordio", "test-0.recordio")


def write(path: Path, records: list[bytes], *, chunk_bytes: int = 200) -> bytes:
    record_files.write(path, records, codec=Codec.NONE, chunk_bytes=chunk_bytes)
    return path.read_bytes()


@pytest.fixture
def folder(tmp_path):
    """Three files of 30 records each."""
    (tmp_path / "data").mkdir()
    for number, name in enumerate(sorted(NAMES)):
        write(tmp_path / "data" / name, RECORDS[number * 30 : number * 30 + 30])
    return tmp_path / "data"


@pytest.fixture
def uploaded(s3, folder):
    for name in NAMES:
        s3.put(f"data/{name}", (folder / name).read_bytes())
    s3.put("data/deep/other.recordio", (folder / NAMES[0]).read_bytes())
    s3.put("data/notes.txt", b"no records")
    s3.requests.clear()
    return s3


def test_records_of_s3_are_those_of_the_disk(uploaded, folder):
    paths = [f"s3://bucket/data/{name}" for name in sorted(NAMES)]
    with Reader.open("s3://bucket/data/*.recordio") as reader:
        assert [file.path for file in reader.index.files] == paths
        assert list(reader) == RECORDS
        assert reader.read([89, 0, 31]) == [RECORDS[89], RECORDS[0], RECORDS[31]]
        assert reader.index.fingerprint == Index.open(str(folder)).fingerprint


PATTERNS = {
    "file": ("s3://bucket/data/test-0.recordio", ["test-0.recordio"]),
    "glob": ("s3://bucket/data/train-?.rec*", ["train-0.recordio", "train-1.recordio"]),
    "folder": ("s3://bucket/data", sorted(NAMES)),
    "folder with a slash": ("s3://bucket/data/", sorted(NAMES)),
    "folders by glob": ("s3://bucket/data/d*", ["deep/other.recordio"]),
    "list, each once": (
        "s3://bucket/data/train-1.recordio, s3://bucket/data/train-*",
        ["train-0.recordio", "train-1.recordio"],
    ),
    "across folders": ("s3://bucket/**/other.recordio", ["deep/other.recordio"]),
}


@pytest.mark.long(after=1)
@pytest.mark.parametrize(("pattern", "names"), PATTERNS.values(), ids=PATTERNS)
def test_expand_on_s3(uploaded, pattern, names):
    assert expand(pattern) == [f"s3://bucket/data/{name}" for name in names]


@pytest.mark.long
def test_expand_sees_what_was_added_since(uploaded):
    assert len(expand("s3://bucket/data/train-*")) == 2
    uploaded.put("data/train-2.recordio", b"")
    try:
        assert len(expand("s3://bucket/data/train-*")) == 3
    finally:
        fsspec.filesystem("s3", skip_instance_cache=True).rm("bucket/data/train-2.recordio")


def test_reading_a_record_fetches_its_chunk_alone(s3, tmp_path):
    records = [bytes([n]) * (1 << 20) for n in range(8)]
    data = write(tmp_path / "large.recordio", records, chunk_bytes=1 << 20)
    s3.put("large.recordio", data)
    s3.requests.clear()

    with Reader.open("s3://bucket/large.recordio") as reader:
        num_index_bytes = sum(request.num_bytes for request in s3.gets("large.recordio"))
        assert reader.read([5]) == [records[5]]

    assert num_index_bytes < 70_000
    fetched = [request.num_bytes for request in s3.gets("large.recordio")]
    assert fetched[-1] == 4 + (1 << 20)
    assert sum(fetched) < len(data) / 6


def test_index_of_many_small_chunks_costs_few_requests(s3, tmp_path):
    data = write(tmp_path / "many.recordio", [bytes(1000)] * 8000, chunk_bytes=8 << 10)
    s3.put("many.recordio", data)
    s3.requests.clear()

    index = Index.open("s3://bucket/many.recordio")

    assert index.num_chunks == 1000
    assert len(s3.gets("many.recordio")) == 3


@pytest.mark.long
def test_threads_read_what_one_thread_reads(uploaded):
    batches = np.random.default_rng(0).integers(0, 90, size=(40, 20))

    with Reader.open("s3://bucket/data", cache_bytes=500) as reader, ThreadPoolExecutor(8) as pool:
        read = list(pool.map(reader.read, batches))

    assert read == [[RECORDS[i] for i in batch] for batch in batches]


def test_passing_trouble_is_tried_again_and_told(uploaded, caplog):
    file = open_input("s3://bucket/data/train-0.recordio")
    uploaded.faults[:] = [(503, "SlowDown"), (500, "InternalError")]

    with caplog.at_level(logging.WARNING):
        assert file.read_at(0, num_bytes=4) == b"\x04\x03\x02\x01"

    assert [record.message.split(",")[0] for record in caplog.records] == [
        "s3://bucket/data/train-0.recordio: try 1 of 6 failed",
        "s3://bucket/data/train-0.recordio: try 2 of 6 failed",
    ]


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("faults", "message", "num_tries"),
    [
        ([(503, "SlowDown")] * 50, "5xx or 429", remote.NUM_TRIES),
        ([(403, "AccessDenied")], "403", 1),
    ],
    ids=["lasting trouble", "refusal"],
)
def test_trouble_is_tried_a_few_times_and_a_refusal_once(uploaded, faults, message, num_tries):
    file = open_input("s3://bucket/data/train-0.recordio")
    uploaded.faults[:] = faults

    with pytest.raises(DataError, match=rf"train-0\.recordio.*{message}"):
        file.read_at(0, num_bytes=4)

    assert len(uploaded.requests) == num_tries


@pytest.mark.long(after=1)
@pytest.mark.parametrize("pattern", ["s3://bucket/data/*", "s3://bucket/data/train-0.recordio"])
def test_forbidden_place_says_so(uploaded, pattern):
    uploaded.faults[:] = [(403, "AccessDenied")] * 9

    with pytest.raises(DataError, match="403"):
        expand(pattern)


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (
            "s3://bucket/data/tranl-0.recordio",
            "'s3://bucket/data', .* 5 entries: deep, .*'train-0.recordio'",
        ),
        ("s3://bucket/data/valid-*", r"matches 's3://bucket/data/valid-\*'"),
        ("s3://bucket/date/more/*", "'s3://bucket', .*'data'"),
        ("s3://no-bucket/data/*", r"no-bucket/.*404"),
        ("s3://no-bucket/data/x.recordio", r"no-bucket/.*404"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(uploaded, pattern, message):
    with pytest.raises(DataError, match=message):
        expand(pattern)


def test_file_that_goes_away_says_so(uploaded):
    with pytest.raises(DataError, match=r"/gone .*404"):
        open_input("s3://bucket/data/gone").read_at(0, num_bytes=4)


def test_silent_server_is_a_time_out(uploaded, monkeypatch):
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"read_timeout": 0.05}})
    uploaded.stall_seconds = 0.3

    with pytest.raises(DataError, match=r"time.*/data/\*"):
        expand("s3://bucket/data/*")


def test_endpoint_without_a_server_cannot_be_reached(s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")

    with pytest.raises(DataError, match="AWS_ENDPOINT"):
        expand("s3://bucket/*")


@pytest.mark.parametrize("profile", [None, "no-such-profile"])
def test_missing_credentials_say_where_to_put_them(s3, monkeypatch, profile):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)

    with pytest.raises(DataError, match="AWS_PROFILE"):
        expand("s3://bucket/*")


@pytest.mark.parametrize(
    ("pattern", "module", "extra"),
    [
        ("s3://bucket/x", "s3fs", "s3"),
        ("gs://bucket/x", "gcsfs", "gcs"),
        ("memory://x", "fsspec", "remote"),
        ("s3://bucket/x", "fsspec", "s3"),
    ],
)
def test_missing_extra_is_named(pattern, module, extra):
    program = (
        "import sys; sys.modules[sys.argv[2]] = None\n"
        "from edl_horovod.records.sources.patterns import expand\n"
        "from edl_horovod.errors import MissingDependency\n"
        "try: expand(sys.argv[1])\n"
        "except MissingDependency as e: print(e)"
    )

    command = [sys.executable, "-c", program, pattern, module]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    assert f"'.[{extra}]'" in printed


def test_local_data_needs_no_file_system_library(folder):
    program = (
        "import sys\n"
        "from edl_horovod.records.reader import Reader\n"
        "assert len(list(Reader.open(sys.argv[1]))) == 90\n"
        "assert not {'fsspec', 'tenacity', 'asyncio'} & set(sys.modules)"
    )

    subprocess.run([sys.executable, "-c", program, str(folder)], timeout=60, check=True)


def test_memory(folder):
    system = fsspec.filesystem("memory")
    system.put(str(folder), "/place", recursive=True)
    try:
        assert record_files.read("memory://place/*.recordio") == RECORDS
    finally:
        system.rm("/place", recursive=True)


def test_damage_is_left_out_as_on_the_disk(s3, tmp_path, caplog):
    path = tmp_path / "x.recordio"
    write(path, RECORDS)
    record_files.flip_a_bit(path, 300)
    s3.put("damaged.recordio", path.read_bytes())

    local = Index.open(str(tmp_path), damaged="skip")
    ours = Index.open("s3://bucket/damaged.recordio", damaged="skip")

    assert ours.files[0].skipped_records == local.files[0].skipped_records > 0
    assert ours.tables.chunks.tolist() == local.tables.chunks.tolist()


def test_object_that_changed_is_not_taken_for_the_old_one(uploaded):
    uploaded.put("changing.recordio", b"")
    with Reader.open("s3://bucket/data/train-0.recordio") as reader:
        original = open_input("s3://bucket/data/train-0.recordio")
        data = original.read_at(0, num_bytes=original.size_bytes)
        uploaded.put("data/train-0.recordio", data[:25])
        try:
            with pytest.raises(DataError, match=r"train-0\.recordio"):
                list(reader)
        finally:
            uploaded.put("data/train-0.recordio", data)


@pytest.fixture
def google(folder, monkeypatch):
    """An emulator of Google Cloud Storage that holds the records in `bucket/data`."""
    port = free_port()
    server = gcp_storage_emulator.server.create_server(
        "127.0.0.1", port, in_memory=True, default_bucket=BUCKET
    )
    server.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    # Asks over gRPC with TLS what kind of bucket it is, which the emulator does not know.
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    monkeypatch.setitem(fsspec.config.conf, "gcs", {"token": "anon"})
    system = fsspec.filesystem("gs", skip_instance_cache=True)
    for name in NAMES:
        system.pipe(f"{BUCKET}/data/{name}", (folder / name).read_bytes())
    yield
    server.stop()


@pytest.mark.usefixtures("google")
def test_google_cloud_storage():
    paths = [f"gs://bucket/data/{name}" for name in sorted(NAMES)]
    with Reader.open("gs://bucket/data/*.recordio") as reader:
        assert [file.path for file in reader.index.files] == paths
        assert list(reader) == RECORDS
    assert len(expand("gs://bucket/data")) == 3
    with pytest.raises(DataError, match=r"/data', .* 3 entries"):
        expand("gs://bucket/data/none.recordio")
    with pytest.raises(DataError, match=r"no-bucket .*404"):
        expand("gs://no-bucket/data/*")


def test_http_reads_ranges(uploaded):
    urls = [f"{uploaded.url}/{BUCKET}/data/{name}" for name in sorted(NAMES)]

    assert record_files.read(",".join(urls)) == RECORDS


@pytest.fixture
def plain_http(folder):
    """A server that knows no ranges, and refuses what is called secret."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if "secret" in self.path:
                self.send_error(403)
            elif "private" in self.path and self.headers["Authorization"] != LOGIN:
                self.send_error(401)
            elif "private" in self.path:
                self.send_response(200)
                self.send_header("Content-Length", "4")
                self.send_header("Accept-Ranges", "bytes")
                self.end_headers()
            elif "broken" in self.path:
                self.send_error(500)
            else:
                super().do_GET()

        do_HEAD = do_GET  # noqa: N815 (the name that the server looks for)

        def log_message(self, *arguments: object) -> None:
            pass

    handler = functools.partial(Handler, directory=str(folder))
    with serving(handler) as url:
        yield url


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("secret", "403"),
        ("none", "404"),
        ("broken", "5xx"),
        ("private", r"\(403\)|credentials"),  # For want of a password.
    ],
)
def test_http_failures_differ(plain_http, name, message):
    file = open_input(f"{plain_http}/{name}")

    with pytest.raises(DataError, match=message):
        file.read_at(5, num_bytes=4)
    with pytest.raises(DataError, match=message):
        assert file.size_bytes


def test_http_server_without_ranges_is_refused(plain_http):
    with pytest.raises(DataError, match="whole file"):
        open_input(f"{plain_http}/train-0.recordio").read_at(5, num_bytes=4)


def test_folder_over_http_is_refused(plain_http):
    with pytest.raises(DataError, match="over HTTP"):
        expand(f"{plain_http}/")


def test_headers_of_fsspecs_own_configuration_reach_a_server(plain_http, monkeypatch):
    monkeypatch.setitem(conf, "http", {"client_kwargs": {"headers": {"Authorization": LOGIN}}})
    assert open_input(f"{plain_http}/private").size_bytes == 4


def test_a_netrc_file_gives_the_password_of_a_server(plain_http, tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password pw\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setitem(conf, "http", {"client_kwargs": {"trust_env": True}})
    assert open_input(f"{plain_http}/private").size_bytes == 4
