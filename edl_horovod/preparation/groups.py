"""Conversion of groups of input files to shards, and the interface of pools that do it in parallel.

A pool consists of processes on one machine or on many.
"""

import contextlib
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from edl_horovod.errors import UserCodeError
from edl_horovod.models.calling import call_declared, declared, user_code
from edl_horovod.models.lookup import import_root, require_zoo
from edl_horovod.models.modules import load_function
from edl_horovod.records.chunks import Codec
from edl_horovod.records.sources.recordio import Writer
from edl_horovod.records.sources.recordio_format import MAX_RECORD_BYTES

FUNCTION = "prepare_data_for_a_single_file"
_FILE_OBJECT = "file_object"
"""Name of the second parameter of the functions in ElasticDL's model zoo: the open file."""
ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # Nothing is computed here, and with oneDNN on TensorFlow prints a notice to the terminal.
    "TF_ENABLE_ONEDNN_OPTS": "0",
    # Otherwise each process would reserve the whole GPU.
    "CUDA_VISIBLE_DEVICES": "-1",
    # The processes share the cores, so each of them gets one thread.
    "OMP_NUM_THREADS": "1",
}
"""Environment variables that a process of the pool needs before it imports the user's code."""
_CHUNK_BYTES = 1 << 16
OnWork = Callable[[int, int], None]
"""Called periodically with the numbers of files and records done in unfinished groups."""


@dataclass(frozen=True, kw_only=True)
class GroupSettings:
    """Settings that all groups of a run share."""

    model_zoo: str
    model_def: str
    folder: str
    """Folder for the shards."""
    prefix: str
    records_per_shard: int
    bytes_per_shard: int
    codec: str
    max_bad_files: int
    """The rest of a group is skipped if it has more bad files."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """A range of consecutive input files."""

    number: int
    files: list[str]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A finished output file."""

    name: str
    num_records: int
    num_bytes: int
    """Total size of the records before compression."""


@dataclass(frozen=True, kw_only=True)
class BadFile:
    """An input file that cannot be prepared."""

    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class GroupDone:
    """The result of a group."""

    number: int
    num_files: int
    source: str
    """Digest of the model code that created the shards."""
    shards: list[Shard] = field(default_factory=list)
    num_empty: int = 0
    """Number of files without records."""
    bad: list[BadFile] = field(default_factory=list)
    is_given_up: bool = False
    """Whether the rest of the group was skipped."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Create a result from its `asdict` form."""
        shards = [Shard(**shard) for shard in values["shards"]]
        bad = [BadFile(**bad_file) for bad_file in values["bad"]]
        return cls(**{**values, "shards": shards, "bad": bad})

    @property
    def num_records(self) -> int:
        """Number of records in all shards."""
        return sum(shard.num_records for shard in self.shards)


class Pool(Protocol):
    """Runs one group at a time on each of its processes."""

    def source(self) -> str:
        """Wait until one process has loaded the model code; return the digest of the code."""

    def work(self, groups: Iterator[Group], on_work: OnWork) -> Iterator[GroupDone]:
        """Process the groups; yield the result of each when it is done, in any order."""


OpenPool = Callable[[GroupSettings, int], AbstractContextManager[Pool]]
"""Opens a pool for the settings of a run and its number of groups."""


def prepare_group(
    settings: GroupSettings, group: Group, on_file: Callable[[int, int], None] | None = None
) -> GroupDone:
    """Convert a group of input files to shards.

    `on_file` is called before each file with its number in the group and the number of records.

    Raises:
        UserCodeError: The model file cannot be loaded or does not have the function.
        OutputError: A shard cannot be written.
    """
    source = source_digest(settings.model_zoo, settings.model_def)
    function = load_function(settings.model_zoo, settings.model_def, FUNCTION)
    root = import_root(require_zoo(settings.model_zoo))
    num_empty, bad, is_given_up = 0, [], False
    with _Shards(settings, group.number) as shards:
        for number, file in enumerate(group.files):
            if on_file is not None:
                on_file(number, shards.num_records)
            try:
                records = _records_of(function, file, root=root)
            except UserCodeError as e:
                bad.append(BadFile(path=file, reason=str(e).removeprefix(f"{file}: ")))
                is_given_up = len(bad) > settings.max_bad_files
                if is_given_up:
                    break
                continue
            num_empty += not records
            for record in records:
                shards.write(record)
    return GroupDone(
        number=group.number,
        num_files=len(group.files),
        source=source,
        shards=shards.done,
        num_empty=num_empty,
        bad=bad,
        is_given_up=is_given_up,
    )


