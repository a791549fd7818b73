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


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        ([("environment", 0o755), ("path", 0o755)], "environment"),
        ([("path", 0o755)], "path"),
        ([("environment", 0o644), ("path", 0o755)], "path"),
        ([], None),
    ],
    ids=["beside Python", "only on PATH", "one that cannot be run", "nowhere"],
)
def test_a_program_beside_the_running_python_comes_before_path(place, programs, expected):
    paths = {folder: place(folder, mode=mode) for folder, mode in programs}
    assert plan.locate("mpirun") == paths.get(expected, "mpirun")
