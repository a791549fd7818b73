from pathlib import Path

import pytest

from edl_horovod.errors import OutputError
from edl_horovod.output_dir import check_output, publish, staged


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def old(tmp_path: Path) -> Path:
    output = tmp_path / "output"
    output.mkdir()
    (output / "trained_model.pb").write_text("old")
    return output


def test_a_new_output_and_an_empty_folder_are_accepted(tmp_path: Path):
    check_output(tmp_path / "new", False)
    check_output(tmp_path, False)


def test_an_earlier_result_is_refused_unless_it_may_be_overwritten(old: Path):
    check_output(old, True)
    with pytest.raises(OutputError, match="overwrite=true"):
        check_output(old, False)


def test_a_file_is_refused_even_to_be_overwritten(tmp_path: Path):
    (tmp_path / "output").write_text("mine")
    with pytest.raises(OutputError, match="not a directory"):
        check_output(tmp_path / "output", True)


def test_a_file_of_predictions_may_be_overwritten(tmp_path: Path):
    file = tmp_path / "new.recordio"
    file.write_text("old")
    check_output(file, True)
    with pytest.raises(OutputError, match="overwrite=true"):
        check_output(file, False)


def test_a_folder_that_we_did_not_write_is_never_replaced(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(OutputError, match="did not write"):
        check_output(tmp_path, True)


def test_the_output_appears_with_everything_in_it(tmp_path: Path):
    output = tmp_path / "deep" / "output"
    with staged(output, overwrite=False) as folder:
        (folder / "metrics.json").write_text("{}")
        assert not output.exists()
    assert names(output) == ["metrics.json"]
    assert names(tmp_path / "deep") == ["output"]


def test_an_older_output_is_replaced_whole(old: Path):
    with staged(old, overwrite=True) as folder:
        (folder / "metrics.json").write_text("{}")
        assert (old / "trained_model.pb").read_text() == "old"
    assert names(old) == ["metrics.json"]
    assert names(old.parent) == ["output"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_failure_in_the_middle_leaves_the_older_output_and_nothing_else(old: Path, error):
    def fail(folder: Path) -> None:
        (folder / "metrics.json").write_text("{}")
        raise error

    with pytest.raises(error), staged(old, overwrite=True) as folder:
        fail(folder)

    assert (old / "trained_model.pb").read_text() == "old"
    assert names(old.parent) == ["output"]


def test_an_output_that_appears_meanwhile_is_not_replaced(tmp_path: Path):
    output = tmp_path / "output"

    def finish_first() -> None:
        output.mkdir()
        (output / "metrics.json").write_text("another job's")

    with pytest.raises(OutputError, match="earlier result"), staged(output, overwrite=False):
        finish_first()

    assert (output / "metrics.json").read_text() == "another job's"


def test_an_output_that_cannot_be_made_is_an_output_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OutputError, match="cannot be written"),
        staged(tmp_path / "file" / "output", overwrite=False),
    ):
        pass


def test_a_folder_filled_elsewhere_takes_the_output_s_place(old: Path, tmp_path: Path):
    made = tmp_path / "made"
    made.mkdir()
    (made / "part.recordio").write_text("new")
    with pytest.raises(OutputError, match="overwrite=true"):
        publish(made, old, overwrite=False)
    publish(made, old, overwrite=True)
    assert names(old) == ["part.recordio"]
    assert names(tmp_path) == ["output"]


def test_what_cannot_be_published_says_why(old: Path, tmp_path: Path):
    with pytest.raises(OutputError, match=r"cannot be written.*No such file"):
        publish(tmp_path / "nowhere", tmp_path / "new", overwrite=False)


def test_a_file_appears_with_what_was_made_beside_it(tmp_path: Path):
    output = tmp_path / "deep" / "new.recordio"
    with staged(output, overwrite=False, is_file=True) as file:
        file.write_text("records")
        file.with_name("new.recordio.schema.json").write_text("{}")
        assert not output.exists()
    assert output.read_text() == "records"
    assert names(output.parent) == ["new.recordio", "new.recordio.schema.json"]


def test_a_file_that_fails_leaves_the_older_one(tmp_path: Path):
    output = tmp_path / "new.recordio"
    output.write_text("old")

    def fail(file: Path) -> None:
        file.write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError), staged(output, overwrite=True, is_file=True) as file:
        fail(file)
    assert output.read_text() == "old"
    assert names(tmp_path) == ["new.recordio"]


def test_a_folder_of_predictions_may_become_a_file(tmp_path: Path):
    output = tmp_path / "new.recordio"
    output.mkdir()
    (output / "part-0.recordio").write_text("old")
    with staged(output, overwrite=True, is_file=True) as file:
        file.write_text("records")
    assert output.read_text() == "records"


def test_what_a_killed_process_left_goes_with_the_next_result(tmp_path: Path):
    output, others = tmp_path / "output", tmp_path / "output2.partial-7"
    for leftover in (tmp_path / "output.partial-7", tmp_path / "output.old-7", others):
        leftover.mkdir()
        (leftover / "metrics.json").write_text("half")
    with staged(output, overwrite=False) as folder:
        (folder / "metrics.json").write_text("{}")
    assert names(tmp_path) == ["output", "output2.partial-7"]
