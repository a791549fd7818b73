"""The launcher of a static ring waits for its pods: mpirun itself asks each only once."""

import logging
import socket
import threading

import pytest

from edl_horovod.cluster.pod.launcher import wait_for_workers
from edl_horovod.errors import NotEnoughWorkers
from tests.waiting import wait_until


@pytest.fixture
def hostfile(tmp_path):
    (tmp_path / "hostfile").write_text("127.0.0.1 slots=1\n127.0.0.2 slots=1\n")
    return tmp_path / "hostfile"


def test_a_pod_that_cannot_be_reached_is_named_and_one_that_can_is_not(hostfile):
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(NotEnoughWorkers, match=r" 127\.0\.0\.2 \(Connection refused\)\."):
            wait_for_workers(hostfile, port=port, seconds=0.0)

        with socket.create_server(("127.0.0.2", port)):
            wait_for_workers(hostfile, port=port, seconds=0.0)


@pytest.mark.timeout(60)
def test_mpirun_is_not_started_before_the_last_pod_can_be_reached(hostfile, caplog):
    caplog.set_level(logging.INFO)
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        waiting = threading.Thread(
            target=wait_for_workers, args=(hostfile,), kwargs={"port": port, "seconds": 50.0}
        )
        waiting.start()
        wait_until(lambda: caplog.messages)
        assert waiting.is_alive()
        with socket.create_server(("127.0.0.2", port)):
            waiting.join(50)

    assert caplog.messages[0].startswith(
        "1 of 2 worker pods are ready; waiting 50 s more for 127.0.0.2"
    )
    assert not waiting.is_alive()
