import pytest

from edl_horovod.supervisor import plan


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Make programs beside the running Python and on PATH."""
    for name in ("environment", "path"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(plan.sys, "executable", str(tmp_path / "environment" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))

    def make(folder, name="mpirun", mode=0o755):
        path = tmp_path / folder / name
        path.touch()
        path.chmod(mode)
        return str(path)

    return make


def test_a_program_beside_the_running_python_comes_first(place):
    expected = place("environment")
    place("path")
    assert plan.locate("mpirun") == expected


def test_one_that_is_only_on_path_is_taken_from_there(place):
    expected = place("path")
    assert plan.locate("mpirun") == expected


def test_a_file_that_cannot_be_run_is_no_program(place):
    place("environment", mode=0o644)
    expected = place("path")
    assert plan.locate("mpirun") == expected


def test_one_that_is_nowhere_keeps_its_name(place):
    assert plan.locate("mpirun") == "mpirun"
