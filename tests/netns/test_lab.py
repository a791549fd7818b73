"""Runs that share a machine do not get in each other's way."""

import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.netns import lab

pytestmark = pytest.mark.root


def test_what_a_dead_run_left_is_removed_by_several_at_once(can_have_hosts):
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as run:
        names = [f"{lab.PREFIX}{run.pid}-h{number}" for number in range(10)]
        for name in names:
            lab.ip("netns", "add", name)
    with ThreadPoolExecutor() as others:
        for removed in [others.submit(lab.remove_what_dead_runs_left) for _ in range(4)]:
            removed.result()
    assert not {path.name for path in lab.NAMESPACES.iterdir()} & set(names)
