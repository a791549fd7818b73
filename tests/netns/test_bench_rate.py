"""The namespace of `make bench-network`: its loopback is held to a rate, the machine's is not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.network import namespace

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, os, subprocess, sys
from benchmarks.network.namespace import Rate, enter, measure_rate, rate_in, set_rate
enter("limited", sys.argv[1:])
found = {"namespace": os.readlink("/proc/self/ns/net")}
for name, rate in (("limited", 1e9), ("free", 0.0)):
    set_rate(Rate(name=name, bits_per_second=rate))
    shown = subprocess.run(["tc", "-j", "qdisc", "show", "dev", "lo"], capture_output=True)
    found[name] = (rate_in(shown.stdout.decode()), measure_rate(0.5))
print(json.dumps(found))
"""


@pytest.fixture(autouse=True)
def _can_be_made():
    if reason := namespace.what_is_missing():
        pytest.skip(reason)


def test_loopback_is_held_to_the_rate_in_the_namespace_alone(tmp_path):
    (tmp_path / "limited.py").write_text(PROGRAM)
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    before = subprocess.check_output(["tc", "qdisc", "show", "dev", "lo"])
    done = subprocess.run(
        [sys.executable, "-m", "limited"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        timeout=60,
        check=True,
    )
    rates = json.loads(done.stdout)
    assert rates["namespace"] != os.readlink("/proc/self/ns/net")
    said, measured = rates["limited"]
    assert said == 1e9
    assert 0.7e9 < measured < 1.1e9
    said, measured = rates["free"]
    assert said == 0.0
    assert measured > 1.2e9
    assert subprocess.check_output(["tc", "qdisc", "show", "dev", "lo"]) == before
