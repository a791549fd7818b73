"""Statements in SQL whose jobs run in a cluster: what is submitted, waited for and removed.

The test is the operator: it runs what a job's ConfigMap says on this machine, where the volume of
the pods lies.
"""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import edl_horovod
from edl_horovod.errors import ConfigError, Interrupted, JobFailed, NoCluster, ObjectNotFound
from edl_horovod.launch import attached
from edl_horovod.launch.attached import AttachedJob
from edl_horovod.sql.jobs import find_jobs, open_job, request_kill
from tests.kube.lab import background
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

REPOSITORY = Path(__file__).parents[2]
TRAINED = """SELECT name, role, salary FROM employee TRAIN regressor.DNN
WITH hidden_units=[8], learning_rate={rates}, train.epochs=3, train.batch_size=40,
    train.split='random', train.split_fraction=0.2 LABEL salary INTO m;"""
RUN = """
import dataclasses, pathlib, sys
from edl_horovod import api
from edl_horovod.config import resolved
config = resolved.load(pathlib.Path(sys.argv[1]))
assert config.task == "predict" or config.model_zoo == "/model_zoo", config.model_zoo
launch = dataclasses.replace(config.launch, kind="local")
api.run(dataclasses.replace(config, launch=launch, image="", model_zoo=sys.argv[2]))
"""


@dataclass
class Operator:
    """Runs the jobs of a namespace, one after the other, until `close`."""

    lab: object
    folder: Path
    seen: list[str] = field(default_factory=list)
    is_idle: bool = False
    """Whether jobs wait for ever."""
    has_failed: bool = False
    """Whether jobs fail without being run."""

    def __post_init__(self):
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def close(self):
        self._is_over.set()
        self._thread.join()

    def names(self):
        return [job["metadata"]["name"] for job in self.lab.cluster.find("MPIJob")]

    def _work(self):
        while not self._is_over.wait(0.1):
            for job in self.lab.cluster.find("MPIJob"):
                name = job["metadata"]["name"]
                if name not in self.seen and not job["spec"]["runPolicy"]["suspend"]:
                    self.seen.append(name)
                    if not self.is_idle:
                        kind = "Succeeded" if self._run(name) else "Failed"
                        self.lab.set_condition(kind, "Because.", job=name)

    def _run(self, name):
        if self.has_failed:
            return False
        text = self.lab.cluster.get("ConfigMap", f"{name}-edl")["data"]["config.yaml"]
        file = self.folder / f"{name}.yaml"
        file.write_text(text)
        words = [sys.executable, "-c", RUN, str(file), str(REPOSITORY / "model_zoo")]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=200)
        (self.folder / f"{name}.log").write_text(ended.stdout + ended.stderr)
        return ended.returncode == 0


@pytest.fixture
def volume(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "hr.db")) as connection, connection:
        connection.execute("CREATE TABLE employee (name TEXT, role TEXT, salary REAL)")
        roles = ("clerk", "engineer", "manager")
        rows = [(f"n{n % 9}", roles[n % 3], 60.0 + 40 * (n % 3)) for n in range(120)]
        connection.executemany("INSERT INTO employee VALUES (?, ?, ?)", rows)
    return tmp_path


@pytest.fixture
def models(volume):
    return volume / "models"


@pytest.fixture
def operator(lab, volume):
    operator = Operator(lab, volume)
    yield operator
    operator.close()


@pytest.fixture
def run(volume, models):
    def call(text, **settings):
        places = {"db": f"sqlite:///{volume}/hr.db", "models": models}
        in_cluster = {
            "launch.kind": "kubernetes",
            "launch.np": 2,
            "image": "registry.example/edl:1",
            "kubernetes.volumes": {"data": {"claim": "shared", "mount": str(volume)}},
        }
        return edl_horovod.sql(text, **places, **{**in_cluster, **settings})

    return call


