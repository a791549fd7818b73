"""One process at a time makes an index."""

import fcntl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from edl_horovod.files import cache
from edl_horovod.files.cache import one_builder


def quiet(_: str) -> None:
    pass


def test_one_at_a_time_and_the_file_goes(tmp_path):
    path = tmp_path / "folder" / "lock"
    inside, most = 0, 0
    counting = threading.Lock()

    def build(_: int) -> int:
        nonlocal inside, most
        with one_builder([path], quiet, doing="builds") as number:
            with counting:
                inside += 1
                most = max(most, inside)
            time.sleep(0.01)
            with counting:
                inside -= 1
            return number

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(build, range(16))) == {0}
    assert most == 1
    assert not path.exists()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path):
    path = tmp_path / "lock"
    path.touch()
    with one_builder([path], quiet, doing="builds") as number:
        assert number == 0
    assert not path.exists()


def test_the_first_place_that_can_be_written_is_taken(tmp_path):
    (tmp_path / "file").touch()
    locks = [tmp_path / "file" / "lock", tmp_path / "good" / "lock", tmp_path / "better" / "lock"]
    with one_builder(locks, quiet, doing="builds") as number:
        assert number == 1
    with one_builder(locks[:1], quiet, doing="builds") as number:
        assert number == 1  # None: every process builds.


def test_a_wait_is_told_and_bounded_and_leaves_the_lock_to_its_holder(tmp_path, monkeypatch):
    for name, seconds in (("LONGEST_WAIT_SECONDS", 0.2), ("_TELL_SECONDS", 0.05)):
        monkeypatch.setattr(cache, name, seconds)
    path, messages = tmp_path / "lock", []
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with one_builder([path], messages.append, doing="builds") as number:
            assert number == 0
        assert path.exists()
    assert "process builds" in messages[0]


def test_without_locks_everybody_builds(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError("No locks available")

    monkeypatch.setattr(cache.fcntl, "flock", refuse)
    with one_builder([tmp_path / "lock"], quiet, doing="builds") as number:
        assert number == 0
