"""A worker pod with several slots, in a job's directory that other jobs had before."""

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edl_horovod.config import resolved
from edl_horovod.errors import ConfigError
from edl_horovod.job.directory import JobDir
from tests.jobs import config_of
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(120)

LIMIT_SECONDS = 60.0
SECRET = bytes(range(32))


class Pod:
    """The main process of a pod, with its job's directory and its folder for readiness."""

    def __init__(self, folder, *program):
        self._program = program or ("edl_horovod.cluster.pod.worker", "--slots", "2")
        self.job_dir, self.ready_dir = folder / "job", folder / "ready"
        self.log = folder / "pod.log"
        JobDir(self.job_dir).claim()
        self.ready_dir.mkdir()
        self._folder = folder
        (folder / "secret").write_bytes(SECRET)
        settings = ["launch=kubernetes", "model_def=m", "data=/data/x", "elastic.wait_seconds=1"]
        settings += [f"model_zoo={folder}/zoo", f"output={folder}/out", f"job_dir={self.job_dir}"]
        resolved.dump(config_of("train", settings), folder / "config.yaml")

    def __enter__(self):
        command = [sys.executable, "-m", *self._program]
        variables = {
            "EDL_HOST": "mnist-worker-0.uid",
            "EDL_COORDINATOR": "127.0.0.1:9",
            "EDL_SECRET_FILE": str(self._folder / "secret"),
            "EDL_READY_FILE": str(self.ready_dir / "0"),
        }
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(
                [*command, "--config", str(self._folder / "config.yaml")],
                env={**os.environ, **variables},
                stdout=stream,
                stderr=stream,
            )
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(LIMIT_SECONDS)
        finally:
            self.process.kill()

    def starts_its_workers(self):
        """Wait for the process that forks them; returns whether it came."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        wait_until(lambda: children.read_text() or self.process.poll() is not None)
        return self.process.poll() is None


def test_the_result_of_an_earlier_job_ends_no_pod_but_its_own_does(tmp_path):
    pod = Pod(tmp_path)
    (pod.job_dir / "result.json").write_text('{"state": "finished"}')
    (pod.job_dir / "job.id").write_text(hashlib.sha256(b"of another job").hexdigest())

    with pod:
        assert pod.starts_its_workers(), f"{pod.process.returncode}: {pod.log.read_text()}"
        (pod.job_dir / "job.id").write_text(hashlib.sha256(SECRET).hexdigest())

        assert pod.process.wait(LIMIT_SECONDS) == 0, pod.log.read_text()


def test_what_a_killed_pod_left_makes_its_next_container_not_ready(tmp_path):
    pod = Pod(tmp_path)
    for slot in "01":
        (pod.ready_dir / slot).touch()

    with pod:
        assert pod.starts_its_workers(), pod.log.read_text()

        assert list(pod.ready_dir.iterdir()) == []


@pytest.mark.long
def test_a_worker_reads_nothing_before_its_launcher_has_settled_the_directory(tmp_path):
    pod = Pod(tmp_path, "edl_horovod.worker")
    (pod.job_dir / "job.id").write_text(hashlib.sha256(b"of another job").hexdigest())

    with pod:
        wait_until(
            lambda: "waiting for the job's launcher" in pod.log.read_text(),
            describe=lambda: pod.log.read_text(),
            seconds=LIMIT_SECONDS,
        )
        assert pod.process.poll() is None
        (pod.job_dir / "job.id").write_text(hashlib.sha256(SECRET).hexdigest())

        # Its model is not there.
        assert pod.process.wait(LIMIT_SECONDS) == ConfigError.exit_code, pod.log.read_text()
