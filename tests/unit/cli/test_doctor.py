"""`edl doctor` on machines with and without what jobs need."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from edl_horovod.cli.main import main
from edl_horovod.cli.verbs.doctor import CHECKS
from edl_horovod.errors import ConfigError, Interrupted
from edl_horovod.health import Check
from tests import programs
from tests.ports import free_port
from tests.waiting import is_running, wait_until

FAILED = 1


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without programs, cluster or builder; gives a writer of programs."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return programs.writer(tmp_path / "bin", monkeypatch)


@pytest.fixture
def findings(capsys):
    """Run some checks; gives the exit code and what was found."""

    def run(*words):
        code = main(["doctor", *words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def failure(findings):
    """Run a check that fails; gives its one finding."""

    def run(name):
        code, (finding,) = findings(name)
        assert (code, finding["level"]) == (FAILED, "FAIL")
        return finding

    return run


def test_a_machine_without_a_cluster_slurm_or_gpu_is_well(machine, findings):
    code, results = findings("python", "package", "disk", "cluster", "slurm", "gpu")

    assert code == 0
    levels = {finding["check"]: finding["level"] for finding in results}
    assert levels.keys() == {"python", "package", "disk", "cluster", "slurm", "gpu"}
    assert {levels["python"], levels["package"]} == {"OK"}
    assert {levels["cluster"], levels["slurm"], levels["gpu"]} == {"NONE"}


def test_what_does_not_work_comes_with_its_fix(machine, failure):
    assert "DOCKER_HOST" in failure("images")["fix"]


def test_what_was_not_asked_for_is_a_warning(machine, findings, monkeypatch):
    monkeypatch.setattr(CHECKS, "data", {"images": CHECKS["images"]})
    monkeypatch.setattr(CHECKS, "built_in", frozenset())

    code, results = findings()

    levels = {finding["check"]: finding["level"] for finding in results}
    assert (code, levels["images"]) == (0, "WARN")


def test_gpus_are_listed_and_a_broken_driver_fails_only_where_it_was_asked_for(
    machine, findings, failure
):
    machine("nvidia-smi", "echo 'NVIDIA H100, 580.1'; echo 'NVIDIA H100, 580.1'")
    code, results = findings("gpu")
    gpus = [finding["text"] for finding in results if "NCCL" not in finding["text"]]
    assert (code, gpus) == (0, ["NVIDIA H100, 580.1"] * 2)

    machine("nvidia-smi", "echo 'driver/library version mismatch'; exit 18")
    assert "version mismatch" in failure("gpu")["text"]


@pytest.fixture
def half(tmp_path, monkeypatch):
    """Puts a framework and its half of Horovod on the path; gives a writer of its library."""
    for package in ("torch", "safetensors", "horovod", "horovod/torch"):
        (tmp_path / "site" / package).mkdir(parents=True)
        (tmp_path / "site" / package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    for name in ("torch", "safetensors", "horovod"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return (tmp_path / "site" / "horovod" / "torch" / "mpi_lib.so").write_bytes


@pytest.mark.parametrize(
    ("library", "level"), [(b"..ncclCommInitRank..", "OK"), (b"..MPI_Allreduce..", "WARN")]
)
def test_gpus_without_nccl_in_horovod_are_told(machine, findings, half, library, level):
    machine("nvidia-smi", "echo 'NVIDIA H100, 580.1'")
    half(library)

    _, results = findings("gpu")

    assert level in {finding["level"] for finding in results if "torch" in finding["text"]}


def test_half_an_mpi_fails_where_it_was_asked_for(machine, failure, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "site" / "mpi4py").mkdir(parents=True)
    (tmp_path / "site" / "mpi4py" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    assert "mpirun" in failure("mpi")["text"]


def test_shared_memory_that_is_full_is_told(findings, monkeypatch):
    usage = shutil.disk_usage("/")._replace(total=1 << 40, free=1 << 20)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)

    _, results = findings("disk")

    (shared,) = [finding for finding in results if "/dev/shm" in finding["text"]]
    assert (shared["level"], "1 MB free" in shared["text"]) == ("WARN", True)


def test_partitions_of_slurm_are_listed_and_one_that_does_not_answer_fails(
    machine, findings, failure
):
    machine("sinfo", "echo 'all* up 2'")
    _, (finding,) = findings("slurm")
    assert "all* up 2" in finding["text"]

    machine("sinfo", "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1")
    assert "to contact" in failure("slurm")["text"]


def test_few_open_files_are_told(machine, findings):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        _, (finding,) = findings("files")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (finding["level"], "ulimit -n" in finding["fix"]) == ("WARN", True)


KUBECONFIG = """
current-context: CURRENT
contexts:
- {name: acme-prod, context: {cluster: acme-cluster, user: alice, namespace: acme-space}}
clusters: [{name: acme-cluster, cluster: {server: 'http://127.0.0.1:9'}}]
users: [{name: alice, user: {}}]
"""


@pytest.fixture
def kubeconfig(machine, tmp_path, monkeypatch):
    """Gives a writer of the kubeconfig."""
    (tmp_path / "acme").mkdir()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "acme" / "config"))
    return (tmp_path / "acme" / "config").write_text


def test_a_cluster_that_does_not_answer_fails_where_it_was_asked_for(kubeconfig, failure):
    kubeconfig(KUBECONFIG.replace("CURRENT", "acme-prod"))

    finding = failure("cluster")

    assert "127.0.0.1:9" in finding["text"]
    assert "edl doctor" not in finding["text"] + finding["fix"], "it runs already"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (KUBECONFIG.replace("CURRENT", "acme-pro"), "such context"),
        ("contexts: [}", "be read"),
        (KUBECONFIG.replace("CURRENT", "acme-prod").replace("name: alice", "name: bob"), "cannot"),
    ],
    ids=["unknown context", "no YAML", "no user"],
)
def test_a_kubeconfig_that_cannot_be_used_fails(kubeconfig, findings, text, said):
    kubeconfig(text)

    code, results = findings("cluster", "rights")

    assert (code, [finding["level"] for finding in results]) == (FAILED, ["FAIL", "FAIL"])
    assert said in results[0]["text"]


@pytest.mark.parametrize(
    ("current", "flags"),
    [("acme-pro", []), ("acme-prod", ["--context=acme-prods", "-n", "acme-lab"])],
)
def test_a_report_names_nothing_of_the_kubeconfig(kubeconfig, capsys, current, flags):
    kubeconfig(KUBECONFIG.replace("CURRENT", current))
    main(["doctor", "cluster", "pods", *flags, "--report"])
    printed = capsys.readouterr().out
    assert "FAIL" in printed
    assert "acme" not in printed


def test_a_report_names_neither_a_context_without_a_kubeconfig_nor_the_host_of_the_builder(
    machine, monkeypatch, capsys
):
    monkeypatch.setenv("DOCKER_HOST", "tcp://build7.corp.invalid:2375")
    main(["doctor", "cluster", "images", "--context=acme-prod", "--report"])
    printed = capsys.readouterr().out
    assert "FAIL  images" in printed
    assert "acme" not in printed
    assert "build7" not in printed


def test_a_broken_kubeconfig_is_not_quoted(kubeconfig, findings):
    kubeconfig("users: [{user: {token: sesame-1 }]\n")
    _, (finding,) = findings("cluster")
    assert "line 1" in finding["text"]
    assert "sesame" not in finding["text"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["python", "--image-repository=registry.example/zoo:tag"], "zoo:tag"),
        (["rings"], "ring"),
        (["--json", "--report"], "--report"),
    ],
)
def test_what_cannot_be_asked_is_an_error_of_the_command(machine, capsys, words, named):
    assert main(["doctor", *words]) == ConfigError.exit_code
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["python"], ["registry"]])
def test_a_repository_asks_for_the_check_of_the_registry(machine, findings, monkeypatch, words):
    checks = {name: CHECKS[name] for name in ("python", "registry")}
    monkeypatch.setattr(CHECKS, "data", checks)
    monkeypatch.setattr(CHECKS, "built_in", frozenset())

    code, results = findings(*words, f"--image-repository=127.0.0.1:{free_port()}/zoo")

    levels = [finding["level"] for finding in results if finding["check"] == "registry"]
    assert (code, levels) == (FAILED, ["FAIL"])


def test_lines_begin_with_their_level(machine, capsys):
    main(["doctor", "python", "images"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("OK    python")
    assert lines[1].startswith("FAIL  images")
    assert lines[2].strip().startswith("fix: ")


def test_all_checks_are_named_in_the_help(capsys):
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert all(name in printed for name in ("ring", "disk", "cluster"))


@pytest.fixture
def found(findings, tmp_path, monkeypatch):
    """Install a version of kubernetes; gives what is found about it."""

    def install(version):
        folder = tmp_path / f"kubernetes-{version}.dist-info"
        folder.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: kubernetes\nVersion: {version}\n"
        (folder / "METADATA").write_text(metadata)
        monkeypatch.syspath_prepend(str(tmp_path))
        _, results = findings("versions")
        return [entry for entry in results if "kubernetes" in entry["text"]]

    return install


def test_a_package_outside_the_range_of_the_metadata_is_told(findings, found):
    assert findings("versions")[1][0]["level"] == "OK", (
        "these tests' packages are within the ranges"
    )

    (warning,) = found("1.0")
    assert warning["level"] == "WARN"
    assert "1.0" in warning["text"]
    assert "'.[kubernetes]'" in warning["fix"]


def test_a_prerelease_within_the_range_of_the_metadata_is_well(found):
    assert found("99.0rc1") == []


@pytest.fixture
def add(tmp_path, monkeypatch):
    """Adds a check, as another package does, by the text of its function."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, text, **options):
        (tmp_path / f"check_of_{name}.py").write_text(text)
        monkeypatch.setitem(CHECKS.data, name, Check(f"check_of_{name}", "check", **options))

    return write


