"""A database of each engine for each test."""

import pytest

from tests import databases


@pytest.fixture
def sqlite(tmp_path):
    (tmp_path / "some.db").touch()
    return databases.Database(f"sqlite:///{tmp_path / 'some.db'}")


@pytest.fixture
def postgresql(postgresql_server):
    return databases.new_database(postgresql_server, "postgres")


@pytest.fixture
def mariadb(mariadb_server):
    return databases.new_database(mariadb_server, "first")
