"""TFRecord files as TensorFlow writes them: the same records by number, or one clear error."""

import logging

import numpy as np
import pytest

from edl_horovod.errors import DataError
from edl_horovod.records.reader import Reader
from edl_horovod.records.sources.tfrecord_format import CHUNK_BYTES
from tests.later import LATER
from tests.unit.records.record_files import flip_a_bit, read

if LATER:
    import tensorflow as tf

SMALL = [b"first", b"", bytes(range(256)) * 3, b"last"]


def write(path, records, **options):
    with tf.io.TFRecordWriter(str(path), **options) as writer:
        for record in records:
            writer.write(record)
    return path


def numbered(count, num_bytes):
    random = np.random.default_rng(5)
    return [random.bytes(num_bytes) for _ in range(count)]


@pytest.mark.parametrize(
    "records",
    [SMALL, numbered(3000, 1000), numbered(5, CHUNK_BYTES + 7), numbered(3, CHUNK_BYTES - 16)],
    ids=["small", "many", "larger than a chunk", "as large as a chunk"],
)
def test_the_records_are_those_of_tfrecorddataset(tmp_path, records):
    path = write(tmp_path / "a.tfrecord", records)
    assert [record.numpy() for record in tf.data.TFRecordDataset(str(path))] == records
    assert read(path) == records
    assert read(path, damaged="skip") == records


def test_a_large_file_is_several_chunks_that_are_read_by_themselves(tmp_path):
    records = numbered(3000, 1000)
    with Reader.open(str(write(tmp_path / "a.tfrecord", records))) as reader:
        assert reader.index.num_chunks == 3
        assert reader.block_counts.sum() == 3000
        assert reader.read([2999, 0, 1500]) == [records[2999], records[0], records[1500]]


def test_the_files_of_a_folder_follow_their_names_also_as_parts(tmp_path):
    write(tmp_path / "train.tfrecord-00001-of-00002", [b"c", b"d"])
    write(tmp_path / "train.tfrecord-00000-of-00002", [b"a", b"b"])
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    assert read(tmp_path) == [b"a", b"b", b"c", b"d"]


def test_an_index_is_kept_and_a_changed_record_is_seen_through_it(tmp_path):
    records = numbered(5000, 1000)
    path = write(tmp_path / "a.tfrecord", records)
    prints, messages = set(), []
    for _ in range(2):
        with Reader.open(str(path), folder=tmp_path / "job") as reader:
            prints.add(reader.fingerprint)
    assert len(prints) == 1
    assert len(list(tmp_path.glob(".edl_horovod.*.index"))) == 1

    write(path, [b"x" * 1000, *records[1:]])
    with Reader.open(str(path), folder=tmp_path / "job", tell=messages.append) as reader:
        assert reader.read([0]) == [b"x" * 1000]
    assert "a.tfrecord" in messages[0]


@pytest.mark.parametrize("cut", [1, 4, 15, 16, 300])
def test_a_file_that_was_cut_off_is_an_error_with_its_place(tmp_path, cut):
    path = write(tmp_path / "a.tfrecord", SMALL)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(DataError, match=r"a\.tfrecord .* \d+ .*ends"):
        read(path)


@pytest.mark.parametrize(("at", "whole"), [(13, SMALL[1:]), (30, SMALL[:1])])
def test_a_flipped_bit_is_an_error_or_left_out(tmp_path, at, whole, caplog):
    path = write(tmp_path / "a.tfrecord", SMALL)
    flip_a_bit(path, at)

    with pytest.raises(DataError, match=r"its (data|length)"):
        read(path)
    with caplog.at_level(logging.WARNING):
        assert read(path, damaged="skip") == whole
    assert "damaged=skip" in caplog.text


@pytest.mark.parametrize("options", ["GZIP", "ZLIB"])
def test_compressed_files_are_refused_by_name_with_what_to_do(tmp_path, options):
    path = write(tmp_path / "a.tfrecord", SMALL, options=options)
    with pytest.raises(DataError, match=r"a\.tfrecord .*compressed .*prepare"):
        read(path)


def test_what_is_no_tfrecord_and_what_is_empty_are_one_sentence(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(b"PAR1 and what follows")
    with pytest.raises(DataError, match="first_bytes='50 41 52 31"):
        read(tmp_path / "a.tfrecord")
    with pytest.raises(DataError, match="no records"):
        read(write(tmp_path / "b.tfrecord", []))
