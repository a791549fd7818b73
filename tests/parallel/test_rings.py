"""Run the tests of `ranks/` as the ranks of real rings of several sizes."""

import sys
from pathlib import Path

import pytest

from edl_horovod.supervisor.plan import locate
from tests.frameworks import FRAMEWORKS
from tests.parallel.programs import run_command

RANKS = Path(__file__).parent / "ranks"
TIMEOUT_SECONDS = 900


# Where the test ends the ring itself, it shows what that printed.
@pytest.mark.timeout(TIMEOUT_SECONDS + 60)
@pytest.mark.parametrize(
    ("framework", "size", "which"),
    [
        pytest.param(*framework.values, size, which, marks=[*framework.marks, *marks])
        for framework in FRAMEWORKS
        for size, which, marks in [
            (2, "not long", []),
            (2, "long", [pytest.mark.long(in_ci=framework.values == ("keras",))]),
            (3, "long or not long", [pytest.mark.long(in_ci=framework.values == ("torch",))]),
        ]
    ],
)
def test_ring(framework, size, which, tmp_path):
    command = [locate("horovodrun"), "-np", str(size), "-H", f"localhost:{size}"]
    command += ["--network-interfaces", "lo", "--gloo"]
    command += [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(RANKS)]
    command += ["-m", which]
    variables = {"RING_FRAMEWORK": framework, "RING_SIZE": str(size), "RING_SCRATCH": str(tmp_path)}
    output, log = run_command(command, TIMEOUT_SECONDS, HOROVOD_ELASTIC="1", **variables)
    # Each rank says so itself; a ring that collected nothing is no success.
    assert output.count(" passed") == size, f"{output}\n{log}"
