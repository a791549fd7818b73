"""Trained models by name and version: what is live, whatever dies while that changes."""

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from edl_horovod.errors import DataError, OutputError
from edl_horovod.sql.models import MODEL, ModelStore
from edl_horovod.sql.parser import parse
from edl_horovod.sql.statements import StatementError
from tests.forked import fork
from tests.programs import run_python
from tests.stored_models import ABOUT


def named(text):
    (statement,) = parse(f"SHOW TRAIN {text}")
    return statement.model


def trained_folder(folder: Path, content="weights"):
    """A folder with a trained model, as a job leaves it."""
    (folder / MODEL).mkdir(parents=True)
    (folder / MODEL / "weights").write_text(content)
    return folder


@pytest.fixture
def store(tmp_path):
    return ModelStore(tmp_path / "models")


def test_each_training_adds_a_version_that_is_live(store, tmp_path):
    first = store.add("m", trained_folder(tmp_path / "a"), ABOUT)
    second = store.add("m", trained_folder(tmp_path / "b", "better"), replace(ABOUT, num_rows=4))
    assert (str(first), str(second)) == ("m@1", "m@2")
    assert store.versions("m") == (1, 2)
    live = store.find(named("m"))
    assert (live.version, live.is_live, live.about.num_rows) == (2, True, 4)
    assert (live.trained_model / "weights").read_text() == "better"
    assert store.find(named("m@1")).about == ABOUT
    assert [(str(version), version.is_live) for version in store.all()] == [
        ("m@1", False),
        ("m@2", True),
    ]


def test_a_replacement_leaves_one_version(store, tmp_path):
    store.add("m", trained_folder(tmp_path / "a"), ABOUT)
    store.add("m", trained_folder(tmp_path / "b"), ABOUT)
    assert str(store.add("m", trained_folder(tmp_path / "c"), ABOUT, replace=True)) == "m@3"
    assert store.versions("m") == (3,)


def test_a_model_that_is_dropped_is_gone(store, tmp_path):
    store.add("db.m", trained_folder(tmp_path / "a"), ABOUT)
    store.add("other", trained_folder(tmp_path / "b"), ABOUT)
    store.drop(named("db.m"))
    assert store.names() == ("other",)
    assert not (store.folder / "db.m").exists()
    assert str(store.add("db.m", trained_folder(tmp_path / "c"), ABOUT)) == "db.m@1"


def test_a_version_is_made_live_again_and_an_old_one_is_dropped(store, tmp_path):
    store.add("m", trained_folder(tmp_path / "a"), ABOUT)
    store.add("m", trained_folder(tmp_path / "b"), ABOUT)
    assert store.set_live(named("m@1")).is_live
    assert store.find(named("m")).version == 1
    with pytest.raises(StatementError, match="live"):
        store.drop(named("m@1"))
    with pytest.raises(StatementError, match=r"3.*: m@1, m@2"):
        store.set_live(named("m@3"))
    assert str(store.add("m", trained_folder(tmp_path / "c"), ABOUT)) == "m@3"
    assert store.find(named("m")).version == 3
    with pytest.raises(StatementError, match="live"):
        store.drop(named("m@3"))
    store.drop(named("m@1"))
    assert store.versions("m") == (2, 3)


def test_a_model_that_is_not_there_is_named_with_the_nearest(store, tmp_path):
    with pytest.raises(StatementError, match=r"'m' .*no models"):
        store.find(named("m"))
    store.add("salary", trained_folder(tmp_path / "a"), ABOUT)
    with pytest.raises(StatementError, match="'salary'"):
        store.find(named("salari"))
    with pytest.raises(StatementError, match=r"7.*: salary@1"):
        store.find(named("salary@7"))


