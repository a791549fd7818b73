"""Jobs as a user starts them, with a schedule of what happens to them; judged by events."""

import contextlib
import fcntl
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from edl_horovod.job import events, hosts
from tests import logs
from tests.integration.which_frameworks import frameworks_for
from tests.records import write_records
from tests.waiting import wait_until
from tests.warm import start_program

ZOO = Path(__file__).parents[1] / "zoo"
REPOSITORY = Path(__file__).parents[2]


def run_script(script, folder, variables, *, seconds):
    """Run a script in a folder as if typed there; returns what it printed, and its errors."""
    with subprocess.Popen(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            printed, errors = shell.communicate(timeout=seconds)
        except BaseException:
            # Ranks end with the command that started them.
            os.killpg(shell.pid, signal.SIGKILL)
            raise
    assert shell.returncode == 0, f"{script}\n{printed}{errors}"
    return printed, errors


def edl(*words, code=0):
    """Run an `edl` verb to its end; returns all that it printed."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = start_program(
            [sys.executable, "-m", "edl_horovod", *words],
            environment=os.environ,
            cwd=REPOSITORY,
            output=output,
            errors=errors,
        )
        try:
            ended_with = process.wait(120)
        finally:
            process.kill()
        printed = ""
        for file in (output, errors):
            file.seek(0)
            printed += file.read()
    assert ended_with == code, printed
    return printed


class Job:
    """One running `edl` verb; a failure prints one page of it, and no process outlives it."""

    def __init__(self, command, job_dir, *, cwd=REPOSITORY, is_warm=True, **variables):
        self.job_dir = Path(job_dir)
        self.output_path = self.job_dir.with_suffix(".printed")
        with self.output_path.open("w") as stream:
            self.process = start_program(
                command,
                environment={**os.environ, "PYTHONPATH": str(REPOSITORY), **variables},
                cwd=cwd,
                output=stream,
                is_warm=is_warm,
            )

    @property
    def printed(self):
        return self.output_path.read_text()

    def events(self, kind=None):
        log = events.read(self.job_dir / "events.jsonl")
        return [recorded for recorded in log if kind in (None, recorded.event.kind)]

    def wait_for(self, is_there, name, seconds=90):
        """Wait until a function of the events is true; return what it returned."""

        def look():
            has_ended = self.process.poll() is not None
            answer = is_there(self.events())
            assert answer or not has_ended, f"the job ended before: {name}\n{self.describe()}"
            return answer

        return wait_until(look, name, seconds=seconds, describe=self.describe)

    def wait_for_ring(self, size, after=0):
        """Wait until a ring of this size trains that is newer than generation `after`."""
        ring = self.wait_for(
            lambda log: next(
                (e for e in reversed(log) if e.event.kind == "generation" and e.event.is_formed),
                None,
            ),
            "a ring",
        )
        if ring.event.size != size or ring.event.generation <= after:
            self.wait_for(
                lambda log: any(
                    e.event.kind == "generation"
                    and e.event.is_formed
                    and e.event.size == size
                    and e.event.generation > after
                    for e in log
                ),
                f"a ring of {size} after generation {after}",
            )
        return self.generation()

    def generation(self):
        return max(e.event.generation for e in self.events("generation"))

    def wait_for_step(self, step):
        self.wait_for(
            lambda log: any(e.event.kind == "step" and e.event.step >= step for e in log),
            f"step {step}",
        )

    def worker_pid(self, slot):
        """The pid of the process that now has a slot."""
        started = [
            e
            for e in self.events("worker")
            if e.event.worker == f"localhost:{slot}" and e.event.state == "started"
        ]
        return int(started[-1].event.message.split()[1])

    def signal_worker(self, slot, number):
        os.kill(self.worker_pid(slot), number)

    def coordinator_pid(self):
        return self.events("coordinator")[-1].event.pid

    def want(self, slots):
        hosts.write(self.job_dir / "hosts", {"localhost": slots})

    def end(self, seconds=120):
        """Wait for the end; returns the exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end within {seconds} s\n{self.describe()}") from None

    def succeed(self):
        assert self.end() == 0, self.describe()
        return self

    def processes(self):
        """Pids of all processes that work for this job, its launcher not counted."""
        pids = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                text = (folder / "cmdline").read_bytes().decode()
                # One that was forked has the command of what forked it.
                output = os.readlink(folder / "fd" / "1")
            except OSError:
                continue
            is_ours = "edl_horovod.worker" in text or "edl_horovod.coordinator" in text
            if (is_ours and str(self.job_dir) in text) or output.startswith(f"{self.job_dir}/"):
                pids.append(int(folder.name))
        return pids

    def describe(self):
        """The command, its exit code, and the end of what each process wrote."""
        files = [self.output_path, *(self.job_dir / "logs").glob("*.log")]
        command = shlex.join(map(str, self.process.args))
        code = f"exit code: {self.process.poll()}"
        return logs.page(files, command, code, recorded=self.events())

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """A folder of a name that all processes of this run share, for one of them at a time."""
    base = tmp_path_factory.getbasetemp()

    @contextlib.contextmanager
    def use(name):
        folder = base / f"shared-{name}"
        folder.mkdir(exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder

    return use


def pytest_generate_tests(metafunc):
    if "framework" in metafunc.fixturenames:
        module = metafunc.module.__name__.rpartition(".")[2]
        is_long = bool(
            {"long", "further"} & {mark.name for mark in metafunc.definition.iter_markers()}
        )
        frameworks = frameworks_for(module, metafunc.function.__name__, is_long=is_long)
        if frameworks:
            metafunc.parametrize("framework", frameworks, indirect=True)


@pytest.fixture
def framework(request):
    """What the models of a test's trainings are written in."""
    return getattr(request, "param", "keras")


def for_framework(framework, overrides):
    """The same settings with the model that another framework has for that of Keras."""
    if framework == "keras":
        return list(overrides)
    # The files of these models say what they are written in.
    return [text.replace("model_def=", f"model_def={framework}_", 1) for text in overrides]


@pytest.fixture
def start(tmp_path, framework):
    """Start jobs: `start("train", "key=value", ...)`; the output is `tmp_path / "out"`.

    A `launcher` is a whole command that runs instead of the verb, `python` what runs the verb. Jobs
    whose processes are looked for by their commands start with `is_warm=False`. All else are
    variables.
    """
    jobs = []

    def start_job(verb, *overrides, launcher=None, python=sys.executable, **options):
        if verb == "train":
            overrides = for_framework(framework, overrides)
        overridden = dict(text.partition("=")[::2] for text in overrides)
        output = tmp_path / "out"
        defaults = {
            "job_dir": overridden.get("job_dir", f"{tmp_path}/job-{len(jobs)}"),
            "output": str(output),
            "model_zoo": str(ZOO),
            "launch.threads_per_rank": "1",
        }
        if verb != "train":
            del defaults["model_zoo"]
        if verb == "evaluate":
            del defaults["output"]
        settings = [f"{k}={v}" for k, v in defaults.items() if k not in overridden]
        command = launcher or [python, "-m", "edl_horovod", verb, *settings, *overrides]
        job = Job(command, defaults["job_dir"], **options)
        jobs.append(job)
        return job

    yield start_job
    for job in jobs:
        job.close()


@pytest.fixture
def start_paced(start, tmp_path):
    """Start trainings of 120 records that are slow enough to be disturbed, in 5 steps an epoch."""

    def start_job(*overrides):
        data = write_records(tmp_path / "data", 120)
        model = ("model_def=paced.PacedSpec", f"data={data}", "train.batch_size=24")
        return start("train", *model, *overrides)

    return start_job
