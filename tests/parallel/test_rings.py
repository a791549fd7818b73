"""Run the tests of `ranks/` as the ranks of real rings of several sizes."""

import pytest

from tests.frameworks import FRAMEWORKS

TIMEOUT_SECONDS = 900


def _long(framework, *, in_ci):
    return pytest.mark.long if framework.values == (in_ci,) else pytest.mark.further


# Where the test ends the ring itself, it shows what that printed.
@pytest.mark.timeout(TIMEOUT_SECONDS + 60)
@pytest.mark.parametrize(
    ("framework", "size", "which"),
    [
        pytest.param(*framework.values, size, which, marks=[*framework.marks, *marks])
        for framework in FRAMEWORKS
        for size, which, marks in [
            (2, "not long", []),
            (2, "long", [_long(framework, in_ci="keras")]),
            (3, "long or not long", [_long(framework, in_ci="torch")]),
        ]
    ],
)
def test_ring(run_ranks, framework, size, which, tmp_path):
    scratch = tmp_path / "ring"
    scratch.mkdir()
    output, log = run_ranks(
        "rank_tests", size, which, scratch, seconds=TIMEOUT_SECONDS, RING_FRAMEWORK=framework
    )
    # Each rank says so itself; a ring that collected nothing is no success.
    assert output.count(" passed") == size, f"{output}\n{log}"
