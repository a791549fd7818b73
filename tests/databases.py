"""Real database servers on loopback, each in a folder of its own that is removed with it."""

import contextlib
import dataclasses
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from edl_horovod.sql.engine import open_engine
from tests.ports import free_port
from tests.waiting import end, wait_until

PASSWORD = "geheim!@:/%"
"""Of all servers; a URL needs most of it escaped."""
IN_URL = "geheim%21%40%3A%2F%25"
POSTGRESQL = Path("/usr/lib/postgresql")
START_SECONDS = 60
STOP_SECONDS = 30
_NUMBERS = itertools.count()


@dataclasses.dataclass(frozen=True)
class Database:
    """A database that nobody else uses."""

    url: str

    def run(self, *statements: str) -> list[tuple]:
        """Run statements; returns the rows of the last one."""
        with open_engine(self.url) as engine:
            for statement in statements:
                answer = engine.execute(statement)
        return list(answer.rows)

    def schema(self) -> dict[str, list[str]]:
        """The columns of each table."""
        with open_engine(self.url) as engine, engine.connecting() as connection:
            inspector = sa.inspect(connection)
            return {
                table: [column["name"] for column in inspector.get_columns(table)]
                for table in sorted(inspector.get_table_names())
            }


def needs(*programs: str | Path) -> None:
    """Skip a test if a program is not installed."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{Path(program).name} is not installed, as Debian's package has it")


def postgresql_programs() -> Path:
    """The folder of the newest server's programs; skips the test without one."""
    found = sorted(POSTGRESQL.glob("*/bin"), key=lambda path: int(path.parent.name))
    if not found:
        pytest.skip(f"PostgreSQL is not installed in {POSTGRESQL}, as Debian's package has it")
    return found[-1]


@contextlib.contextmanager
def postgresql() -> Iterator[str]:
    """A server; yields the URL without a database's name."""
    programs = postgresql_programs()
    with _folder() as folder:
        password = folder / "password"
        password.write_text(PASSWORD)
        _own(password)
        data, port = folder / "data", free_port()
        command = [programs / "initdb", "-D", data, "-U", "ann", "--pwfile", password, "-N"]
        _run([*command, "-A", "scram-sha-256", "-E", "UTF8", "--locale=C.UTF-8"], folder)
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": "",
            "fsync": "off",
            "shared_buffers": "16MB",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        url = f"postgresql://ann:{IN_URL}@127.0.0.1:{port}/"
        with _server([programs / "postgres", "-D", data, *options], folder, url + "postgres"):
            yield url


@contextlib.contextmanager
def mariadb() -> Iterator[str]:
    """A server; yields the URL without a database's name."""
    needs("/usr/sbin/mariadbd", "mariadb-install-db")
    with _folder() as folder:
        data, port, first = folder / "data", free_port(), folder / "first.sql"
        # In a folder that servers share each start removes the temporary tables of the others.
        folders = [f"--datadir={data}", f"--tmpdir={folder}"]
        _run(["mariadb-install-db", "--no-defaults", "--skip-test-db", *folders], folder)
        first.write_text(
            f"CREATE USER ann@'%' IDENTIFIED BY '{PASSWORD}';\n"
            "GRANT ALL ON *.* TO ann@'%';\nCREATE DATABASE first;\n"
        )
        _own(first)
        command = ["/usr/sbin/mariadbd", "--no-defaults", *folders, f"--port={port}"]
        command += ["--bind-address=127.0.0.1", f"--socket={folder}/socket", "--skip-name-resolve"]
        command += [f"--pid-file={folder}/pid", f"--init-file={first}"]
        command += ["--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=0"]
        url = f"mariadb://ann:{IN_URL}@127.0.0.1:{port}/"
        with _server(command, folder, url + "first"):
            yield url


def new_database(server: str, first: str) -> Database:
    """A database of its own in a server."""
    name = f"test_{os.getpid()}_{next(_NUMBERS)}"
    Database(server + first).run(f"CREATE DATABASE {name}")
    return Database(server + name)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder of a normal user: the servers refuse to be root's."""
    with tempfile.TemporaryDirectory(prefix="edl-db-") as folder:
        _own(Path(folder))
        yield Path(folder)


def _own(path: Path) -> None:
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(path, nobody.pw_uid, nobody.pw_gid)


def _user() -> dict:
    return {"user": "nobody", "group": "nogroup"} if os.getuid() == 0 else {}


def _run(command: list, folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=START_SECONDS, **_user()
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def _server(command: list, folder: Path, url: str) -> Iterator[None]:
    log = folder / "log"
    with (
        log.open("w") as stream,
        subprocess.Popen(command, cwd=folder, stdout=stream, stderr=stream, **_user()) as process,
    ):
        try:
            _wait(process, url, log)
            yield
        finally:
            number = signal.SIGINT if "postgres" in str(command[0]) else signal.SIGTERM
            end(process, number=number, seconds=STOP_SECONDS)


def _wait(process: subprocess.Popen, url: str, log: Path) -> None:
    engine = sa.create_engine(_with_driver(url), poolclass=sa.NullPool)

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            engine.connect().close()
        except sa.exc.OperationalError:
            return False
        return True

    wait_until(answers, url, seconds=START_SECONDS, describe=log.read_text)


def _with_driver(url: str) -> str:
    driver = {"postgresql": "postgresql+psycopg", "mariadb": "mariadb+pymysql"}
    scheme, _, rest = url.partition(":")
    return f"{driver[scheme]}:{rest}"