BARRIER = """
from tests.unit.cli.meeting import POINT
from edl_horovod.health import Finding

def check(scope):
    POINT.wait(30)
    yield Finding("OK", "met the other one")
"""


def test_checks_run_side_by_side(add, findings, monkeypatch):
    meeting = type(sys)("tests.unit.cli.meeting")
    meeting.POINT = threading.Barrier(2)
    monkeypatch.setitem(sys.modules, "tests.unit.cli.meeting", meeting)
    add("first", BARRIER)
    add("second", BARRIER)

    code, results = findings("first", "second")

    assert (code, [finding["level"] for finding in results]) == (0, ["OK", "OK"])


HANGING = """
import time
from edl_horovod.health import Finding

def check(scope):
    yield Finding("OK", "so far")
    time.sleep(60)
"""


def test_a_check_that_hangs_is_given_up_and_the_others_are_shown(add, findings):
    add("hanging", HANGING, seconds=0.2)

    code, results = findings("hanging", "python")

    levels = [(finding["check"], finding["level"]) for finding in results]
    assert levels == [("hanging", "OK"), ("hanging", "FAIL"), ("python", "OK")]
    assert code == FAILED


RAISING = "def check(scope):\n    raise KeyError('no such thing')\n    yield\n"


def test_a_check_with_a_mistake_of_its_own_is_a_finding(add, failure):
    add("raising", RAISING)
    assert "no such" in failure("raising")["text"]


