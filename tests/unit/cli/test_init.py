from pathlib import Path

import pytest

from edl_horovod.cli.main import main
from edl_horovod.config.compose import compose
from edl_horovod.config.conf_files import ConfigFiles
from edl_horovod.errors import OutputError


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_project_is_written_whose_experiments_compose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    project = tmp_path / "project"

    assert main(["init", str(project)]) == 0

    assert {"README.md", "zoo/regression.py", "conf/experiment/first.yaml"} < files(project)
    assert "edl train --config-dir conf +experiment=first" in capsys.readouterr().out
    for path in (project / "conf" / "experiment").iterdir():
        here = ConfigFiles(str(project / "conf"))
        assert compose("train", [f"+experiment={path.stem}"], files=here).model_def == "regression"


def test_an_empty_directory_is_taken(tmp_path: Path):
    assert main(["init", str(tmp_path)]) == 0
    assert (tmp_path / "README.md").exists()


def test_a_directory_that_holds_something_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "mine.txt").write_text("mine")

    assert main(["init", str(tmp_path)]) == OutputError.exit_code

    assert files(tmp_path) == {"mine.txt"}
    assert "this one holds something. Received: DIR=" in capsys.readouterr().err


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    project = tmp_path / "project"

    assert main(["init", str(project), "--dry-run"]) == 0

    assert not project.exists()
    assert f"{project}/conf/experiment/first.yaml" in capsys.readouterr().out
