"""An S3 server for the tests of remote files."""

import os

import pytest

from edl_horovod.records.files import remote
from tests.s3_server import serve


@pytest.fixture(autouse=True)
def own_settings(monkeypatch):
    """No settings of whoever runs the tests, no waiting, no connection of another test."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "FSSPEC_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(remote, "FIRST_WAIT_SECONDS", 0.001)
    remote.reconnect()
    yield
    remote.reconnect()


@pytest.fixture(scope="module")
def running():
    with serve() as server:
        yield server


@pytest.fixture
def s3(running, monkeypatch):
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    running.requests.clear()
    yield running
    running.faults.clear()
    running.stall_seconds = 0.0
