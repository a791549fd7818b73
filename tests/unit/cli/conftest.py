import fcntl
import os

import pytest


@pytest.fixture
def running(job_dir):
    """The directory of a job whose launcher is this process."""
    with (job_dir / "launcher.pid").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.write(f"{os.getpid()}\n")
        stream.flush()
        yield job_dir
