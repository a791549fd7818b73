"""`edl stop`, as its pods see it: all are told to end at once, and later all are there anew."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from edl_horovod.config import resolved
from edl_horovod.config.compose import compose
from edl_horovod.errors import NotEnoughWorkers
from edl_horovod.job import events, hosts
from edl_horovod.job.directory import JobDir
from edl_horovod.ledger import prove
from tests import counting_job, logs
from tests.integration.conftest import REPOSITORY, for_framework
from tests.waiting import wait_until

LAUNCHER = """
import dataclasses, os, pathlib, sys
from edl_horovod.cluster.pod.launcher import plan_in_pod
from edl_horovod.config import resolved
from edl_horovod.errors import EdlError
from edl_horovod.supervisor.run import run_plan

file = pathlib.Path(sys.argv[1])
plan = plan_in_pod(resolved.load(file), file, os.environ)
argv = list(plan.coordinator.argv)
argv[argv.index("--port") + 1] = sys.argv[2]  # Pods have an address of their own each.
coordinator = dataclasses.replace(plan.coordinator, argv=tuple(argv))
try:
    run_plan(dataclasses.replace(plan, coordinator=coordinator, discovery=None))
except EdlError as error:
    sys.exit(error.exit_code)
"""
"""What the launcher pod runs, without an API server to ask for pods: the test writes the hosts."""


class PodJob:
    """The processes of a job's pods, as mpi-operator and the kubelets start and end them."""

    def __init__(self, folder, framework):
        self.folder, self.job_dir, self.framework = folder, folder / "job", framework
        self.config_file, self.secret = folder / "config.yaml", folder / "secret"
        self.secret.write_bytes(os.urandom(32))
        self.configure(self.config_file)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.num_launchers, self.pods = 0, []

    def configure(self, *files, **more_settings):
        settings = {
            "launch": "kubernetes",
            "launch.np": 2,
            "kubernetes.worker.cpu": 1,
            "image": "none",
            "model_zoo": counting_job.ZOO,
            "output": self.folder / "out",
            "job_dir": self.job_dir,
            "debug.ledger": "true",
            **more_settings,
        }
        overrides = counting_job.overrides(self.folder, **settings)
        config = compose("train", for_framework(self.framework, overrides))
        for file in files:
            resolved.dump(config, file)

    def run(self, name, *argv, **variables):
        shared = {"PYTHONPATH": str(REPOSITORY), "EDL_SECRET_FILE": str(self.secret)}
        with (self.folder / f"{name}.log").open("w") as stream:
            pod = subprocess.Popen(
                [sys.executable, *map(str, argv)],
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, **shared, **variables},
                start_new_session=True,
            )
        self.pods.append(pod)
        return pod

    def start(self):
        """New pods, as for a job that begins and for one that is resumed."""
        self.pods = []
        self.start_launcher()
        names = [f"worker-{slot}.{self.num_launchers}" for slot in range(2)]
        self.start_workers(names)
        self.want(names)

    def start_launcher(self):
        self.num_launchers += 1
        return self.run(
            f"launcher-{self.num_launchers}",
            "-c",
            LAUNCHER,
            self.config_file,
            self.port,
            EDL_POD_IP="127.0.0.1",
            EDL_NAMESPACE="ml",
            EDL_JOB="counting",
        )

    def start_workers(self, names):
        for name in names:
            self.run(
                name,
                "-m",
                "edl_horovod.worker",
                "--config",
                self.config_file,
                EDL_SLOT="0",
                EDL_HOST=name,
                EDL_COORDINATOR=f"127.0.0.1:{self.port}",
                HOROVOD_GLOO_IFACE="lo",
                EDL_READY_FILE=str(self.folder / "ready" / name),
                OMP_NUM_THREADS="1",
                TF_NUM_INTRAOP_THREADS="1",
                TF_NUM_INTEROP_THREADS="1",
            )

    def want(self, names):
        """Have the newest launcher find these pods, as its discovery would."""
        self.wait_for(
            lambda: len(self.events("job", state="running")) == self.num_launchers, "launcher"
        )
        hosts.write(self.job_dir / "hosts", dict.fromkeys(names, 1))

    def stop(self):
        """Tell all pods to end; returns how long the last of them took, in seconds."""
        began = time.monotonic()
        for pod in self.pods:
            pod.send_signal(signal.SIGTERM)
        for pod in self.pods:
            try:
                pod.wait(60)  # As kubernetes.grace_seconds.
            except subprocess.TimeoutExpired:
                raise AssertionError(f"pods were killed\n{self.describe()}") from None
        return time.monotonic() - began

    def events(self, kind, **fields):
        lines = events.read(self.job_dir / "events.jsonl")
        return [
            e for e in lines if e.event.kind == kind and fields.items() <= vars(e.event).items()
        ]

    def wait_for(self, is_there, name):
        wait_until(is_there, name, seconds=150, describe=self.describe)

    def describe(self):
        files = [*self.folder.glob("*.log"), *self.job_dir.glob("logs/*.log")]
        return logs.page(files, recorded=events.read(self.job_dir / "events.jsonl"))

    def close(self):
        for pod in self.pods:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pod.pid, signal.SIGKILL)
            pod.wait()


@pytest.fixture
def job(tmp_path, framework):
    with contextlib.closing(PodJob(tmp_path, framework)) as pod_job:
        yield pod_job


@pytest.mark.further
def test_a_job_goes_on_at_the_step_after_the_last_one_before_it_was_stopped(job, tmp_path):
    job.start()
    job.wait_for(lambda: job.events("generation", size=2, is_formed=True), "a ring of both")
    job.wait_for(lambda: any(e.event.size == 2 for e in job.events("step")), "a step of both")
    seconds = job.stop()
    stopped = prove(JobDir(job.job_dir))
    assert stopped.is_good, stopped.violations
    written = job.events("checkpoint", state="written")
    assert [e.event.step for e in written] == [stopped.num_steps], job.describe()
    assert seconds < 20, job.describe()

    (tmp_path / "hurry").touch()
    job.start()
    job.wait_for((job.job_dir / "result.json").exists, "a result")
    proof = prove(JobDir(job.job_dir))
    assert proof.is_good, proof.violations
    assert proof.is_finished
    assert proof.num_redone_steps == 0
    assert [e.event.step for e in job.events("reset")][1] == stopped.num_steps, job.describe()
    counting_job.assert_each_record_once_an_epoch(tmp_path / "out")


@pytest.mark.further
def test_the_next_launcher_waits_anew_where_one_gave_up_waiting(job, tmp_path):
    job.configure(job.config_file, **{"elastic.min_np": 2, "elastic.wait_seconds": 1})
    assert job.start_launcher().wait(60) == NotEnoughWorkers.exit_code, job.describe()

    # Long enough for workers that get warm on a busy machine.
    patient = {"elastic.min_np": 2, "elastic.wait_seconds": 120}
    job.configure(job.config_file, job.job_dir / "config.yaml", **patient)
    (tmp_path / "hurry").touch()
    names = ["worker-0", "worker-1"]
    job.start_workers(names)
    second = job.start_launcher()
    job.want(names)
    assert second.wait(150) == 0, job.describe()
    counting_job.assert_each_record_once_an_epoch(tmp_path / "out")
