"""Jobs of plain `horovodrun`: what its elastic driver lets a ring survive.

Three names of the loopback address are three hosts to the driver, without ssh.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edl_horovod.files.output_dir import staged
from edl_horovod.files.whole_file import write_text
from edl_horovod.job.state import summarize
from edl_horovod.job.warm_workers import socket_folder
from edl_horovod.supervisor.plan import locate
from tests import counting_job
from tests.integration.conftest import for_framework
from tests.waiting import wait_until

FIRST, SECOND, THIRD = "localhost", "127.0.0.1", "127.1"
ZOO = Path(__file__).parents[1] / "zoo"


class HorovodrunJob:
    """A job that counts its records, with its hosts; every one has one slot."""

    def __init__(self, start, folder, framework, *hosts, module="edl_horovod.worker", before=None):
        self._folder = folder
        self.want(*hosts)
        job_dir = folder / "job-0"
        job_dir.mkdir()
        config = job_dir / "config.yaml"
        settings = {"elastic.max_np": 3, "launch.np": 2}
        settings = for_framework(framework, counting_job.overrides(folder, **settings))
        command = [sys.executable, "-m", "edl_horovod", "train", "--dry-run", *settings]
        command += [f"model_zoo={ZOO}", f"output={folder}/out", f"job_dir={job_dir}"]
        with config.open("w") as stream:
            subprocess.run(command, stdout=stream, check=True)
        if before is not None:
            before(config)
        discovery = folder / "discover.sh"
        discovery.write_text(f"#!/bin/sh\ncat {folder}/hosts\n")
        discovery.chmod(0o755)
        launcher = [
            locate("horovodrun"),
            "-np",
            "2",
            "--min-np",
            "1",
            "--max-np",
            "3",
            "--network-interfaces",
            "lo",
            "--host-discovery-script",
            str(discovery),
            sys.executable,
            "-m",
            module,
            "--config",
            str(config),
        ]
        threads = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
        self.job = start("train", launcher=launcher, **dict.fromkeys(threads, "1"))

    def want(self, *hosts):
        write_text(self._folder / "hosts", "".join(f"{host}:1\n" for host in hosts))

    def pid(self, host):
        """The worker on a host; None where there is none."""
        for pid in self.job.processes():
            try:
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            is_python = b"edl_horovod.worker" in arguments
            if is_python and f"HOROVOD_HOSTNAME={host}".encode() in variables:
                return pid
        return None

    def wait_for_worker(self, host, *, is_there=True):
        name = f"{'a' if is_there else 'no'} worker on {host}"
        self.job.wait_for(lambda _: (self.pid(host) is not None) is is_there, name)

    def kill(self, host):
        os.kill(self.pid(host), signal.SIGKILL)

    def ring(self, size):
        """Wait until the last ring has this size; its `reset` event."""

        def last_ring(events):
            rings = [e for e in events if e.event.kind == "reset"]
            return rings[-1] if rings and rings[-1].event.new_size == size else None

        return self.job.wait_for(last_ring, f"a ring of {size}")

    def train_on(self):
        """Wait for a step from now on."""
        now = time.time()
        self.job.wait_for(
            lambda events: any(e.event.kind == "step" and e.time > now for e in events), "a step"
        )

    def finish(self):
        (self._folder / "hurry").touch()
        self.job.succeed()
        assert self.job.events("job")[-1].event.state == "finished"
        output = self._folder / "out"
        counting_job.assert_each_record_once_an_epoch(output)


@pytest.fixture
def horovodrun(start, framework, tmp_path):
    return lambda *hosts, **settings: HorovodrunJob(start, tmp_path, framework, *hosts, **settings)


@pytest.fixture
def keep_warm():
    """Start warm workers for a job, and wait until all of them are."""
    keepers = []

    def start(config, slots=3):
        command = [
            sys.executable,
            "-m",
            "edl_horovod.supervisor.keep_warm",
            "--config",
            str(config),
        ]
        threads = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
        environment = {**os.environ, **dict.fromkeys(threads, "1")}
        keepers.append(subprocess.Popen([*command, "--slots", str(slots)], env=environment))
        wait_until(lambda: len(warm_workers(config)) >= slots, "warm workers", seconds=120)

    yield start
    for keeper in keepers:
        keeper.terminate()
        assert keeper.wait(20) == 130


def warm_workers(config):
    """Pids of the workers that wait."""
    return [int(path.stem.split("-")[1]) for path in socket_folder(config).glob("*.sock")]


@pytest.mark.further
def test_an_earlier_result_is_not_replaced_unasked(horovodrun, tmp_path):
    earlier = tmp_path / "out"

    def before(_config):
        with staged(earlier, "trained model", overwrite=False) as folder:
            (folder / "metrics.json").write_text("{}")

    job = horovodrun(FIRST, SECOND, before=before).job

    assert job.end() == 1
    assert "overwrite=true" in job.printed
    assert (earlier / "metrics.json").read_text() == "{}"


@pytest.mark.further
def test_a_host_joins_and_killed_workers_are_survived_the_leader_too(horovodrun):
    job = horovodrun(FIRST, SECOND)
    job.ring(2)
    job.train_on()
    job.want(FIRST, SECOND, THIRD)
    assert job.ring(3).event.step > 0
    job.train_on()
    job.kill(THIRD)
    job.ring(2)
    job.train_on()
    job.kill(FIRST)
    job.ring(1)
    job.train_on()
    job.finish()
    losses = summarize(job.job.events()).stops.losses
    assert [stop.worker for stop in losses] == [f"{THIRD}:0", f"{FIRST}:0"]
    # Where the others had to stop is known, too.
    assert all("stop in" in str(stop) for stop in losses)


@pytest.mark.further
def test_a_host_that_came_early_joins_and_a_withdrawn_one_goes(horovodrun):
    job = horovodrun(FIRST, SECOND)
    job.wait_for_worker(SECOND)
    job.want(FIRST, SECOND, THIRD)  # Before anybody could be told of it.
    job.ring(3)
    job.want(FIRST, THIRD)
    job.ring(2)
    job.wait_for_worker(SECOND, is_there=False)
    job.train_on()
    # The one that went must not count as one that waits for the next ring.
    job.kill(THIRD)
    job.ring(1)
    job.train_on()
    job.finish()
    # Only one was lost: the other one was let go.
    assert [stop.worker for stop in summarize(job.job.events()).stops.losses] == [f"{THIRD}:0"]


@pytest.mark.long
def test_warm_workers_take_the_places_of_what_horovodrun_launches(horovodrun, keep_warm):
    pids = []

    def before(config):
        keep_warm(config)
        pids.extend(warm_workers(config))

    job = horovodrun(FIRST, SECOND, module="edl_horovod.worker.shim", before=before)
    job.ring(2)
    job.train_on()
    config = job.job.job_dir / "config.yaml"
    (third,) = warm_workers(config)
    job.want(FIRST, SECOND, THIRD)
    joined = job.ring(3)
    assert joined.event.step > 0
    assert joined.event.seconds < 4  # Of a cold start; without load it is about 0.7 s.
    job.train_on()
    os.kill(third, signal.SIGKILL)
    job.ring(2)
    # The slot's next worker gets warm, for the next rank that is launched here.
    job.job.wait_for(lambda _: set(warm_workers(config)) - {*pids}, "the next warm worker")
    job.train_on()
    job.finish()
