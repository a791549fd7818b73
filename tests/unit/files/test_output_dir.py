import functools
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from edl_horovod.errors import OutputError
from edl_horovod.files import marker, output_dir
from edl_horovod.files.output_dir import check_output

KIND = "predictions"
staged = functools.partial(output_dir.staged, kind=KIND)
RANDOM = "0123456789abcdef"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[Path, str]:
    """The texts of all files, and nothing for each folder."""
    return {path: path.read_text() if path.is_file() else "" for path in folder.rglob("*")}


@pytest.fixture
def old(tmp_path):
    """An earlier result, made as all are."""
    output = tmp_path / "output"
    with staged(output, overwrite=False) as folder:
        (folder / "old.recordio").write_text("old")
    return output


@pytest.fixture
def old_file(tmp_path):
    output = tmp_path / "new.recordio"
    with staged(output, overwrite=False, is_file=True) as file:
        file.write_text("old")
        schema_of(file).write_text("old")
    return output


def schema_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.schema.json")


def write_file(file: Path) -> None:
    file.write_text("records")
    schema_of(file).write_text("new")


def test_a_new_output_and_an_empty_folder_are_accepted(tmp_path):
    check_output(tmp_path / "new", False)
    check_output(tmp_path, False)


@pytest.mark.parametrize(("name", "is_file"), [("old", False), ("old_file", True)])
def test_an_earlier_result_is_refused_unless_it_may_be_overwritten(request, name, is_file):
    output = request.getfixturevalue(name)
    check_output(output, True, is_file=is_file)
    with pytest.raises(OutputError, match="overwrite=true"):
        check_output(output, False, is_file=is_file)


@pytest.mark.parametrize("is_file", [False, True])
def test_somebody_s_file_is_refused_even_to_be_overwritten(tmp_path, is_file):
    (tmp_path / "x.recordio").write_text("mine")
    with pytest.raises(OutputError, match=r"x\.recordio"):
        check_output(tmp_path / "x.recordio", True, is_file=is_file)


