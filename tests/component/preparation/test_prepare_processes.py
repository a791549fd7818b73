"""The pool's processes: they are signalled only while their numbers are their own."""

import contextlib
import os
from pathlib import Path

import pytest

from edl_horovod.errors import JobFailed
from edl_horovod.preparation.groups import GroupSettings
from edl_horovod.preparation.pools import ProcessPool
from tests.waiting import is_running, wait_until

pytestmark = pytest.mark.timeout(120)

FUNCTION = """
def prepare_data_for_a_single_file(filename):
    return b""
"""


@pytest.fixture
def pool(tmp_path):
    """A pool of one process for a model file."""

    def make(source: str) -> ProcessPool:
        (tmp_path / "model.py").write_text(source)
        settings = GroupSettings(
            model_zoo=str(tmp_path),
            model_def="model",
            folder=str(tmp_path),
            prefix="part",
            records_per_shard=10,
            bytes_per_shard=1 << 20,
            codec="raw",
            max_bad_files=0,
        )
        return ProcessPool(settings, 1)

    return make


@pytest.fixture
def signalled(monkeypatch):
    """For each signal to a group, whether its leader's number could not be given away by then."""
    are_there: list[bool] = []
    real = os.killpg

    def kill_group(number: int, signal_number: int) -> None:
        are_there.append(Path(f"/proc/{number}").exists())
        real(number, signal_number)

    monkeypatch.setattr(os, "killpg", kill_group)
    return are_there


@pytest.mark.parametrize(
    ("source", "failure"),
    [
        (FUNCTION, contextlib.nullcontext()),
        ("import os; os._exit(3)", pytest.raises(JobFailed, match="ended with 3")),
    ],
    ids=["ended well", "died"],
)
def test_a_process_that_ended_is_not_signalled(pool, signalled, source, failure):
    """Its number may have been given to another process."""
    with failure, pool(source) as running:
        running.source()

    assert signalled == [True]


def test_what_a_dead_process_left_behind_is_killed(pool, tmp_path):
    child = tmp_path / "child"
    source = f"""
import os, pathlib, subprocess
sleeping = subprocess.Popen(["sleep", "600"])
pathlib.Path({str(child)!r}).write_text(str(sleeping.pid))
os._exit(3)
"""
    with pytest.raises(JobFailed, match="ended with 3"), pool(source) as running:
        running.source()

    left = int(child.read_text())
    wait_until(lambda: not is_running(left), f"the end of process {left}")