@functools.cache
def source_digest(model_zoo: str, model_def: str) -> str:
    """Load the function; return a digest of its file and of the files of the zoo that it imports.

    A process computes the digest only once, before the first call: modules that the function
    imports while it runs would make it differ between processes.

    Raises:
        UserCodeError: The model file cannot be loaded or does not have the function.
    """
    load_function(model_zoo, model_def, FUNCTION)
    root = import_root(require_zoo(model_zoo))
    names = {name for module in list(sys.modules.values()) if (name := _zoo_file(module))}
    files = map(Path, names)
    digest = hashlib.sha256()
    for file in sorted(file for file in files if file.is_relative_to(root) and file.is_file()):
        digest.update(os.fsencode(file.relative_to(root)) + b"\0")
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _zoo_file(module: Any) -> str | None:
    """Return a module's file, unless it is ours or in an environment inside the zoo's folder."""
    # Not getattr, which would trigger modules that load lazily.
    file: str | None = vars(module).get("__file__")
    name = str(vars(module).get("__name__"))
    is_ours = name == "__main__" or name.partition(".")[0] == "edl_horovod"
    return None if file is None or is_ours or "site-packages" in file else file


def _records_of(function: Callable[..., object], file: str, *, root: Path) -> list[bytes]:
    """Call the user's function for a file; convert errors to `UserCodeError`."""
    with user_code(f"{file}: {FUNCTION}", root=root), contextlib.ExitStack() as stack:
        if _FILE_OBJECT in declared(function).names:
            file_object = stack.enter_context(open(file, "rb"))
            result = call_declared(function, {_FILE_OBJECT: file_object, "filename": file})
        else:
            result = function(file)
        if result is None:
            return []
        records = [result] if isinstance(result, bytes) else list(result)
    wrong_types = {type(record).__name__ for record in records if not isinstance(record, bytes)}
    if wrong_types:
        raise UserCodeError(
            f"{file}: {FUNCTION} returned {', '.join(sorted(wrong_types))}, not bytes."
        )
    largest = max(map(len, records), default=0)
    if largest >= MAX_RECORD_BYTES:
        raise UserCodeError(
            f"{file}: {FUNCTION} returned a record of {largest} bytes; records must be smaller than"
            f" {MAX_RECORD_BYTES} bytes. Split it into several records."
        )
    return records


class _Shards:
    """Writes a group's records to files of bounded size; a file is renamed once it is complete."""

    def __init__(self, settings: GroupSettings, group_number: int) -> None:
        self._settings = settings
        self._group_number = group_number
        self._writer: Writer | None = None
        self._shard_records = 0
        self._shard_bytes = 0
        self.num_records = 0
        self.done: list[Shard] = []

    def write(self, record: bytes) -> None:
        is_full = (
            self._shard_records >= self._settings.records_per_shard
            or self._shard_bytes + len(record) > self._settings.bytes_per_shard
        )
        if self._writer is not None and is_full:
            self._complete(self._writer)
        if self._writer is None:
            name = f"{self._settings.prefix}-{self._group_number:05d}-{len(self.done):05d}.recordio"
            path, codec = os.path.join(self._settings.folder, name), self._settings.codec.upper()
            self._writer = Writer(path, codec=Codec[codec], chunk_bytes=_CHUNK_BYTES)
        self._writer.write(record)
        self._shard_records += 1
        self._shard_bytes += len(record)
        self.num_records += 1

    def _complete(self, writer: Writer) -> None:
        writer.close()
        name, counts = os.path.basename(writer.path), (self._shard_records, self._shard_bytes)
        self.done.append(Shard(name=name, num_records=counts[0], num_bytes=counts[1]))
        self._writer, self._shard_records, self._shard_bytes = None, 0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._writer is not None and error is None:
            self._complete(self._writer)
        elif self._writer is not None:
            self._writer.abort()
