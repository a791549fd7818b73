"""Tests in forked workers: each runs once, and one that ends its process has failed."""

from pathlib import Path

import pytest

from tests.programs import run_python

ROOT = Path(__file__).parents[2]
TESTS = """
import os, time, pathlib, pytest

RUN = pathlib.Path(__file__).parent

@pytest.fixture(scope="module")
def opened():
    with (RUN / f"fixtures-{os.getpid()}").open("a") as file:
        file.write("opened ")
        yield
        file.write("closed ")

@pytest.mark.parametrize("number", range(20))
def test_that_passes(opened, number):
    with (RUN / "run").open("a") as file:
        file.write(f"{__name__}.{number} ")
    time.sleep(0.01)
"""
ENDS, FAILS = (
    "def test_that_ends():\n    os._exit(3)\n",
    "def test_that_fails():\n    assert 1 == 2\n",
)


@pytest.fixture
def run_tests(tmp_path):
    def run(*words, **files):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        command = ["-m", "pytest", "-q", "-p", "tests.workers", "--rootdir", tmp_path]
        ended = run_python(*command, "-c", "/dev/null", *words, tmp_path, cwd=ROOT)
        return ended.returncode, ended.stdout

    return run


@pytest.mark.long
def test_each_test_runs_once_and_a_lost_process_is_a_failure(run_tests, tmp_path):
    code, printed = run_tests(
        "--workers", "2", test_a=TESTS, test_b=TESTS, test_c="import os\n" + ENDS + FAILS
    )
    assert code == 1
    assert "2 failed, 40 passed" in printed
    assert "test_c.py::test_that_ends" in printed
    assert "assert 1 == 2" in printed
    done = (tmp_path / "run").read_text().split()
    assert sorted(done) == sorted(f"test_{a}.{n}" for a in "ab" for n in range(20))
    # What a file's tests share is taken down, in each process, before what another file's share.
    for path in tmp_path.glob("fixtures-*"):
        words = path.read_text().split()
        assert words == ["opened", "closed"] * (len(words) // 2)


def test_no_test_begins_after_the_first_failure_that_is_to_be_the_last(run_tests, tmp_path):
    code, printed = run_tests("--workers", "2", "-x", test_a=FAILS, test_b=TESTS)
    assert code == 1
    assert "1 failed" in printed
    assert not (tmp_path / "run").exists() or len((tmp_path / "run").read_text().split()) < 20
