"""Arrow files, Feather files and streams as PyArrow and Hugging Face's `datasets` write them."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest

from edl_horovod.errors import DataError
from edl_horovod.records.reader import Reader
from tests.columns import read_columns

COLUMNS = {"x": [0.5, 1.5, 2.5, 3.5, 4.5], "t": ["a", "bb", "", "d", "e"]}
BYTES = {"x": COLUMNS["x"], "t": [text.encode() for text in COLUMNS["t"]]}


def write_file(path, table, rows=2, **options):
    kind = pa.ipc.IpcWriteOptions(**options)
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, table.schema, options=kind) as to,
    ):
        to.write_table(table, max_chunksize=rows)
    return path


def write_stream(path, table, rows=2):
    with pa.ipc.new_stream(str(path), table.schema) as to:
        to.write_table(table, max_chunksize=rows)
    return path


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_file_is_its_record_batches(tmp_path, compression):
    path = write_file(tmp_path / "a.arrow", pa.table(COLUMNS), compression=compression)
    assert read_columns(path) == BYTES
    with Reader.open(str(path)) as reader:
        assert reader.block_counts.tolist() == [2, 2, 1]


def test_a_stream_is_read_as_a_file_is(tmp_path):
    path = write_stream(tmp_path / "a.arrow", pa.table(COLUMNS))
    assert read_columns(path, [4, 0]) == {"x": [4.5, 0.5], "t": [b"e", b"a"]}


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_a_feather_file_is_one(tmp_path, compression):
    pyarrow.feather.write_feather(
        pa.table(COLUMNS), str(tmp_path / "a.feather"), compression=compression, chunksize=3
    )
    assert read_columns(tmp_path / "a.feather") == BYTES


@pytest.mark.parametrize("write", [write_file, write_stream])
def test_categories_become_the_text_that_they_are(tmp_path, write):
    table = pa.table({"t": pa.array(["x", "y", "x", "z", "x"]).dictionary_encode()})
    assert read_columns(write(tmp_path / "a.arrow", table)) == {"t": [b"x", b"y", b"x", b"z", b"x"]}


def test_a_data_set_that_datasets_saved_is_read_with_its_pictures(tmp_path):
    """As `Dataset.save_to_disk` of datasets 4 writes it: streams, and JSON files beside them."""
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    features = {"info": {"features": {"image": {"_type": "Image"}}}}
    schema = pa.schema({"image": image, "label": pa.int64()}, {"huggingface": json.dumps(features)})
    for part in range(2):
        rows = [{"bytes": b"png %d" % n, "path": None} for n in range(part * 3, part * 3 + 3)]
        table = pa.Table.from_pydict({"image": rows, "label": [part] * 3}, schema=schema)
        write_stream(tmp_path / f"data-0000{part}-of-00002.arrow", table)
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "state.json").write_text("{}")
    assert read_columns(tmp_path) == {
        "image": [b"png %d" % n for n in range(6)],
        "label": [0, 0, 0, 1, 1, 1],
    }


def test_an_index_reads_no_values_and_serves_the_next_reader(tmp_path):
    table = pa.table({"x": np.random.default_rng(1).normal(size=1 << 20)})
    path = write_file(tmp_path / "a.arrow", table, rows=10_000)
    prints = set()
    for _ in range(2):
        with Reader.open(str(path), folder=tmp_path / "job") as reader:
            prints.add(reader.fingerprint)
            assert reader.read([123_456])[0].tolist() == table["x"].to_pylist()[123_456:123_457]
    assert len(prints) == 1
    assert len(list(tmp_path.glob(".edl_horovod.*.index"))) == 1


@pytest.mark.parametrize("write", [write_file, write_stream])
@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9])
def test_a_file_that_was_cut_off_is_damaged(tmp_path, write, kept):
    path = write(tmp_path / "a.arrow", pa.table({"x": np.arange(1000.0)}), rows=100)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(DataError, match=r"a\.arrow is damaged: it (does not end|ends within)"):
        read_columns(path)


@pytest.mark.parametrize(
    ("start", "what"), [(b"FEA1....", "Feather's first version"), (b"PAR1....", "no Arrow file")]
)
def test_other_files_are_called_what_they_are(tmp_path, start, what):
    (tmp_path / "a.arrow").write_bytes(start * 4)
    with pytest.raises(DataError, match=what):
        read_columns(tmp_path / "a.arrow")


def test_files_with_other_columns_are_refused(tmp_path):
    write_file(tmp_path / "a.arrow", pa.table(COLUMNS))
    write_file(tmp_path / "b.arrow", pa.table({"x": [1.0]}))
    with pytest.raises(DataError, match=r"b\.arrow has no column 't', unlike"):
        read_columns(tmp_path)
