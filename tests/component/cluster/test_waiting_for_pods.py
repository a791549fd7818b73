"""The launcher of a static ring waits for its pods: mpirun itself asks each only once."""

import socket

import pytest

from edl_horovod.cluster.launcher import wait_for_workers
from edl_horovod.errors import NotEnoughWorkers


def test_a_pod_that_cannot_be_reached_is_named_and_one_that_can_is_not(tmp_path):
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("127.0.0.1 slots=1\n127.0.0.2 slots=1\n")
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(NotEnoughWorkers, match=r"Received: 127\.0\.0\.2 cannot be reached"):
            wait_for_workers(hostfile, port=port, seconds=0.0)

        with socket.create_server(("127.0.0.2", port)):
            wait_for_workers(hostfile, port=port, seconds=0.0)