def test_a_folder_of_others_is_left_alone(tmp_path):
    folder = tmp_path / "models"
    (folder / "m").mkdir(parents=True)
    (folder / "m" / "thesis.txt").write_text("mine")
    with pytest.raises(OutputError, match=str(folder)):
        ModelStore(folder).add("m", trained_folder(tmp_path / "a"), ABOUT)
    assert (folder / "m" / "thesis.txt").read_text() == "mine"


def test_a_damaged_version_says_so(store, tmp_path):
    (store.add("m", trained_folder(tmp_path / "a"), ABOUT).folder / "about.json").write_text("{")
    with pytest.raises(DataError, match="m@1 is damaged"):
        store.find(named("m"))


KILLED = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.component.sql.test_models import ABOUT, trained_folder, named
from edl_horovod.sql.models import ModelStore

folder, action = Path(sys.argv[2]), sys.argv[3]
CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "open", "fcntl.flock", "shutil.rmtree")
step = 0
while True:
    step += 1
    models = folder / f"{action}-{step}"
    store = ModelStore(models)
    store.add("m", trained_folder(folder / f"old-{step}", "old"), ABOUT)
    new = trained_folder(folder / f"new-{step}", "new")
    if (child := os.fork()) == 0:
        left = step

        def count(event, values):
            global left
            if event in CHANGES:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        if action == "drop":
            store.drop(named("m"))
        else:
            store.add("m", new, replace(ABOUT, num_rows=9), replace=action == "replace")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        print(step - 1)
        break
"""


@pytest.mark.long
@pytest.mark.parametrize("action", ["add", "replace", "drop"])
@pytest.mark.timeout(120)
def test_killed_at_any_step_the_live_version_is_whole(action, tmp_path):
    root = str(Path(__file__).parents[3])
    ended = run_python("-c", KILLED, root, tmp_path, action, timeout=100)
    assert ended.returncode == 0, ended.stderr
    num_steps = int(ended.stdout)
    assert num_steps > 5
    seen = set()
    for step in range(1, num_steps + 2):
        store = ModelStore(tmp_path / f"{action}-{step}")
        if not store.exists("m"):
            assert action == "drop"
            seen.add("none")
        else:
            live = store.find(named("m"))
            content = (live.trained_model / "weights").read_text()
            assert content == {1: "old", 2: "new"}[live.version]
            assert live.about.num_rows == {1: ABOUT.num_rows, 2: 9}[live.version]
            seen.add(content)
        # What was killed is no hindrance to the next, and no version comes back.
        is_there = store.exists("m")
        again = store.add(
            "m", trained_folder(tmp_path / f"again-{step}", "again"), ABOUT, replace=is_there
        )
        assert (store.find(named("m")).trained_model / "weights").read_text() == "again"
        assert store.versions("m") == (again.version,)
        store.drop(named("m"))
        assert not (store.folder / "m").exists()
    assert seen == {"old", "none" if action == "drop" else "new"}


def test_two_trainings_at_once_get_versions_of_their_own(tmp_path):
    models = tmp_path / "models"
    children = []
    for number in range(4):
        folder = trained_folder(tmp_path / str(number), str(number))
        children.append(fork(lambda folder=folder: ModelStore(models).add("m", folder, ABOUT)))
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    store = ModelStore(models)
    assert store.versions("m") == (1, 2, 3, 4)
    assert store.find(named("m")).version == 4


def test_a_training_that_ends_beside_a_drop_gets_its_version(tmp_path):
    models = tmp_path / "models"
    store = ModelStore(models)
    folders = [trained_folder(tmp_path / str(number)) for number in range(60)]
    child = fork(lambda: [ModelStore(models).add("m", folder, ABOUT) for folder in folders])
    ended, status = 0, 0
    while not ended:
        with contextlib.suppress(StatementError, DataError):  # It may have none just now.
            store.drop(named("m"))
        ended, status = os.waitpid(child, os.WNOHANG)
    assert status == 0
    store.add("m", trained_folder(tmp_path / "last"), ABOUT, replace=True)
    assert len(store.versions("m")) == 1