@pytest.mark.further
def test_models_are_trained_and_predict_in_the_cluster(run, operator, models):
    trained = run(TRAINED.format(rates="HPARAM_CANDIDATES([0.0001, 0.05])"))
    assert " 2 trials" in trained.message
    assert len(operator.seen) == 2
    assert "np: 2" in (models / "m" / "1" / "model" / "config.yaml").read_text()
    assert len(run("SELECT name, role FROM employee PREDICT USING m").rows) == 120
    assert len(operator.seen) == 3
    assert operator.names() == []
    assert list((models / ".jobs").iterdir()) == []


def test_models_that_no_pod_sees_are_refused_before_rows_are_read(run, operator, tmp_path):
    volumes = {"data": {"claim": "shared", "mount": "/elsewhere"}}
    for rates in ("0.1", "HPARAM_CANDIDATES([0.1, 1])"):
        with pytest.raises(ConfigError, match="pods mount"):
            run(TRAINED.format(rates=rates), **{"kubernetes.volumes": volumes})
    assert operator.seen == []


def test_a_name_that_another_job_may_have_is_refused(run, lab):
    lab.submit()
    with pytest.raises(ConfigError, match=r"kubernetes\.name"):
        run(TRAINED.format(rates=0.1), **{"kubernetes.name": "mnist"})
    assert lab.cluster.get("MPIJob", "mnist")


def test_without_a_cluster_no_row_is_read(run, models, monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(NoCluster):
        run(TRAINED.format(rates=0.1))
    assert list((models / ".jobs").iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("rates", ["0.1", "HPARAM_CANDIDATES([0.1, 1])"])
def test_a_killed_statement_leaves_nothing_in_the_cluster(run, operator, models, rates):
    operator.is_idle = True

    def kill():
        wait_until(lambda: operator.seen)
        (entry,) = find_jobs(models)
        assert entry.attached.name == operator.seen[0]
        assert [row[2] for row in run("SHOW JOBS").rows] == ["waiting"]
        request_kill(models, entry.number)

    with background(kill), pytest.raises(Interrupted, match="KILL 1"):
        run(TRAINED.format(rates=rates))
    assert len(operator.seen) == 1
    assert operator.names() == []
    assert list((models / ".jobs").iterdir()) == []


@pytest.mark.long
def test_a_job_outlives_an_api_server_that_is_away(run, lab, models, monkeypatch, caplog):
    monkeypatch.setattr(attached, "RETRY_SECONDS", 0.1)

    def vanish():
        wait_until(
            lambda: any(seen.verb == "patch" and "mpijobs" in seen.path for seen in lab.server.seen)
        )
        lab.server.faults.drop_only, lab.server.faults.drop = "GET", 12
        wait_until(lambda: not lab.server.faults.drop)
        request_kill(models, 1)

    with background(vanish), pytest.raises(Interrupted, match="KILL 1"):
        run(TRAINED.format(rates="0.1"))
    assert "trying again" in caplog.text
    assert lab.cluster.find("MPIJob") == []


@pytest.mark.long
def test_a_job_that_fails_stays_for_its_logs(run, operator, models):
    operator.has_failed = True
    with pytest.raises(JobFailed, match=r"Because\.") as caught:
        run(TRAINED.format(rates=0.1))
    assert all(command in caught.value.hint for command in ("edl logs", "edl delete"))
    assert operator.names() == operator.seen
    assert not any(entry.attached for entry in find_jobs(models))


def test_what_a_dead_process_left_in_the_cluster_is_removed(lab, models, monkeypatch, tmp_path):
    models.mkdir()
    lab.submit()
    if (child := os.fork()) == 0:
        with open_job(models, "TRAIN m") as job:
            job.note_attached(
                AttachedJob(kind="kubernetes", name="mnist", place={"namespace": "default"})
            )
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    with monkeypatch.context() as away:
        away.setenv("KUBECONFIG", str(tmp_path / "none"))
        with open_job(models, "TRAIN m") as second:
            assert second.number == 2
    assert [entry.number for entry in find_jobs(models)] == [1]
    with open_job(models, "TRAIN m"), pytest.raises(ObjectNotFound):
        lab.cluster.get("MPIJob", "mnist")
    assert find_jobs(models) == ()
