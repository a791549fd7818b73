"""Finding, ordering and grouping of the input files."""

import glob
import hashlib
import math
import os
import random
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from edl_horovod.errors import DataError
from edl_horovod.records.sources.table import kind_of

LIST_MARK = "@"
"""Prefix of the path of a text file with the path of an input file on each line."""

_SHUFFLE_SEED = 0
_MISSING = -1
_TARGET_GROUPS = 32
_MIN_GROUP_FILES = 32
_MIN_GROUP_BYTES = 1 << 20


@dataclass(frozen=True)
class Inputs:
    """The input files in the order in which they are prepared.

    Sizes and times are arrays, to save memory if there are millions of files.
    """

    paths: list[str]
    sizes: "array[int]"
    """Size of each file in bytes; -1 if a list names a file that does not exist."""
    mtimes: "array[int]"
    """Modification time of each file in nanoseconds."""

    @property
    def num_bytes(self) -> int:
        """Total size of the files."""
        return sum(size for size in self.sizes if size != _MISSING)

    @property
    def missing(self) -> list[str]:
        """Files that a list names and that do not exist."""
        return [path for path, size in zip(self.paths, self.sizes, strict=True) if size == _MISSING]

    def digest_of_paths(self) -> str:
        """Digest of the paths in their order."""
        digest = hashlib.sha256()
        for path in self.paths:
            digest.update(os.fsencode(path) + b"\0")
        return digest.hexdigest()

    def digest_of_states(self, start: int, stop: int) -> str:
        """Digest of the sizes and times of a range of files."""
        return hashlib.sha256(
            self.sizes[start:stop].tobytes() + self.mtimes[start:stop].tobytes()
        ).hexdigest()


def find(data: str, *, shuffle: bool) -> Inputs:
    """Find the input files.

    Args:
        data: A file, a folder (with all files below it), a glob, `@` followed by the path of a text
            file with a path on each line, or several of these separated by commas.
        shuffle: Whether to shuffle the files, with a fixed seed. If not, folders and globs are
            sorted, and lists keep their order.

    Raises:
        DataError: A part matches nothing or cannot be read.
    """
    parts = [data] if os.path.exists(data) else [part.strip() for part in data.split(",")]
    paths = list(dict.fromkeys(path for part in parts if part for path in _matches(part)))
    if not paths:
        raise _no_file(data)
    if shuffle:
        paths.sort()
        random.Random(_SHUFFLE_SEED).shuffle(paths)
    sizes, mtimes = array("q"), array("q")
    for path in paths:
        size = mtime = _MISSING
        with suppress(OSError):
            state = os.stat(path)
            size, mtime = state.st_size, state.st_mtime_ns
        sizes.append(size)
        mtimes.append(mtime)
    return Inputs(paths, sizes, mtimes)


def cut(
    sizes: Sequence[int], *, files_per_group: int, records_per_shard: int, bytes_per_shard: int
) -> list[int]:
    """Split the inputs into groups; return the number of each group's first file.

    A process converts one group at a time to shards, and a restart does not repeat finished groups.
    With `files_per_group=0` a group is about one shard, or less if there would be too few groups.
    """
    if files_per_group:
        return list(range(0, len(sizes), files_per_group))
    even_share = math.ceil(len(sizes) / _TARGET_GROUPS)
    max_files = min(records_per_shard, max(_MIN_GROUP_FILES, even_share))
    max_bytes = min(bytes_per_shard, max(_MIN_GROUP_BYTES, sum(sizes) // _TARGET_GROUPS))
    starts, num_bytes = [0], 0
    for number, size in enumerate(sizes):
        is_full = number - starts[-1] >= max_files or num_bytes + size > max_bytes
        if is_full and number > starts[-1]:
            starts.append(number)
            num_bytes = 0
        num_bytes += size
    return starts


def _matches(part: str) -> Iterator[str]:
    """Yield the absolute paths of the matching files; folders and globs are sorted."""
    if list(kind_of(part).local_patterns(part)) != [part]:
        problem = "prepare_data_for_a_single_file can only read files of this machine."
        hint = "Mount or copy the files, and use their local path."
        raise DataError(problem, received={"data": part}, hint=hint)
    if part.startswith(LIST_MARK) and not os.path.exists(part):
        yield from _read_list(os.path.expanduser(part.removeprefix(LIST_MARK)))
        return
    path = os.path.expanduser(part)
    if os.path.isdir(path):
        paths = sorted(_files_below(os.path.abspath(path)))
    else:
        matches = [path] if os.path.exists(path) else glob.iglob(path, recursive=True)
        paths = sorted(os.path.abspath(match) for match in matches if os.path.isfile(match))
    if not paths:
        raise _no_file(part)
    yield from paths


def _files_below(folder: str) -> Iterator[str]:
    """Yield the files below a folder, except hidden ones; follow links, but not in cycles."""
    pending, visited = [folder], set()
    while pending:
        current = pending.pop()
        try:
            state = os.stat(current)
            if (state.st_dev, state.st_ino) in visited:
                continue
            visited.add((state.st_dev, state.st_ino))
            with os.scandir(current) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir():
                        pending.append(entry.path)
                    elif entry.is_file():
                        yield entry.path
        except OSError as e:
            problem = f"{e.filename} cannot be listed: {e.strerror}."
            hint = "Check that this user may read it."
            raise DataError(problem, received={"data": folder}, hint=hint) from e


def _read_list(path: str) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                if name := line.rstrip("\r\n"):
                    yield os.path.abspath(os.path.expanduser(name))
    except OSError as e:
        problem = f"The list of input files cannot be read: {e.strerror}."
        hint = "@ must be followed by the path of a text file with a path on each line."
        raise DataError(problem, received={"data": f"@{path}"}, hint=hint) from e


def _no_file(part: str) -> DataError:
    return DataError(
        "No input file matches.",
        received={"data": part},
        hint="Set it to a file, a folder, a glob such as images/*/*.png, @list.txt with a path on"
        " each line, or several of these separated by commas.",
    )
