"""Arrow files, Feather files and streams as PyArrow and Hugging Face's `datasets` write them."""

import json
import tracemalloc

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


def write_batches(path, columns, *, new=pa.ipc.new_stream, has_deltas=False):
    """A stream, or a file, of one batch for each of the columns, all of the same type."""
    batches = [pa.record_batch(c if isinstance(c, dict) else {"t": c}) for c in columns]
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=has_deltas)
    with new(str(path), batches[0].schema, options=options) as to:
        for batch in batches:
            to.write_batch(batch)
    return path


def categories(codes, texts):
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(texts))


ANIMALS = [
    categories([0, 1, 0], ["cat", "dog", "eel"]),
    categories([0, 1, 0], ["horse", "cow"]),
    categories([0, 0, 0], ["ant"]),
    categories([0, 1, 2], ["cat", "dog", "eel"]),
]
ANIMAL_TEXTS = [text.encode() for part in ANIMALS for text in part.to_pylist()]


def test_each_batch_of_a_stream_is_read_with_the_dictionary_before_it(tmp_path):
    path = write_batches(tmp_path / "a.arrow", ANIMALS)
    assert read_columns(path) == {"t": ANIMAL_TEXTS}
    order = [11, 0, 7, 3, 4, 10, 1, 6]
    assert read_columns(path, order) == {"t": [ANIMAL_TEXTS[number] for number in order]}
    # A batch that is read alone, as a worker does that works on its lanes only.
    for number in range(len(ANIMAL_TEXTS)):
        assert read_columns(path, [number]) == {"t": [ANIMAL_TEXTS[number]]}


def test_only_the_dictionary_that_was_sent_again_is_replaced(tmp_path):
    names = [categories([1, 0], ["x", "y"])] * 3
    colors = [
        categories([0, 1], texts) for texts in (["red", "tan"], ["blue", "red"], ["tan", "a"])
    ]
    batches = [{"n": name, "c": color} for name, color in zip(names, colors, strict=True)]
    write_batches(tmp_path / "a.arrow", batches)
    assert read_columns(tmp_path / "a.arrow", [5, 2, 1, 0]) == {
        "n": [b"x", b"y", b"x", b"y"],
        "c": [b"a", b"blue", b"tan", b"red"],
    }


def test_dictionaries_of_lists_and_of_structs_are_replaced(tmp_path):
    parts = [
        pa.StructArray.from_arrays(
            [pa.ListArray.from_arrays([0, 2, 3], animals), animals[:2]], ["tags", "first"]
        )
        for animals in ANIMALS
    ]
    path = write_batches(tmp_path / "a.arrow", parts)
    rows = [row for part in parts for row in part.to_pylist()]
    assert read_columns(path) == {
        "t.tags": [[tag.encode() for tag in row["tags"]] for row in rows],
        "t.first": [row["first"].encode() for row in rows],
    }


@pytest.mark.parametrize(
    ("new", "later"), [(pa.ipc.new_stream, ANIMALS[2:3]), (pa.ipc.new_file, [])]
)
def test_a_dictionary_that_grows_by_deltas_is_read_from_any_batch(tmp_path, new, later):
    texts = ["cat", "dog", "horse", "cow"]
    grown = [categories([0, 1, 0], texts[:2]), categories([3, 2, 1], texts)]
    # Another dictionary after these replaces them, which only a stream may do.
    path = write_batches(tmp_path / "a.arrow", [*grown, *later], new=new, has_deltas=True)
    expected = [b"cat", b"dog", b"cat", b"cow", b"horse", b"dog", *[b"ant"] * 3 * len(later)]
    assert read_columns(path) == {"t": expected}
    assert read_columns(path, range(len(expected))[::-1]) == {"t": expected[::-1]}
    assert read_columns(path, [3]) == {"t": [b"cow"]}


def test_a_file_that_replaces_a_dictionary_is_damaged(tmp_path):
    """No library writes one: the stream of a file with two dictionaries is put into a file."""
    stream = write_batches(tmp_path / "a.stream", ANIMALS[:2]).read_bytes()
    (tmp_path / "a.arrow").write_bytes(b"ARROW1\0\0" + stream + b"\0\0\0\0ARROW1")
    with pytest.raises(DataError, match="replaces a dictionary"):
        read_columns(tmp_path / "a.arrow")


@pytest.mark.parametrize(
    ("codes", "texts", "detail"),
    [([0, 5], ["cat", "dog"], r"'t' .*a\.arrow.* 2"), ([0, 1], ["cat", None], "1 empty .*'t'")],
    ids=["no entry", "empty"],
)
def test_a_code_without_a_text_is_named(tmp_path, codes, texts, detail):
    wrong = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), texts, safe=False)
    with pytest.raises(DataError, match=detail):
        read_columns(write_batches(tmp_path / "a.arrow", [ANIMALS[0], wrong]))


def test_dictionaries_that_are_too_large_to_be_held_are_refused_before_they_are_read(tmp_path):
    path = tmp_path / "a.arrow"
    write_batches(path, [categories([0], ["x" * (64 << 20)])])
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="64 MiB"):
            read_columns(path)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


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


@pytest.mark.parametrize("write", [write_file, write_stream])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_file_that_was_cut_off_is_damaged(tmp_path, write, share):
    path = write(tmp_path / "a.arrow", pa.table({"x": np.arange(1000.0)}), rows=100)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(DataError, match=r"a\.arrow .*damaged"):
        read_columns(path)


@pytest.mark.parametrize(
    ("start", "kind"), [(b"FEA1....", "version 1"), (b"PAR1....", "not an Arrow")]
)
def test_files_of_other_formats_are_identified(tmp_path, start, kind):
    (tmp_path / "a.arrow").write_bytes(start * 4)
    with pytest.raises(DataError, match=kind):
        read_columns(tmp_path / "a.arrow")


def test_files_with_other_columns_are_refused(tmp_path):
    write_file(tmp_path / "a.arrow", pa.table(COLUMNS))
    write_file(tmp_path / "b.arrow", pa.table({"x": [1.0]}))
    with pytest.raises(DataError, match=r"b\.arrow .*no .*'t'"):
        read_columns(tmp_path)


@pytest.mark.parametrize("write", [write_file, write_stream])
def test_columns_that_share_a_name_are_refused(tmp_path, write):
    fields = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["b", "b"])
    table = pa.table(
        [pa.array([1]), pa.array([2]), pa.array([3]), fields], names=["x", "x", "y", "a"]
    )
    path = write(tmp_path / "a.arrow", table)
    with pytest.raises(DataError, match=r"'x' .*a\.arrow .*2 columns"):
        read_columns(path)
    with pytest.raises(DataError, match=r"'a\.b' .*a\.arrow .*2 columns"):
        read_columns(path, columns=["y", "a.b"])
    assert read_columns(path, columns=["y"]) == {"y": [3]}