@pytest.mark.parametrize("others", ["file", "schema", "link"])
def test_what_is_beside_a_file_or_in_its_place_is_not_destroyed_either(tmp_path, request, others):
    output = tmp_path / "new.recordio"
    if others == "file":
        request.getfixturevalue("old_file").unlink()
        output.write_text("mine")
    elif others == "schema":
        schema_of(output).write_text("mine")
    else:
        output.symlink_to("nowhere")
    with pytest.raises(OutputError) as error:
        check_output(output, True, is_file=True)
    assert error.value.received == {"output": output}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("thesis.tex", "mine"),
        *((name, "mine") for name in ("metrics.json", "train.recordio", "trained_model.pb")),
        *((marker.NAME, text) for text in ("", "[]", "{}", '{"format": 1}')),
        (marker.NAME, '{"format": 99, "kind": "x"}'),
    ],
)
def test_a_folder_without_a_marker_of_ours_is_never_replaced(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(OutputError, match=f"no {marker.NAME}") as error:
        check_output(tmp_path, True)
    assert error.value.received == {"output": tmp_path}


@pytest.mark.parametrize("name", ["zoo/notes.txt", "zoo/mine/notes.txt"])
@pytest.mark.parametrize("is_link", [False, True])
def test_what_was_put_deep_into_a_result_is_not_lost(tmp_path, name, is_link):
    output = tmp_path / "output"
    with staged(output, overwrite=False) as folder:
        (folder / "zoo").mkdir()
        (folder / "zoo" / "model.py").touch()
    check_output(output, overwrite=True)
    (output / name).parent.mkdir(exist_ok=True)
    if is_link:
        (output / name).symlink_to(tmp_path)
    else:
        (output / name).write_text("mine")
    with pytest.raises(OutputError, match=rf"{name}\."):
        check_output(output, overwrite=True)


def test_what_python_keeps_beside_the_modules_of_a_result_may_go(old):
    (old / "zoo" / "__pycache__").mkdir(parents=True)
    (old / "zoo" / "__pycache__" / "model.cpython-311.pyc").touch()
    check_output(old, overwrite=True)


def test_the_output_appears_with_everything_in_it(tmp_path):
    output = tmp_path / "deep" / "output"
    with staged(output, overwrite=False) as folder:
        (folder / "metrics.json").write_text("{}")
        assert not output.exists()
    assert names(output) == [marker.NAME, "metrics.json"]
    assert names(tmp_path / "deep") == ["output"]
    expected = {"format": 1, "kind": KIND, "holds": ["metrics.json"]}
    assert marker.read(output / marker.NAME) == expected


def test_an_older_output_is_replaced_whole(old):
    with staged(old, overwrite=True) as folder:
        (folder / "metrics.json").write_text("{}")
        assert (old / "old.recordio").read_text() == "old"
    assert names(old) == [marker.NAME, "metrics.json"]
    assert names(old.parent) == ["output"]


@pytest.mark.parametrize(
    ("name", "error"),
    [("old", KeyboardInterrupt), ("old", RuntimeError), ("old_file", RuntimeError)],
)
def test_a_failure_in_the_middle_leaves_the_older_output_and_nothing_else(request, name, error):
    output, is_file = request.getfixturevalue(name), name == "old_file"
    before = contents(output.parent)

    def write_half() -> None:
        with staged(output, overwrite=True, is_file=is_file) as staging:
            (staging if is_file else staging / "metrics.json").write_text("half")
            raise error

    with pytest.raises(error):
        write_half()
    assert contents(output.parent) == before


def test_an_output_that_appears_meanwhile_is_not_replaced(tmp_path):
    output = tmp_path / "output"
    with pytest.raises(OutputError, match="earlier result"), staged(output, overwrite=False):
        make(output)

    assert (output / "metrics.json").read_text() == "{}"
    assert names(tmp_path) == ["output"]


@pytest.mark.parametrize("name", ["output", "output.recordio"])
def test_a_job_replaces_its_own_output_and_no_other_job_s(tmp_path, name):
    output, is_file = tmp_path / name, name.endswith(".recordio")

    def write(text: str, job: str) -> None:
        with staged(output, overwrite=False, is_file=is_file, job=job) as staging:
            (staging if is_file else staging / "part.recordio").write_text(text)

    def written() -> str:
        return (output if is_file else output / "part.recordio").read_text()

    write("first", job="/a.job")
    write("again", job="/a.job")
    assert written() == "again"
    for job in ("/b.job", ""):
        with pytest.raises(OutputError, match="overwrite=true"):
            write("other", job=job)
    assert written() == "again"


def test_an_output_that_cannot_be_made_is_an_output_error(tmp_path):
    (tmp_path / "file").write_text("")
    output = tmp_path / "file" / "output"
    with pytest.raises(OutputError, match="Not a"), staged(output, overwrite=False):
        pass


def test_a_folder_filled_elsewhere_takes_the_output_s_place(old, tmp_path):
    publish = functools.partial(output_dir.publish, kind=KIND, old=tmp_path / "made.old")
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "part.recordio").write_text("new")
    with pytest.raises(OutputError, match="overwrite=true"):
        publish(folder, old, overwrite=False)
    publish(folder, old, overwrite=True)
    assert names(old) == [marker.NAME, "part.recordio"]
    assert names(tmp_path) == ["output"]


def test_what_cannot_be_published_says_why(tmp_path):
    folder, output, old = (tmp_path / name for name in ("nowhere", "new", "old"))
    with pytest.raises(OutputError, match="No such"):
        output_dir.publish(folder, output, KIND, overwrite=False, old=old)


def test_a_file_appears_with_what_was_made_beside_it(tmp_path):
    output = tmp_path / "deep" / "new.recordio"
    with staged(output, overwrite=False, is_file=True) as file:
        write_file(file)
        assert not output.exists()
    assert output.read_text() == "records"
    of_marker = f".new.recordio{marker.NAME}"
    assert names(output.parent) == [of_marker, "new.recordio", "new.recordio.schema.json"]


@pytest.mark.parametrize("was_folder", [False, True])
def test_an_older_output_is_replaced_by_a_file_with_what_was_beside_it(request, was_folder):
    output = request.getfixturevalue("old" if was_folder else "old_file")
    with staged(output, overwrite=True, is_file=True) as file:
        file.write_text("records")
    assert output.read_text() == "records"
    assert not schema_of(output).exists()
    check_output(output, True, is_file=True)


