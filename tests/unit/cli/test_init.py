import shutil
import stat
from pathlib import Path

from edl_horovod.cli.main import main
from edl_horovod.cli.verbs import init
from edl_horovod.config.compose import compose
from edl_horovod.config.conf_files import ConfigFiles, starter_dir
from edl_horovod.errors import OutputError


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_project_is_written_whose_experiments_compose(tmp_path, capsys):
    project = tmp_path / "project"

    assert main(["init", str(project)]) == 0

    assert {"README.md", "zoo/regression.py", "conf/experiment/first.yaml"} < files(project)
    assert "edl train --config-dir conf +experiment=first" in capsys.readouterr().out
    for path in (project / "conf" / "experiment").iterdir():
        here = ConfigFiles(str(project / "conf"))
        assert compose("train", [f"+experiment={path.stem}"], files=here).model_def == "regression"


def test_an_empty_directory_is_taken(tmp_path):
    assert main(["init", str(tmp_path)]) == 0
    assert (tmp_path / "README.md").exists()


def test_modes_are_those_of_new_files_and_of_the_users_directory(tmp_path, monkeypatch):
    installed, project = tmp_path / "installed", tmp_path / "project"
    shutil.copytree(starter_dir(), installed)
    for path in (installed, *installed.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    monkeypatch.setattr(init, "starter_dir", lambda: installed)
    project.mkdir()
    project.chmod(0o700)

    assert main(["init", str(project)]) == 0

    assert stat.S_IMODE(project.stat().st_mode) == 0o700
    assert all(path.stat().st_mode & stat.S_IWUSR for path in project.rglob("*"))


def test_a_directory_that_holds_something_is_left_alone(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")

    assert main(["init", str(tmp_path)]) == OutputError.exit_code

    assert files(tmp_path) == {"mine.txt"}
    assert "this one holds something. Received: DIR=" in capsys.readouterr().err


def test_a_dry_run_writes_nothing(tmp_path, capsys):
    project = tmp_path / "project"

    assert main(["init", str(project), "--dry-run"]) == 0

    assert not project.exists()
    assert f"{project}/conf/experiment/first.yaml" in capsys.readouterr().out
