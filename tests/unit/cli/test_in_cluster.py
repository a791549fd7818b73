"""Verbs of jobs in a cluster, given what can be no such job's name; no cluster is asked."""

import os
from pathlib import Path

import pytest

from edl_horovod.cli.main import main

VERBS = {
    "logs": "/logs/",
    "events": "/events.jsonl",
    "wait": "edl status",
    "stop": "launcher.pid",
    "resume": "resume=auto",
    "delete": "rm -r",
}


@pytest.fixture(autouse=True)
def _nothing_else_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", os.devnull)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.mark.parametrize("name", ["model.job", "./model.job/", "digits"])
@pytest.mark.parametrize(("verb", "instead"), VERBS.items())
def test_the_directory_of_a_job_here_is_told_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, instead: str, name: str
) -> None:
    job_dir = tmp_path / name
    job_dir.mkdir()
    (job_dir / "events.jsonl").touch()

    assert main([verb, name]) == 2

    message = capsys.readouterr().err
    assert f"{Path(name)} is the directory of a job on this machine" in message
    assert f"Received: NAME={name!r}" in message
    assert instead in message
    assert job_dir.is_dir()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ["model.jb", "No_name", "records/train", "x" * 300])
def test_what_cannot_be_a_name_is_told_before_a_cluster_is_looked_for(
    capsys: pytest.CaptureFixture[str], verb: str, name: str
) -> None:
    assert main([verb, name]) == 2

    message = capsys.readouterr().err
    assert f"edl {verb} takes the name of a job in a cluster" in message
    assert f"Received: NAME={name!r}" in message
    assert "edl list shows the names" in message


def test_a_folder_that_is_no_job_does_not_hide_a_job_in_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mnist").mkdir()

    assert main(["logs", "mnist"]) == 11

    assert "directory of a job" not in capsys.readouterr().err


@pytest.mark.parametrize("verb", [["status"], ["scale", "--np", "2"], ["dashboard"]])
def test_a_directory_that_is_not_there_is_told_where_there_is_no_cluster(
    capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    assert main([*verb, "digits"]) == 11

    assert "There is no directory 'digits' here, so it is taken for" in capsys.readouterr().err
