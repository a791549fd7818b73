import os
import signal
import subprocess
import sys

import pytest

from edl_horovod.supervisor.plan import Command
from edl_horovod.supervisor.processes import Child, Memory, exit_text, what_killed

LIMIT_SECONDS = 20.0


def test_a_killed_process_is_told_with_its_memory_and_what_to_lower():
    code = "import signal; x = bytearray(300 << 20); print('there', flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"there\n"
        memory = Memory(process.pid)
        memory.look()
        process.kill()
        process.wait(LIMIT_SECONDS)
    text = what_killed(process.returncode, memory)
    assert text.startswith("It was killed by SIGKILL: most likely memory ran out")
    for key in ("0.3 GiB", "train.batch_size", "data_plan.shuffle_window", "launch.np"):
        assert key in text


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGBUS, "/dev/shm, is full"),
        (signal.SIGILL, "lacks instructions"),
        (signal.SIGSEGV, "is in the log"),
        (signal.SIGHUP, "somebody, or another program, sent it"),
        (signal.SIGRTMIN + 1, "It was ended by signal 35"),
    ],
)
def test_each_signal_has_its_likely_cause(number, said):
    assert said in what_killed(-number, Memory(os.getpid()))


def test_an_exit_code_is_no_signal():
    assert what_killed(3, Memory(os.getpid())) == ""
    assert exit_text(3) == "3"
    assert exit_text(-9) == "SIGKILL"


def test_a_process_that_is_gone_has_the_memory_that_was_seen():
    memory = Memory(2**22 + 1)
    memory.look()
    assert "not seen" in str(memory)


@pytest.mark.parametrize(
    ("error", "num_pointers"),
    [
        ("OSError(24, 'Too many open files')", 1),
        ("OSError(28, 'No space left on device', '/dev/shm/x')", 1),
        ("ImportError('libnccl.so.2: cannot open shared object file')", 1),
        ("OSError(5, 'Input/output error')", 0),
        ("ImportError('cannot import name x from model')", 0),
    ],
)
def test_an_error_of_the_environment_points_to_the_doctor(tmp_path, error, num_pointers):
    command = Command(argv=(sys.executable, "-S", "-c", f"raise {error}"))
    child = Child(command, tmp_path / "log")
    try:
        assert child.wait(LIMIT_SECONDS)
        assert child.last_words().count("edl doctor") == num_pointers
    finally:
        child.close()
