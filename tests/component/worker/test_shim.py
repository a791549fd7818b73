"""A launched process and the warm worker that takes its place; neither needs a framework."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from edl_horovod.errors import ConfigError
from edl_horovod.job.warm_workers import private_folder, socket_folder
from edl_horovod.worker.stand_in import wait_for_place
from tests.programs import python
from tests.waiting import wait_until

LIMIT_SECONDS = 20.0
WORKER = """
import os, pathlib, signal, sys
from edl_horovod.worker.stand_in import wait_for_place
config, slot = pathlib.Path(sys.argv[1]), int(sys.argv[2])
launched = wait_for_place(config, slot=slot)
print(os.getpid(), slot, launched.variables.get("HOROVOD_RANK"), "SECRET" in launched.variables,
      flush=True)
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
launched.follow()
print("complaint", file=sys.stderr, flush=True)
end = sys.argv[3]
if end == "sleep":
    signal.pause()
launched.report_exit(int(end))
"""


def catches(process, number):
    """Whether a process has a handler of a signal."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (number - 1) & 1


@pytest.fixture
def config(tmp_path):
    # Longer than the name of a socket may be.
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    return folder / "config.yaml"


@pytest.fixture
def processes():
    started = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def warm(config, processes):
    """Start a worker that waits; `end` is its exit code, or "sleep"."""

    def start(slot=0, end=0):
        argv = [sys.executable, "-c", WORKER, str(config), str(slot), str(end)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        processes.append(process)
        wait_until(lambda: (socket_folder(config) / f"{slot}-{process.pid}.sock").exists())
        return process

    return start


@pytest.fixture
def launch(config, processes):
    def start(slot=0):
        variables = {**os.environ, "HOROVOD_RANK": "3", "HOROVOD_LOCAL_RANK": str(slot)}
        argv = [sys.executable, "-m", "edl_horovod.worker.shim", "--config", str(config)]
        process = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**variables, "SECRET": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        processes.append(process)
        return process

    return start


@pytest.mark.long(after=1)
@pytest.mark.parametrize("code", [0, 5])
def test_a_warm_worker_takes_the_place_with_its_variables_and_output(warm, launch, code):
    worker = warm(end=code)
    shim = launch()
    printed, complaint = shim.communicate(timeout=LIMIT_SECONDS)
    assert shim.returncode == code
    assert printed == f"{worker.pid} 0 3 False\n"
    assert complaint == "complaint\n"


@pytest.fixture
def placed(warm, launch):
    """A warm worker in the place of a launched process, and that process."""
    worker, shim = warm(end="sleep"), launch()
    assert shim.stdout.readline().startswith(str(worker.pid))
    return worker, shim


def test_signals_reach_the_worker_and_its_end_is_the_launched_ones(placed):
    worker, shim = placed
    shim.stderr.readline()
    wait_until(lambda: catches(shim, signal.SIGTERM))
    shim.send_signal(signal.SIGTERM)
    assert shim.wait(LIMIT_SECONDS) == 143
    assert worker.wait(LIMIT_SECONDS) == 143


@pytest.mark.parametrize(("killed", "exit_code"), [(0, 137), (1, 1)], ids=["worker", "launched"])
def test_one_that_is_killed_ends_the_other(placed, killed, exit_code):
    placed[killed].kill()
    assert placed[1 - killed].wait(LIMIT_SECONDS) == exit_code


@pytest.mark.long
def test_each_takes_one_and_its_own_slots_first(warm, launch):
    workers = [warm(slot) for slot in (0, 1)]
    printed = {slot: launch(slot).communicate(timeout=LIMIT_SECONDS)[0].split() for slot in (1, 0)}
    assert {slot: int(words[0]) for slot, words in printed.items()} == {
        slot: worker.pid for slot, worker in enumerate(workers)
    }


def test_any_slots_worker_is_better_than_none(warm, launch):
    worker = warm(slot=2)
    assert launch(slot=0).communicate(timeout=LIMIT_SECONDS)[0].startswith(str(worker.pid))


def test_without_a_warm_worker_it_becomes_a_cold_one(warm, launch, config):
    worker = warm()
    worker.kill()  # Its socket is left behind.
    worker.wait()
    shim = launch()
    _, complaint = shim.communicate(timeout=LIMIT_SECONDS)
    assert " cold" in complaint
    assert str(config) in complaint  # The worker's own complaint: there is no such file.
    assert shim.returncode == 2


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    "said", [b"", b"rubbish\n", b"{}\n", b'{"variables": {}}\n', b"x" * 100_000]
)
def test_who_speaks_otherwise_takes_no_place(warm, launch, config, said):
    worker = warm()
    folder = os.open(socket_folder(config), os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(f"/proc/self/fd/{folder}/0-{worker.pid}.sock")
        try:
            other.sendall(said)
            other.shutdown(socket.SHUT_WR)
            assert other.recv(100) == b""
        except OSError:
            pass
    os.close(folder)
    assert launch().communicate(timeout=LIMIT_SECONDS)[0].startswith(str(worker.pid))


def test_the_folder_is_its_owners_alone(config):
    folder = private_folder(socket_folder(config))
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]
    folder.chmod(0o755)
    with pytest.raises(ConfigError, match="owner"):
        wait_for_place(config, slot=0)


def test_it_imports_nothing_heavy():
    code = "import edl_horovod.worker.shim, sys; print(*sys.modules)"
    heavy = {"numpy", "tensorflow", "yaml", "asyncio", "horovod", "edl_horovod.config"}
    assert not heavy & set(python(code).split())
