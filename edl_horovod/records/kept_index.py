"""Where the index of a data set is kept, and when it is made anew (D19).

It lies beside the data where that may be written. Else it lies in the folder of the job, for all of
its ranks, and in the cache of the user, for later jobs. A file that is not as its index says is
scanned again, and people are told.
"""

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from edl_horovod.files import marker
from edl_horovod.files.user_cache import user_cache
from edl_horovod.records import index_file
from edl_horovod.records.files import remote
from edl_horovod.records.files.input_file import FileState
from edl_horovod.records.files.local import file_state, open_input
from edl_horovod.records.index_file import SavedIndex, State
from edl_horovod.records.index_lock import one_builder
from edl_horovod.records.record_format import ChunkFormat
from edl_horovod.records.scanning import FILES_AT_ONCE, file_tables, scan
from edl_horovod.records.tables import Tables

__all__ = ["SMALL_BYTES", "indexed", "states_of"]

log = logging.getLogger(__name__)

SMALL_BYTES = 4 << 20
"""Local data of fewer bytes is scanned by every process: mapping an index takes no less time."""
CACHE_DAYS = 90
"""An index in the cache that no job has used for so long is removed."""
_MOST_NAMED = 3


def indexed(
    paths: Sequence[str],
    states: Sequence[FileState] | None,
    chunk_format: ChunkFormat,
    settings: dict[str, object],
    *,
    folder: Path | None,
    tell: Callable[[str], None],
) -> Tables:
    """The tables of files, given by their sorted paths: of an index that fits, or by a scan.

    Args:
        paths: Sorted paths.
        states: What the files are, as `states_of` gives it.
        chunk_format: Finds the chunks of a file.
        settings: What the chunks follow from besides the files.
        folder: Of the job; None to keep nothing.
        tell: For what people should know.

    Raises:
        DataError: A file cannot be read or is damaged, or there are no records.
    """
    is_small = not any(map(remote.is_remote, paths)) and (
        sum(state.size_bytes for state in states or ()) < SMALL_BYTES
    )
    if states is None or is_small:
        return scan(paths, chunk_format, known={}, tell=tell)
    state = State(tuple(paths), tuple(states), settings)
    return _KeptIndex(state, chunk_format, folder, tell).tables()


def states_of(paths: Sequence[str]) -> list[FileState] | None:
    """What files are, to be found out before they are scanned; see `file_state`.

    Returns:
        None where a local file cannot be looked at: the scan will say what is wrong with it.

    Raises:
        DataError: A remote file is not there or may not be read.
    """
    if any(map(remote.is_remote, paths)):
        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="index") as pool:
            return _states(pool.map(file_state, paths))
    return _states(map(file_state, paths))


def _states(found: Iterator[FileState]) -> list[FileState] | None:
    try:
        return list(found)
    except OSError:
        return None


@dataclass(frozen=True)
class _Found:
    """An index that was found, and what it is wrong about."""

    tables: Tables
    changed: dict[str, str]
    """Why a file must be scanned again, by its path."""


