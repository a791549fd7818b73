"""The launch plan is a value: what would be started, before anything is."""

import os
import sys
from pathlib import Path

import pytest

from edl_horovod.config.schema import (
    DataConfig,
    ElasticConfig,
    JobConfig,
    LaunchConfig,
    TrainConfig,
)
from edl_horovod.errors import ConfigError, OutputError
from edl_horovod.files import marker
from edl_horovod.job.directory import JobDir, with_job_dir
from edl_horovod.launch import local
from edl_horovod.launch.target import find
from edl_horovod.supervisor.plan import Command, locate


def make_plan(config):
    return find(config.launch.kind).plan(config)


def job(*, np=2, kind="local", threads=0, batch_size=64, lanes=0, **settings):
    fields = {"task": "train", "data": "d", "output": "/out/model", "model_def": "m", **settings}
    return JobConfig(
        launch=LaunchConfig(np=np, kind=kind, threads_per_rank=threads),
        train=TrainConfig(batch_size=batch_size),
        data_plan=DataConfig(**({"lanes": lanes} if lanes else {})),
        **fields,
    )


def test_more_ranks_than_lanes_are_refused_and_the_numbers_named():
    assert make_plan(job(np=4, batch_size=4)).hosts == {"localhost": 4}
    with pytest.raises(ConfigError, match=r"np=5, lanes=4, .*=4"):
        make_plan(job(np=5, batch_size=4))


@pytest.mark.parametrize(
    ("config", "job_dir"),
    [
        (job(), "/out/model.job"),
        (job(output="/out/model/"), "/out/model.job"),
        (job(job_dir="/elsewhere"), "/elsewhere"),
        (job(task="evaluate", output="", trained_model="/m/"), "/m.evaluate.job"),
    ],
)
def test_the_job_directory_is_beside_the_output(config, job_dir):
    assert with_job_dir(config).job_dir == job_dir
    assert make_plan(config).job_dir == JobDir(Path(job_dir))


def test_a_local_job_has_a_coordinator_and_workers_with_one_config():
    plan = make_plan(job())
    config = "/out/model.job/config.yaml"
    assert plan.coordinator is not None
    assert plan.coordinator.argv[:3] == (sys.executable, "-m", "edl_horovod.coordinator")
    assert plan.coordinator.argv[3:5] == ("--job-dir", "/out/model.job")
    assert plan.worker.argv == (sys.executable, "-m", "edl_horovod.worker", "--config", config)
    assert plan.worker.environment["EDL_HOST"] == "localhost"


def test_the_secret_is_named_and_never_on_a_command_line():
    plan = make_plan(job())
    assert plan.worker.environment["EDL_SECRET_FILE"] == "/out/model.job/secret"
    assert not any("secret" in argument for argument in plan.worker.argv)


@pytest.mark.parametrize(
    ("np", "threads", "cores", "expected"),
    [(2, 0, 8, "4"), (3, 0, 8, "2"), (8, 0, 2, "1"), (2, 3, 8, "3")],
)
def test_ranks_share_the_cores_unless_told_otherwise(monkeypatch, np, threads, cores, expected):
    monkeypatch.setattr(local.os, "sched_getaffinity", lambda _: set(range(cores)))
    environment = make_plan(job(np=np, threads=threads)).worker.environment
    assert environment["TF_NUM_INTRAOP_THREADS"] == environment["OMP_NUM_THREADS"] == expected
    assert int(environment["TF_NUM_INTEROP_THREADS"]) == int(expected) + 1


@pytest.mark.parametrize("user", [0, 1000])
def test_a_static_ring_is_one_mpirun_and_no_coordinator(monkeypatch, user):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    plan = make_plan(job(np=3, kind="mpi"))
    assert plan.coordinator is None
    assert plan.ring.argv[:3] == (locate("mpirun"), "-np", "3")
    worker = "-m edl_horovod.worker --config /out/model.job/config.yaml"
    assert " ".join(plan.ring.argv[-4:]) == worker
    environment = plan.ring.environment
    assert environment["EDL_MEMBERSHIP"] == "static"
    assert environment["HOROVOD_CONTROLLER"] == "mpi"
    assert ("OMPI_ALLOW_RUN_AS_ROOT" in environment) == (user == 0)


def test_a_command_is_shown_so_that_a_shell_takes_it():
    command = Command(argv=("run", "a b"), environment={"X": "1 2"})
    assert str(command) == "X='1 2' run 'a b'"


def describe(config):
    return find(config.launch.kind).describe(make_plan(config))


def test_the_plan_is_described_for_people():
    text = describe(job(np=3))
    assert "# job directory: /out/model.job\n" in text
    assert "# 3 workers: " in text
    assert "# static ring: " in describe(job(kind="mpi"))


def test_a_description_refuses_an_output_that_is_in_the_way(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").touch()
    with pytest.raises(OutputError, match=marker.NAME):
        describe(job(output=str(tmp_path / "model")))


def test_a_static_ring_cannot_be_scaled_by_itself():
    with pytest.raises(ConfigError, match="elastic ring"):
        make_plan(job(kind="mpi", elastic=ElasticConfig(autoscale=True)))


def test_an_unknown_target_is_told_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"kubernetes.*'local'"):
        find("locl")
