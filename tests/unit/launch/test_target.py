"""A launch target is one class and one line in the table; this one records what it is asked."""

from collections.abc import Mapping
from typing import Any

import pytest

import edl_horovod
from edl_horovod.cli.main import main
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError
from edl_horovod.launch.jobs import Jobs
from edl_horovod.launch.local_jobs import LocalJobs
from edl_horovod.launch.target import TARGETS, DryRun, LaunchTarget
from edl_horovod.supervisor.run import JobResult
from tests.programs import python

TRAIN: dict[str, Any] = {"model_def": "mnist", "data": "/d", "output": "/o"}


class RecordedJobs(LocalJobs):
    """Jobs that are not there, but can be scaled."""

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def scale(self, job: str, num_ranks: int, *, is_dry_run: bool = False) -> int:
        self.said.append(f"scale {job} to {num_ranks}")
        return 1


class RecordingTarget(LaunchTarget[JobConfig, JobResult]):
    def __init__(self, said: list[str]) -> None:
        self.said = said

    def plan(self, config: JobConfig) -> JobConfig:
        self.said.append(f"plan {config.launch.np} ranks")
        return config

    def describe(self, plan: JobConfig, *, check: DryRun = "client", whole: bool = False) -> str:
        return f"{plan.launch.np} ranks would be recorded\n"

    def launch(self, plan: JobConfig, *, on_events: Any = None, warm: object = None) -> JobResult:
        self.said.append(f"launch {plan.task}")
        return JobResult(output=plan.output, job_dir="", steps=plan.launch.np)

    def names(self, job: str) -> bool:
        return job.startswith("tape:")

    def jobs(self, place: Mapping[str, str]) -> Jobs:
        return RecordedJobs(self.said)


@pytest.fixture
def said(monkeypatch):
    """What the target was asked, which `launch.kind=recording` finds."""
    said: list[str] = []
    monkeypatch.setitem(TARGETS, "recording", lambda: RecordingTarget(said))
    return said


def test_a_target_of_the_table_launches_jobs_from_python(said):
    result = edl_horovod.train(launch={"kind": "recording", "np": 3}, **TRAIN)

    assert said == ["plan 3 ranks", "launch train"]
    assert (result.output, result.steps) == ("/o", 3)


def test_a_target_of_the_table_launches_and_describes_jobs_of_the_command(said, capsys):
    words = ["train", "launch.kind=recording", *(f"{key}={TRAIN[key]}" for key in TRAIN)]

    assert main([*words, "--dry-run", "launch.np=2"]) == 0
    assert capsys.readouterr().out == "2 ranks would be recorded\n"
    assert main(words) == 0
    assert said == ["plan 2 ranks", "plan 1 ranks", "launch train"]


def test_the_verbs_find_the_jobs_of_a_target_of_the_table(said, capsys):
    assert main(["scale", "tape:7", "--np", "4"]) == 0

    assert said == ["scale tape:7 to 4"]
    assert capsys.readouterr().out == "job tape:7: 1 -> 4 ranks\n"


def test_options_of_a_launch_target_that_reads_none_are_refused(said):
    with pytest.raises(ConfigError, match=r"launch\.options"):
        edl_horovod.train(launch={"kind": "recording", "options": {"color": "red"}}, **TRAIN)

    assert said == []


def test_a_job_that_is_submitted_is_no_part_of_something_that_runs_here():
    with pytest.raises(ConfigError, match="submitted"):
        edl_horovod.train(launch={"kind": "kubernetes"}, **TRAIN)


def test_jobs_of_this_machine_are_found_without_the_package_for_clusters():
    script = "import sys; sys.modules['kubernetes'] = None; from edl_horovod.launch import target"
    script += "; [target.find(kind) for kind in target.TARGETS]"
    assert python(script) == ""
