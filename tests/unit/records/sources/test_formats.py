"""The formats of files, by their names."""

import pytest

from edl_horovod.records.sources.formats import file_format


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