PROGRAM = """
import sys
from pathlib import Path

def check(scope):
    text = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    scope.programs.run([sys.executable, "-c", text], seconds=600)
    return iter(())
"""
RUN = """
import sys
from edl_horovod.cli.main import main
from edl_horovod.cli.verbs.doctor import CHECKS
from edl_horovod.health import Check
CHECKS["waiting"] = Check("check_of_waiting", "check", 600)
sys.exit(main(["doctor", "waiting"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_the_programs_of_its_checks(tmp_path, number):
    (tmp_path / "check_of_waiting.py").write_text(PROGRAM)
    variables = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.getcwd()}"}
    command = [sys.executable, "-c", RUN]
    doctor = subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=subprocess.PIPE)
    with doctor:
        pid = tmp_path / "pid"
        wait_until(lambda: pid.exists() and pid.read_text())
        doctor.send_signal(number)
        assert doctor.wait(30) == Interrupted.exit_code

    wait_until(lambda: not is_running(int(pid.read_text())))


def test_the_handler_of_signals_is_as_before(machine):
    before = signal.getsignal(signal.SIGTERM)
    main(["doctor", "package"])
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_report_is_a_block_without_the_name_of_this_user(machine, monkeypatch, capsys):
    monkeypatch.setenv("LOGNAME", "zenobia")
    monkeypatch.setenv("DOCKER_HOST", "unix:///srv/zenobia/docker.sock")

    assert main(["doctor", "python", "images", "--report"]) == FAILED

    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["### edl doctor", "", "```text"]
    assert lines[3].startswith("OK    python")
    assert "/srv/USER/" in lines[4]
    assert lines[-1] == "```"
