"""`edl prepare` with real processes and ranks: equal results, deaths, Ctrl-C, going on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edl_horovod.records.reader import Reader
from edl_horovod.supervisor.plan import locate
from tests.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
NUM_FILES = 60
WORKER = "edl_horovod.preparation.worker"
FUNCTION = """
import os, signal, sys, time
from pathlib import Path

def prepare_data_for_a_single_file(filename):
    print("a message of the function")
    assert sys.stdin.read() == ""
    text = Path(filename).read_text()
    if text == "slow":
        time.sleep(0.2)
    if text == "fork":
        if not os.fork():
            signal.pause()
    if text in ("killed", "fork"):
        os.kill(os.getpid(), signal.SIGKILL)
    return os.path.basename(filename).encode() * 100
"""
MPIRUN = (locate("mpirun"), "--oversubscribe", "--bind-to", "none")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(REPOSITORY),
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(NUM_FILES):
        (tmp_path / "in" / f"{number:02d}").write_text("fine")
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "names.py").write_text(FUNCTION)
    return tmp_path


def command(folder: Path, *settings: str) -> list[str]:
    keys = {text.partition("=")[0] for text in settings}
    defaults = {
        "data": f"{folder}/in",
        "output": f"{folder}/out",
        "model_zoo": f"{folder}/zoo",
        "model_def": "names",
        "files_per_group": "4",
    }
    settings += tuple(f"{key}={value}" for key, value in defaults.items() if key not in keys)
    return [sys.executable, "-m", "edl_horovod", "prepare", *settings]


def start(*argv: str) -> subprocess.Popen:
    return subprocess.Popen(
        argv,
        cwd=REPOSITORY,
        env=ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def run(*argv: str, seconds: float = 120) -> subprocess.CompletedProcess:
    process = start(*argv)
    try:
        printed, errors = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return subprocess.CompletedProcess(argv, process.returncode, printed, errors)


def succeed(*argv: str) -> subprocess.CompletedProcess:
    done = run(*argv)
    assert done.returncode == 0, done.stderr
    return done


def contents(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in output.iterdir()}


def workers(parent: int) -> list[int]:
    """The pool's processes of a run, by their parent."""
    lines = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent_of = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            is_worker = WORKER.encode() in (path / "cmdline").read_bytes()
        except OSError:
            continue
        if is_worker and parent_of == parent:
            lines.append(int(path.name))
    return lines


def num_groups_done(folder: Path) -> int:
    lines = folder / "out.partial" / "groups.jsonl"
    return len(lines.read_text().splitlines()) if lines.exists() else 0


@pytest.mark.long
def test_one_process_two_and_ranks_give_the_same_bytes(folder):
    succeed(*command(folder, f"output={folder}/one", "processes=1"))
    two = succeed(*command(folder, f"output={folder}/two", "processes=2"))
    ranks = succeed(*MPIRUN, "-n", "3", *command(folder, f"output={folder}/ranks", "launch=mpi"))
    assert contents(folder / "two") == contents(folder / "one")
    assert contents(folder / "ranks") == contents(folder / "one")
    assert len(list((folder / "one").glob("*.recordio"))) == NUM_FILES / 4
    for done in (two, ranks):
        assert done.stdout.count(f"records: {NUM_FILES}\n") == 1
        assert done.stdout.count("output files: 15\n") == 1
    assert "a message" not in two.stdout
    assert two.stderr.count("a message of the function") == NUM_FILES


@pytest.mark.long
@pytest.mark.parametrize("text", ["killed", "fork"])
def test_a_process_that_is_killed_is_named_with_its_file_and_the_rest_is_kept(folder, text):
    (folder / "in" / "49").write_text(text)
    died = run(*command(folder, "processes=2", "shuffle=false"))
    assert died.returncode == 1, died.stderr
    assert "Traceback" not in died.stderr
    assert f"SIGKILL at {folder}/in/49 (file 2 of 4 " in died.stderr
    assert "fewer processes" in died.stderr
    assert "of 15 groups" in died.stderr
    assert num_groups_done(folder) >= 11
    (folder / "in" / "49").write_text("fine")
    again = succeed(*command(folder, "processes=2", "shuffle=false"))
    assert "Continuing: 1" in again.stderr
    with Reader.open(str(folder / "out")) as reader:
        assert [int(record[:2]) for record in reader] == list(range(NUM_FILES))


@pytest.mark.long
def test_ctrl_c_leaves_no_process_and_the_same_command_goes_on(folder):
    for file in (folder / "in").iterdir():
        file.write_text("slow")
    process = start(*command(folder, "processes=2"))
    wait_until(lambda: num_groups_done(folder) >= 2, "two groups done")
    pids = workers(process.pid)
    assert len(pids) == 2
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "same command" in errors
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not (folder / "out").exists()
    for_sure = num_groups_done(folder)
    done = succeed(*command(folder, "processes=2"))
    assert f": {for_sure} of 15 groups" in done.stderr
    assert f"records: {NUM_FILES}\n" in done.stdout


@pytest.mark.long
def test_a_killed_run_takes_its_processes_along_and_the_same_command_goes_on(folder):
    for file in (folder / "in").iterdir():
        file.write_text("slow")
    process = start(*command(folder, "processes=2"))
    wait_until(lambda: num_groups_done(folder) >= 2, "two groups done")
    pids = workers(process.pid)
    process.kill()
    process.communicate(timeout=30)
    wait_until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the end of the workers"
    )
    assert len(pids) == 2
    assert "Continuing: " in succeed(*command(folder, "processes=2")).stderr
    with Reader.open(str(folder / "out")) as reader:
        assert sorted(int(record[:2]) for record in reader) == list(range(NUM_FILES))


@pytest.mark.long
def test_killed_ranks_and_the_same_command_goes_on(folder):
    for file in list((folder / "in").iterdir())[:40]:
        file.write_text("slow")
    argv = (*MPIRUN, "-n", "3", *command(folder, "launch=mpi"))
    process = start(*argv)
    wait_until(lambda: num_groups_done(folder) >= 2, "two groups done")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    done = run(*argv)
    assert done.returncode == 0, done.stderr
    assert "Continuing: " in done.stderr
    with Reader.open(str(folder / "out")) as reader:
        assert sorted(int(record[:2]) for record in reader) == list(range(NUM_FILES))


@pytest.mark.long
def test_an_error_under_mpirun_is_said_once_and_ends_all_ranks(folder):
    (folder / "zoo" / "names.py").write_text("import no_such_package\n")
    done = run(*MPIRUN, "-n", "3", *command(folder, "launch=mpi"))
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("names.py:1: ModuleNotFoundError") == 1
    assert not (folder / "out.partial").exists()


def test_a_script_without_a_guard_prepares(folder):
    script = folder / "script.py"
    script.write_text(
        "import edl_horovod\n"
        f"result = edl_horovod.prepare(data={str(folder / 'in')!r},\n"
        f"    output={str(folder / 'out')!r}, model_zoo={str(folder / 'zoo')!r},\n"
        "    model_def='names', processes=2)\n"
        "print(result.num_records)\n"
    )
    assert succeed(sys.executable, str(script)).stdout == f"{NUM_FILES}\n"
