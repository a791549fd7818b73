"""A database of each engine for each test; a server for all tests of a process."""

import pytest

from tests import databases


@pytest.fixture(scope="session")
def postgresql_server():
    with databases.postgresql() as url:
        yield url


@pytest.fixture(scope="session")
def mariadb_server():
    with databases.mariadb() as url:
        yield url


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
