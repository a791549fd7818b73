"""The formats of files, by their names."""

import re

import pytest

from edl_horovod.errors import DataError
from edl_horovod.records.sources.formats import file_format, format_of


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a.csv", "CSV"),
        ("a.recordio", "RecordIO"),
        ("part-00000", "RecordIO"),
        ("a.parquet-00001-of-00002", "Parquet"),
        ("a.parquet", "Parquet"),
    ],
)
def test_the_end_of_a_name_says_the_format(path, name):
    assert file_format(path).name == name


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("x.csv.gz", "CSV"),
        ("s3://b/x.CSV.zst", "CSV"),
        ("http://h/x.csv.bz2?version=1", "CSV"),
        ("a.tfrecord.gz", "TFRecord"),
        ("a.tar.gz", "WebDataset"),
    ],
)
def test_compressed_files_are_refused_by_their_names(path, name):
    shown = re.escape(path.partition("?")[0])
    with pytest.raises(DataError, match=rf"{shown}.* compressed {name}"):
        format_of([path])
