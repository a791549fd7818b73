"""One job over several hosts: a coordinator on the first, a worker with one slot on each other."""

import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

from edl_horovod.job import events, hosts, outcome
from edl_horovod.job.directory import JobDir
from edl_horovod.job.outcome import Success
from tests import counting_job, logs
from tests.netns.lab import INTERFACE
from tests.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
EPOCHS = 50
"""Enough for a job that waits for a few cuts and returns: slow steps for most of a minute."""
AT_ONE_PACE = {"params.slower_after": 1_000_000}
"""A stall is held against the length of a step."""
THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
PATHS = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
VARIABLES = {"PYTHONPATH": PATHS, **dict.fromkeys(THREADS, "1")}


def write_config(folder, job_dir, *, epochs=EPOCHS, **settings):
    """Resolve the settings of a job that counts its records; returns the path of config.yaml."""
    JobDir(job_dir).claim()
    command = [sys.executable, "-m", "edl_horovod", "train", "--dry-run"]
    command += counting_job.overrides(folder, epochs=epochs, **AT_ONE_PACE, **settings)
    zoo = REPOSITORY / "tests" / "zoo"
    command += [f"model_zoo={zoo}", f"output={folder}/out", f"job_dir={job_dir}"]
    config = job_dir / "config.yaml"
    with config.open("w") as stream:
        subprocess.run(command, stdout=stream, check=True, cwd=REPOSITORY)
    return config


class Watched:
    """A job that is watched through its events."""

    def __init__(self, folder, job_dir):
        self.folder, self.job_dir = folder, job_dir
        self.result = job_dir / "result.json"

    def events(self, kind=None):
        recorded_events = events.read(self.job_dir / "events.jsonl")
        return [recorded for recorded in recorded_events if kind in (None, recorded.event.kind)]

    def wait_for(self, is_there, name, seconds=90):
        return wait_until(is_there, name, seconds=seconds, describe=self.describe)

    def steps(self, *, since, size=None):
        """Steps that ended after a time, of rings of one size where it is given."""
        return [e for e in self.events("step") if e.time > since and size in (None, e.event.size)]

    def train_on(self, *, size=None, since=None, seconds=90):
        """Wait for a step from now on; returns the time at which the first one ended."""
        since = since or time.time()
        name = f"a step with {size or 'any number of'} ranks"
        return self.wait_for(lambda: self.steps(since=since, size=size), name, seconds)[0].time

    def hurry(self):
        """Let the job run to its end, as fast as it can."""
        (self.folder / "hurry").touch()

    def assert_each_record_once_an_epoch(self, epochs=EPOCHS):
        counting_job.assert_each_record_once_an_epoch(self.folder / "out", epochs=epochs)

    def describe(self):
        return logs.page((self.job_dir / "logs").glob("*"), recorded=self.events())


class HostsJob(Watched):
    """Coordinator and workers, started as a launcher on their hosts would."""

    def __init__(self, lab, folder, *, num_hosts, **settings):
        super().__init__(folder, folder / "job")
        self.config = write_config(folder, self.job_dir, **{"launch.np": num_hosts, **settings})
        self.logs = self.job_dir / "logs"
        self.logs.mkdir()
        (self.job_dir / "secret").write_bytes(secrets.token_bytes(32))
        self.first = lab.host()
        self.hosts = [lab.host() for _ in range(num_hosts)]
        self.want(*self.hosts)
        words = [sys.executable, "-m", "edl_horovod.coordinator", "--job-dir", self.job_dir]
        words += ["--address", self.first.address]
        log = self.logs / "coordinator.log"
        self.coordinator = self.first.start(*words, log=log, **VARIABLES)
        saved = self.job_dir / "coordinator.json"
        self.wait_for(saved.exists, "a coordinator")
        self.address = f"{self.first.address}:{json.loads(saved.read_text())['port']}"
        self.workers = {host: self.start_worker(host) for host in self.hosts}

    def start_worker(self, host):
        words = [sys.executable, "-m", "edl_horovod.worker", "--config", self.config]
        return host.start(
            *words,
            log=self.logs / f"worker-{host.address}.log",
            EDL_COORDINATOR=self.address,
            EDL_SECRET_FILE=str(self.job_dir / "secret"),
            EDL_HOST=host.address,
            EDL_SLOT="0",
            EDL_LIFELINE="stdin",
            HOROVOD_GLOO_IFACE=INTERFACE,
            **VARIABLES,
        )

    def want(self, *wanted):
        """Let host discovery find these hosts."""
        hosts.write(self.job_dir / "hosts", {host.address: 1 for host in wanted})

    def leader(self):
        """The host of rank 0."""
        formed = [e for e in self.events("generation") if e.event.is_formed]
        address = formed[-1].event.members[0].rpartition(":")[0]
        return next(host for host in self.hosts if host.address == address)

    def finish(self):
        """Let the job end, and see that it ended well on every host."""
        self.hurry()
        self.wait_for(self.result.exists, "a result")
        assert isinstance(outcome.load(self.result), Success), self.describe()
        codes = [child.wait(20) for child in (self.coordinator, *self.workers.values())]
        assert set(codes) == {0}, self.describe()
