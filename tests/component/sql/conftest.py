"""A database of each engine for each test, and what stands in for jobs."""

import pytest

from tests import databases
from tests.component.sql.sessions import ROLES, Ring


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


@pytest.fixture
def ring():
    return Ring()


@pytest.fixture
def database(sqlite):
    """Twelve employees on sqlite, and a table without their salaries."""
    rows = ", ".join(f"('n{number}', '{ROLES[number % 3]}', {number})" for number in range(12))
    sqlite.run(
        "CREATE TABLE employee (name TEXT, role TEXT, salary REAL)",
        f"INSERT INTO employee VALUES {rows}",
        "CREATE TABLE testdata AS SELECT name, role FROM employee",
    )
    return sqlite
