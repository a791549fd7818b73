"""`edl doctor` on machines with and without what jobs need."""

import json
import resource

import pytest

from edl_horovod.cli.main import main
from edl_horovod.errors import ConfigError, MissingDependency
from tests import programs


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without programs, cluster or builder; gives a writer of programs."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    return programs.writer(tmp_path / "bin", monkeypatch)


@pytest.fixture
def findings(capsys):
    """Run some checks; gives the exit code and what was found."""

    def run(*words):
        code = main(["doctor", *words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def test_a_machine_without_a_cluster_slurm_or_gpu_is_well(machine, findings):
    code, found = findings("python", "package", "disk", "cluster", "slurm", "gpu")

    assert code == 0
    assert {"python", "package", "disk", "cluster", "slurm", "gpu"} == {it["check"] for it in found}
    assert {it["level"] for it in found if it["check"] != "disk"} == {"OK"}


def test_what_does_not_work_comes_with_its_fix(machine, findings):
    code, (found,) = findings("images")

    assert code == 0
    assert found["level"] == "WARN"
    assert "DOCKER_HOST" in found["fix"]


def test_gpus_are_listed_and_a_broken_driver_fails_only_where_it_was_asked_for(machine, findings):
    machine("nvidia-smi", "echo 'NVIDIA H100, 580.1'; echo 'NVIDIA H100, 580.1'")
    code, found = findings("gpu")
    assert (code, [it["text"] for it in found]) == (0, ["NVIDIA H100, 580.1"] * 2)

    machine("nvidia-smi", "echo 'driver/library version mismatch'; exit 18")
    code, (found,) = findings("gpu")
    assert code == MissingDependency.exit_code
    assert "version mismatch" in found["text"]


def test_partitions_of_slurm_are_listed(machine, findings):
    machine("sinfo", "echo 'all* up 2'")
    _, (found,) = findings("slurm")
    assert "all* up 2" in found["text"]


def test_few_open_files_are_told(machine, findings):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        _, (found,) = findings("files")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (found["level"], "ulimit -n" in found["fix"]) == ("WARN", True)


def test_a_cluster_that_does_not_answer_is_no_reason_to_fail_but_where_it_was_asked_for(
    machine, tmp_path, monkeypatch, capsys, findings
):
    (tmp_path / "config").write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\n"
        "contexts: [{name: a, context: {cluster: a, user: a}}]\n"
        "clusters: [{name: a, cluster: {server: 'http://127.0.0.1:9'}}]\n"
        "users: [{name: a, user: {}}]\n"
    )
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))

    code, (found,) = findings("cluster")

    assert (code, found["level"]) == (MissingDependency.exit_code, "FAIL")
    assert "127.0.0.1:9" in found["text"]


def test_a_check_that_does_not_exist_is_refused(capsys):
    assert main(["doctor", "rings"]) == ConfigError.exit_code
    assert "ring" in capsys.readouterr().err


def test_lines_begin_with_their_level(machine, capsys):
    main(["doctor", "python", "images"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("OK    python")
    assert lines[1].startswith("WARN  images")
    assert lines[2].strip().startswith("fix: ")


def test_all_checks_are_named_in_the_help(capsys):
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert all(name in printed for name in ("ring", "disk", "cluster"))
