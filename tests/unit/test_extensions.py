"""Tables to which installed packages may add."""

import os
import sys

import pytest

from edl_horovod.errors import ConfigError
from edl_horovod.extensions import Table, module_of
from tests.programs import run_python


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package that has some entry points, as an installer would leave it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(package, text):
        folder = tmp_path / f"{package}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(text)

    return add


def test_a_package_adds_to_what_is_built_in(install):
    install("more", "[edl_horovod.shapes]\ncircle = math:tau\n")
    table = Table("shapes", {"square": 4})
    assert "circle" in table
    assert [*table] == ["square", "circle"]
    assert table["circle"] == pytest.approx(6.283, abs=1e-3)
    assert dict(table).keys() == {"square", "circle"}
    assert "triangle" not in table
    assert table.get("triangle") is None


def test_modules_are_not_imported_before_they_are_used(install):
    install("more", "[edl_horovod.displays_of_it]\nboard = no.such.module\n")
    assert Table("displays_of_it", {}, load=module_of)["board"] == "no.such.module"


def test_what_cannot_be_loaded_is_an_error_that_names_the_package(install, caplog):
    install("broken-package", "[edl_horovod.shapes]\ncircle = no_such_module:circle\n")
    with pytest.raises(ConfigError, match="broken-package") as caught:
        Table("shapes", {})["circle"]
    assert "no_such_module" in str(caught.value)
    # It keeps nobody from the others.
    assert Table("shapes", {"square": 4}).loaded() == {"square": 4}
    assert "broken-package" in caplog.text


def test_a_task_of_another_package_takes_no_built_in_verb(install, tmp_path):
    install("more", "[edl_horovod.tasks]\nevents = math:tau\n")
    code = "from edl_horovod.config.tasks import TASKS; from edl_horovod.cli.main import main"
    code += "; assert 'events' in TASKS; raise SystemExit(main(['events']))"
    run = run_python("-c", code, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert run.returncode == ConfigError.exit_code
    assert "JOB" in run.stderr


def test_a_built_in_name_stays_which_a_look_at_other_packages_tells(install, caplog):
    install("more", "[edl_horovod.shapes]\nsquare = math:tau\ncircle = math:pi\n")
    table = Table("shapes", {"square": 4})
    assert table["square"] == 4
    assert "square" in table
    assert caplog.text == ""
    assert [*table] == ["square", "circle"]
    assert table["square"] == 4
    assert "adds 'square'" in caplog.text
