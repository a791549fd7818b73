"""What the tests of records start from."""

import pytest

from edl_horovod.records.index_store import SMALL_BYTES
from tests.records import NUMBERED_BYTES, write_numbered


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of their own, which is not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "edl_horovod" / "indexes"


@pytest.fixture
def data(tmp_path):
    """Three files, as large together as what an index is kept for."""
    folder = tmp_path / "data"
    folder.mkdir()
    last = 40 + SMALL_BYTES // NUMBERED_BYTES
    for name, numbers in {"a": range(20), "b": range(20, 40), "c": range(40, last)}.items():
        write_numbered(folder / f"{name}.recordio", numbers)
    return folder


@pytest.fixture
def job(tmp_path):
    """A folder that is not there yet."""
    return tmp_path / "job" / "index"
