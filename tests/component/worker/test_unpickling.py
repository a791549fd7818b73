"""What docs/explanation/security.md says of messages that are unpickled, launch by launch."""

import ast
import base64
import pickle
import urllib.request
from http.client import RemoteDisconnected
from pathlib import Path

import pytest
from horovod.runner.common.util import network, secret
from horovod.runner.elastic.rendezvous import create_rendezvous_handler
from horovod.runner.elastic.worker import WorkerNotificationManager
from horovod.runner.http.http_server import RendezvousServer

import edl_horovod

UNPICKLE = {
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "mpi4py",
    "multiprocessing",
    "pickle",
    "shelve",
}


def imported(file: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add((node.module or "").partition(".")[0])
    return modules


NO_MESSAGES = {
    # Examples, over a pipe between a rank and its own fork.
    "frameworks/torch/batches.py": {"multiprocessing", "pickle"},
    # A model's file, after all that it names was compared with what it may name.
    "frameworks/torch/pt_files.py": {"pickle"},
    # Rows of SQLite, over a pipe between a command and the reader that it started.
    "sql/sqlite_rows.py": {"pickle"},
}


@pytest.mark.long
def test_nothing_of_ours_unpickles_messages_but_mpi4py_in_prepare():
    root = Path(edl_horovod.__file__).parent
    unpickling = {
        file.relative_to(root).as_posix(): names
        for file in root.rglob("*.py")
        if (names := imported(file) & UNPICKLE)
    }
    # A rank of training takes only a communicator from mpi4py, which it hands to Horovod.
    of_mpi = {"preparation/pools.py": {"mpi4py"}, "ring/membership/base.py": {"mpi4py"}}
    assert unpickling == {**of_mpi, **NO_MESSAGES}


class Driver:
    def __init__(self) -> None:
        self.workers: list[tuple] = []

    def register_worker_server(self, *worker) -> None:
        self.workers.append(worker)


@pytest.fixture
def driver():
    return Driver()


@pytest.fixture
def rendezvous(driver):
    """The rendezvous of horovodrun's elastic driver."""
    server = RendezvousServer()
    yield server.start(create_rendezvous_handler(driver))
    server.stop()
    server._httpd.server_close()


class Touch:
    """What makes a file where it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}/worker_addresses/localhost:0"


def test_horovodruns_driver_unpickles_what_a_stranger_sends(rendezvous, tmp_path):
    body = base64.b64encode(pickle.dumps(Touch(tmp_path / "ran")))
    with pytest.raises(RemoteDisconnected):
        urllib.request.urlopen(urllib.request.Request(url(rendezvous), body, method="PUT"))
    assert (tmp_path / "ran").exists()


def test_horovodruns_driver_tells_strangers_the_keys_of_its_workers(rendezvous, driver):
    manager = WorkerNotificationManager()
    manager.init("127.0.0.1", rendezvous, nic="lo", hostname="localhost", local_rank=0)
    try:
        with urllib.request.urlopen(url(rendezvous)) as answer:
            _, key = pickle.loads(base64.b64decode(answer.read()))
    finally:
        manager._service.shutdown()
    assert [worker[-1] for worker in driver.workers] == [key]
    assert len(key) == secret.SECRET_LENGTH


def test_a_service_of_horovods_unpickles_only_for_who_has_its_key(tmp_path):
    wire = network.Wire(b"k" * 32)

    class Stream:
        def __init__(self, key: bytes) -> None:
            message = pickle.dumps(Touch(tmp_path / "ran"))
            length = len(message).to_bytes(4, "little")
            self.rest = secret.compute_digest(key, message) + length + message

        def read(self, num_bytes: int) -> bytes:
            part, self.rest = self.rest[:num_bytes], self.rest[num_bytes:]
            return part

    with pytest.raises(Exception, match="digest"):
        wire.read(Stream(b"x" * 32))
    assert not (tmp_path / "ran").exists()
    wire.read(Stream(b"k" * 32))
    assert (tmp_path / "ran").exists()
