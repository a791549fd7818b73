"""What the verbs about jobs take for a job of this machine, and what for one in a cluster."""

import os

import pytest

from edl_horovod.cli.main import main

VERBS = {
    "status": [],
    "dashboard": ["--port", "0"],
    "logs": [],
    "events": [],
    "report": [],
    "wait": ["--timeout", "0"],
    "scale": ["--np", "2"],
    "stop": [],
    "resume": [],
    "delete": ["-y"],
}


@pytest.fixture(autouse=True)
def _nothing_else_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", os.devnull)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("dashboard", "delete")])
def test_what_no_job_in_a_cluster_can_be_called_is_a_directory(capsys, verb):
    for name in ("model.jb", "No_name", "records/train", "x" * 100):
        assert main([verb, name, *VERBS[verb]]) == 2

        assert f"config.yaml in {name}," in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_a_name_without_a_directory_is_one_in_a_cluster(tmp_path, capsys, verb):
    (tmp_path / "mnist").mkdir()  # A folder that is no job does not hide a job in a cluster.

    assert main([verb, "mnist", *VERBS[verb]]) == 11

    assert "'mnist' here" in capsys.readouterr().err


def test_list_without_a_cluster_shows_this_machine_alone(capsys):
    assert main(["list"]) == 0
    header = "PLACE JOB STATE RANKS STEP AGE MESSAGE"
    assert capsys.readouterr().out.split() == header.split()
    assert main(["list", "-A"]) == 11
    assert main(["list", ".", "-n", "ml"]) == 2