@pytest.mark.parametrize("num_done", range(5))
def test_a_file_half_put_in_its_place_is_replaced_by_the_next(old_file, monkeypatch, num_done):
    """A leader that is lost is followed by another one, which must not be refused."""
    left, replace, unlink = [num_done], Path.replace, Path.unlink

    def lose(*_: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    def lossy_replace(path: Path, target: Path) -> Path:
        lose()
        return replace(path, target)

    def lossy_unlink(path: Path, missing_ok: bool = False) -> None:
        lose()
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lossy_replace)
        patch.setattr(Path, "unlink", lossy_unlink)
        try:
            with staged(old_file, overwrite=True, is_file=True) as file:
                write_file(file)
        except KeyboardInterrupt:
            assert num_done < 4
    with staged(old_file, overwrite=True, is_file=True) as file:
        write_file(file)
    assert old_file.read_text() == "records"
    assert schema_of(old_file).read_text() == "new"


# -- what was left beside an output


def killed_while_it_works(output: Path) -> Path:
    """The folder of a process that was killed while it made an output."""
    code = (
        "import os, signal, sys; from pathlib import Path; from edl_horovod.files import marker\n"
        "with marker.work_folder(Path(sys.argv[1])) as folder:\n"
        "    print(folder, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    command = [sys.executable, "-c", code, output]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return Path(ended.stdout.strip())


def make(output: Path, *, overwrite: bool = False) -> None:
    with staged(output, overwrite=overwrite) as folder:
        (folder / "metrics.json").write_text("{}")


def test_what_a_killed_process_left_goes_with_the_next_result(tmp_path):
    left = killed_while_it_works(tmp_path / "output")
    of_another = killed_while_it_works(tmp_path / "output2")
    assert left.is_dir()
    make(tmp_path / "output")
    assert names(tmp_path) == sorted(["output", of_another.name])


@pytest.mark.parametrize(
    "name",
    [
        "output.old-20251120",
        "output.partial-7",
        "output.partial-20251120",
        f"output.partial-{socket.gethostname()[:20]}-7-{RANDOM}",
        "output.partial",
        "output.old-7",
    ],
)
def test_a_folder_whose_name_looks_like_ours_stays(old, name):
    backup = old.with_name(name)
    old.rename(backup)
    before = contents(backup)
    make(old)
    assert contents(backup) == before


def test_the_folder_of_a_second_job_that_lives_stays(tmp_path):
    with staged(tmp_path / "output", overwrite=True) as folder:
        (folder / "half").write_text("of the second job")
        make(tmp_path / "output")
        assert (folder / "half").read_text() == "of the second job"


@pytest.mark.parametrize("change", ["host", "boot", "kind", "name", "renamed", "link"])
def test_what_is_not_provably_of_a_dead_process_of_this_machine_stays(tmp_path, change):
    left = killed_while_it_works(tmp_path / "output")
    said = marker.read(left / marker.NAME)
    assert said is not None
    if change in said:
        fields = {key: value for key, value in said.items() if key not in ("format", "kind")}
        kind = "another" if change == "kind" else said["kind"]
        marker.write(left, kind, **({**fields, change: "another"} if change in fields else fields))
    elif change == "renamed":
        left = left.rename(f"{str(left)[:-4]}0000")
    else:
        elsewhere = tmp_path / "elsewhere"
        left.rename(elsewhere)
        left.symlink_to(elsewhere)
    make(tmp_path / "output")
    assert left.is_dir()


def test_where_nothing_can_be_locked_nobody_is_known_to_be_dead(tmp_path, monkeypatch):
    monkeypatch.setattr(marker, "_try_to_lock", lambda _: False)
    with marker.work_folder(tmp_path / "output") as folder:
        monkeypatch.undo()
        make(tmp_path / "output")
        assert folder.is_dir()


def test_names_of_folders_to_work_in_fit_where_the_longest_output_does(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 64)
    monkeypatch.setattr(os, "getpid", lambda: 4_194_304)
    make(tmp_path / ("x" * output_dir.MAX_NAME_BYTES))
    output = tmp_path / ("y" * output_dir.MAX_NAME_BYTES)
    with staged(output, overwrite=False, is_file=True) as file:
        write_file(file)