@dataclass(frozen=True)
class _KeptIndex:
    """Finds the index of some files, or makes and keeps it."""

    state: State
    chunk_format: ChunkFormat
    folder: Path | None
    """Of the job; None to keep nothing."""
    tell: Callable[[str], None]
    """For what people should know."""

    def tables(self) -> Tables:
        """The tables of the files as they are.

        Raises:
            DataError: A file cannot be read or is damaged, or there are no records.
        """
        found = self._look()
        if found is not None and not found.changed:
            return found.tables
        folders = self._folders()
        locks = [folder / f"{self._name(folder)}.lock" for folder in folders]
        with one_builder(locks, self._say) as number:
            if number < len(folders):
                found = self._look()
                if found is not None and not found.changed:
                    return found.tables  # Another process has made it meanwhile.
            tables = self._make(found or self._look_beside_remote())
            return self._keep(tables, folders[number:])

    def _make(self, found: _Found | None) -> Tables:
        if found is None:
            known = {}
        elif not found.changed:
            return found.tables
        else:
            self._tell_of_changes(found.changed)
            known = {
                table[0].path: table
                for table in file_tables(found.tables)
                if table[0].path not in found.changed
            }
        return scan(self.state.paths, self.chunk_format, known=known, tell=self._say)

    def _tell_of_changes(self, changed: Mapping[str, str]) -> None:
        named = [f"{path} ({why})" for path, why in itertools.islice(changed.items(), _MOST_NAMED)]
        more = ", ..." * (len(changed) > _MOST_NAMED)
        self._say(
            f"{len(changed):,} of {len(self.state.paths):,} data files have changed since they were"
            f" indexed, and are indexed anew: {', '.join(named)}{more}",
            level=logging.WARNING,
        )

    def _keep(self, tables: Tables, folders: Sequence[Path]) -> Tables:
        """Save the index in the first of these folders where that succeeds, and map it."""
        for number, folder in enumerate(folders):
            try:
                self._save(tables, folder)
            except OSError as error:
                log.info("the index of the data is not kept in %s: %s", folder, error)
                continue
            if folder == self.folder:
                for later in folders[number + 1 :]:  # The cache, for other jobs.
                    with contextlib.suppress(OSError):
                        self._save(tables, later)
            # All ranks of a host have the mapped arrays in memory once.
            saved = self._load(folder)
            return tables if saved is None else saved.tables
        return tables

    def _save(self, tables: Tables, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        index_file.save(self.state, tables, folder)
        if folder in _cache():
            _remove_unused(folder)

    def _say(self, message: str, *, level: int = logging.INFO) -> None:
        log.log(level, "%s", message)
        self.tell(message)

    # -- where it is

    @cached_property
    def _beside(self) -> str:
        """The folder of the first file, which may be remote."""
        first = self.state.paths[0]
        return first.rpartition("/")[0] if remote.is_remote(first) else os.path.dirname(first)

    def _look(self) -> _Found | None:
        """The first index that fits, else one that is wrong about the fewest files."""
        found: list[_Found] = []
        for folder in self._readable():
            saved = self._load(folder)
            if saved is None:
                continue
            if folder in _cache():
                with contextlib.suppress(OSError):
                    os.utime(folder / self._name(folder))  # It is in use.
            found.append(_Found(saved.tables, self._changed(saved)))
            if not found[-1].changed:
                return found[-1]
        return min(found, key=lambda one: len(one.changed), default=None)

    def _look_beside_remote(self) -> _Found | None:
        """The index that was uploaded with the files: they have other times now."""
        if not remote.is_remote(self._beside):
            return None
        url = f"{self._beside}/{index_file.name_of(self.state, self._beside)}"
        content = remote.read_if_there(url)
        if content is None:
            return None
        try:
            saved = index_file.parse(content, self.state, self._beside)
        except ValueError as error:
            log.warning("The index %s is passed over: %s", url, error)
            return None
        return _Found(saved.tables, self._changed(saved, has_same_times=False))

    def _readable(self) -> Iterator[Path]:
        if not remote.is_remote(self._beside):
            yield Path(self._beside)
        if self.folder is not None and self.folder != Path(self._beside):
            yield self.folder
        yield from _cache()

    def _folders(self) -> list[Path]:
        """Where the index may be kept, the best place first."""
        if self.folder is None:
            return []
        beside = [] if remote.is_remote(self._beside) else [Path(self._beside)]
        if self.folder in beside:
            return beside
        # A directory of ours lists what is in it, so nothing is added to it.
        free = [
            folder
            for folder in beside
            if not _is_ours(folder) or (folder / self._name(folder)).exists()
        ]
        return [*free, self.folder, *_cache()]

    def _name(self, folder: Path) -> str:
        return index_file.name_of(self.state, str(folder))

    def _load(self, folder: Path) -> SavedIndex | None:
        try:
            return index_file.load(self.state, folder)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("The index %s is passed over: %s", folder / self._name(folder), error)
            return None

    # -- what has changed

    def _changed(self, saved: SavedIndex, *, has_same_times: bool = True) -> dict[str, str]:
        """The files that are not as an index says, and why."""
        changed: dict[str, str] = {}
        doubtful: list[_Ends] = []
        start = 0
        files = zip(saved.tables.files, saved.files, self.state.files, strict=True)
        for file, then, now in files:
            if then.size_bytes != now.size_bytes:
                changed[file.path] = f"{now.size_bytes} bytes instead of {then.size_bytes}"
            elif has_same_times and then.changed != now.changed:
                changed[file.path] = "another time"
            # An object of a store with the same digest is the same. A time may be set by whoever
            # writes a file, and a disk may fail.
            elif file.num_chunks and not (has_same_times and _is_digest(now.changed)):
                doubtful.append((file.path, start, start + file.num_chunks - 1))
            start += file.num_chunks
        return changed | self._other_ends(saved.tables, doubtful)

    def _other_ends(self, tables: Tables, doubtful: "Sequence[_Ends]") -> dict[str, str]:
        """Those of some files whose first or last chunk is another one."""

        def find(part: "Sequence[_Ends]") -> list[str]:
            return [one[0] for one in part if not self._has_ends(tables, one)]

        parts = [doubtful[first::FILES_AT_ONCE] for first in range(FILES_AT_ONCE)]
        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="index") as pool:
            other = sorted(path for found in pool.map(find, parts) for path in found)
        return dict.fromkeys(other, "another first or last chunk, and the same size")

    def _has_ends(self, tables: Tables, ends: "_Ends") -> bool:
        path, first, last = ends
        # Of a remote file only the last, for each costs a request.
        chunks = {last} if remote.is_remote(path) else {first, last}
        with open_input(path) as file:
            return all(self.chunk_format.holds(file, tables.chunk(one)) for one in chunks)


_Ends = tuple[str, int, int]
"""A file, and the numbers of its first and last chunk over all files."""


def _is_digest(changed: int | str) -> bool:
    return isinstance(changed, str) and changed != ""


def _is_ours(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return marker.kind_of(folder) != ""
    return False


def _cache() -> list[Path]:
    try:
        return [user_cache() / "indexes"]
    except RuntimeError:
        return []


def _remove_unused(folder: Path) -> None:
    oldest = time.time() - CACHE_DAYS * 24 * 3600
    for path in folder.glob(f".edl_horovod.*{index_file.ENDING}"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest and index_file.is_index(path):
                path.unlink()
