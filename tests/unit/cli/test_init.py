import os
import resource
import shutil
import stat
import sys
from pathlib import Path

import pytest

from edl_horovod.cli.main import main
from edl_horovod.cli.verbs import init
from edl_horovod.config.compose import compose
from edl_horovod.config.conf_files import ConfigFiles, template_dir
from edl_horovod.errors import ConfigError, OutputError
from edl_horovod.models.lookup import list_definitions
from tests.programs import run_python

TEMPLATES = ("keras", "torch", "table", "sql")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def commands(project):
    lines = (project / "README.md").read_text().splitlines()
    return [line.split() for line in lines if line.startswith("    ")]


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_project_has_a_page_data_a_test_and_experiments(tmp_path, template, capsys):
    project = tmp_path / "project"

    assert main(["init", str(project), "--template", template]) == 0

    written = {"README.md", ".gitignore", "make_data.py", "tests/test_project.py"}
    assert written < files(project)
    assert not any(path.is_symlink() for path in project.rglob("*"))
    printed = capsys.readouterr().out
    assert all(f"{project}/{name}\n" in printed for name in files(project))
    shown = printed.splitlines()[-3:]
    assert shown[0] == f"cd {project}"
    assert [line.split() for line in shown[1:]] == commands(project)[:2]
    experiments = [path.stem for path in (project / "conf" / "experiment").iterdir()]
    assert {"first", "cluster"} <= set(experiments)


@pytest.mark.long
@pytest.mark.parametrize("template", ["keras", "torch", "table"])
def test_the_experiments_of_a_project_compose_and_its_zoo_has_their_model(tmp_path, template):
    project = tmp_path / "project"
    main(["init", str(project), "--template", template])
    here = ConfigFiles(str(project / "conf"))

    for path in (project / "conf" / "experiment").iterdir():
        config = compose("train", [f"+experiment={path.stem}"], files=here)
        names = [name.partition(".")[0] for name in list_definitions(project / "zoo")]
        assert config.model_def.partition(".")[0] in names
        assert config.launch.kind == ("kubernetes" if path.stem == "cluster" else "local")


@pytest.mark.parametrize(
    ("word", "folder"), [("{here}", "."), ("{here}/project", "project"), (".", ".")]
)
def test_an_empty_directory_is_taken_for_the_template_in_keras(tmp_path, monkeypatch, word, folder):
    monkeypatch.chdir(tmp_path)
    assert main(["init", word.format(here=tmp_path)]) == 0
    assert files(tmp_path / folder) == files(template_dir("keras"))
    assert os.path.samefile(".", tmp_path)


@pytest.mark.parametrize(("word", "meant"), [("trch", "torch"), ("SQL", "sql"), ("xyz", "keras,")])
def test_a_template_that_there_is_not_is_refused_with_those_that_there_are(
    tmp_path, capsys, word, meant
):
    assert main(["init", str(tmp_path / "project"), "-t", word]) == ConfigError.exit_code

    assert not (tmp_path / "project").exists()
    said = capsys.readouterr().err
    assert meant in said
    assert all(template in said for template in TEMPLATES)


def test_the_help_says_what_each_template_is(capsys):
    with pytest.raises(SystemExit):
        main(["init", "--help"])
    shown = capsys.readouterr().out
    assert all(f"\n  {template} " in shown for template in TEMPLATES)


def test_modes_are_those_of_new_files_and_of_the_users_directory(tmp_path, monkeypatch):
    installed, project = tmp_path / "installed", tmp_path / "project"
    shutil.copytree(template_dir("keras"), installed)
    for path in (installed, *installed.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    monkeypatch.setattr(init, "template_dir", lambda template: installed)
    project.mkdir()
    project.chmod(0o700)

    assert main(["init", str(project)]) == 0

    assert stat.S_IMODE(project.stat().st_mode) == 0o700
    assert all(path.stat().st_mode & stat.S_IWUSR for path in project.rglob("*"))


def test_a_directory_that_holds_something_is_left_alone(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")

    assert main(["init", str(tmp_path)]) == OutputError.exit_code

    assert files(tmp_path) == {"mine.txt"}
    assert f"DIR={tmp_path}" in capsys.readouterr().err.replace("'", "")


@pytest.mark.parametrize("is_there", [False, True])
def test_a_disk_that_takes_no_more_leaves_nothing_of_a_project(tmp_path, is_there):
    project = tmp_path / "project"
    if is_there:
        project.mkdir()
    # Files may have so many bytes: the first ones have fewer.
    limit = (600, 600)
    narrow = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit)}
    done = run_python("-B", "-m", "edl_horovod", "init", project, **narrow)

    assert done.returncode == OutputError.exit_code, done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["project"] * is_there


def test_a_dry_run_writes_nothing(tmp_path, capsys):
    project = tmp_path / "project"

    assert main(["init", str(project), "--dry-run"]) == 0

    assert not project.exists()
    assert f"{project}/conf/" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("template", "package"),
    [("keras", "tensorflow"), ("torch", "torch"), ("table", "sklearn"), ("sql", "sqlglot")],
)
def test_a_package_that_is_missing_here_is_said(tmp_path, capsys, monkeypatch, template, package):
    monkeypatch.setitem(sys.modules, package, None)  # As Python itself marks what is not there.

    assert main(["init", str(tmp_path / "project"), "-t", template]) == 0

    assert "README.md" in files(tmp_path / "project")
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert any(package in note and "pip install" in note for note in notes)
