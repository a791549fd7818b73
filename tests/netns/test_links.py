"""What the kernel says of a connection whose other host is cut off, stopped or merely quiet."""

import signal
import time
from pathlib import Path

import pytest

from edl_horovod.coordinator.wire import VANISHED_SECONDS
from tests.waiting import wait_until, watch

pytestmark = pytest.mark.root

SERVER = """
import socket
server = socket.create_server(("0.0.0.0", 7000))
print("listens", flush=True)
waiting, sending = (server.accept()[0] for _ in range(2))
while sending.recv(1):
    pass
"""

CLIENT = """
import socket, sys, time
from edl_horovod.coordinator.wire import notice_vanished_host
connection = socket.create_connection(("{address}", 7000))
notice_vanished_host(connection)
print("connected", flush=True)
try:
    if {is_sending}:
        while True:
            connection.sendall(b"x")
            time.sleep(0.1)
    print("end", connection.recv(1), flush=True)
except OSError as error:
    print("broken", time.time(), error, flush=True)
"""


def wait_for(path, word):
    wait_until(
        lambda: path.exists() and word in path.read_text(),
        word,
        seconds=20,
        describe=path.read_text,
    )
    return path.read_text()


@pytest.fixture
def connected(lab, tmp_path, monkeypatch):
    """Two connections to another host: a client waits for data, another one sends some."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    far, near = lab.host(), lab.host()
    server = far.python(SERVER, log=tmp_path / "server")
    wait_for(tmp_path / "server", "listens")
    logs = []
    for name, is_sending in (("waiting", False), ("sending", True)):
        logs.append(tmp_path / name)
        client = CLIENT.format(address=far.address, is_sending=is_sending)
        near.python(client, log=logs[-1])
        wait_for(logs[-1], "connected")
    return far, server, logs


def is_broken(log):
    return "broken" in log.read_text()


def test_a_cut_link_breaks_a_connection_soon(connected, say):
    far, _, logs = connected
    watch(lambda: not any(map(is_broken, logs)), 0.5)
    began = time.time()
    far.cut()
    for log in logs:
        seconds = float(wait_for(log, "broken").split()[2]) - began
        say(f"{log.name}: a cut link noticed after {seconds:.1f} s")
        assert VANISHED_SECONDS - 1 <= seconds <= VANISHED_SECONDS + 1.5


def test_a_stopped_process_breaks_no_connection(connected):
    _, server, logs = connected
    server.send_signal(signal.SIGSTOP)
    watch(lambda: not any(map(is_broken, logs)), VANISHED_SECONDS + 2)
    server.send_signal(signal.SIGCONT)
    watch(lambda: not any(map(is_broken, logs)), 0.5)


def test_a_link_that_is_away_for_a_moment_breaks_no_connection(connected):
    far, _, logs = connected
    far.cut()
    watch(lambda: not any(map(is_broken, logs)), VANISHED_SECONDS / 4)
    far.mend()
    watch(lambda: not any(map(is_broken, logs)), VANISHED_SECONDS + 1)
