"""WebDataset tar files: consecutive files with the same key are the parts of one record.

The key of `000/cat.seg.png` is `000/cat`, and its column is `seg.png`. Chunks are runs of whole
records.
"""

import io
import json
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, cast

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo, FileChunks
from edl_horovod.records.columns import ColumnChunk, object_array
from edl_horovod.records.files.input_file import InputFile, ReadAhead, SeekableFile, file_error
from edl_horovod.records.files.pool import open_input
from edl_horovod.records.index_tables import IndexedFile, with_distinct_headers
from edl_horovod.records.layout import BYTES, Column, Layout, selected_columns
from edl_horovod.records.record_format import ColumnFormat, RecordFormat
from edl_horovod.records.source import FormatSettings

CHUNK_BYTES = 1 << 20
"""Maximum size of a chunk; only a chunk of a single record is larger."""
KEY = "__key__"
_BLOCK = tarfile.BLOCKSIZE
_MAX_BYTES = (1 << 32) - 1


@dataclass
class _Sample:
    """A record whose files are being collected."""

    key: str
    offset: int
    """Offset of the header of its first file."""
    names: list[str] = field(default_factory=list)
    members: list[tarfile.TarInfo] = field(default_factory=list)
    end: int = 0


def make(name: str, _: FormatSettings) -> RecordFormat:
    """The format with the settings of a job."""
    columns = ColumnFormat(layout, decode)
    # The files have no checksums, so samples show whether they changed.
    return RecordFormat(name, read_chunks, columns, holds_chunk, change_detection="samples")


def read_chunks(path: str) -> FileChunks:
    """Find the chunks of a tar file; only the headers of its members are read.

    Raises:
        DataError: The file cannot be opened, is compressed, damaged or not a tar file, or its
            records do not have the same parts.
    """
    with ReadAhead(open_input(path)) as file:
        chunks: list[ChunkInfo] = []
        names: list[str] = []
        pending: list[_Sample] = []
        for sample in _samples(file):
            names = names or sorted(sample.names)
            if sorted(sample.names) != names:
                raise DataError(
                    f"The records of {path} do not have the same parts.",
                    received=f"{sample.key} has {', '.join(sorted(sample.names))}, earlier records"
                    f" have {', '.join(names)}",
                    hint="Write the same parts in every record, with empty files if necessary.",
                )
            if pending and sample.end - pending[0].offset > CHUNK_BYTES:
                chunks.append(_chunk(pending, len(chunks), path))
                pending = []
            pending.append(sample)
        if pending:
            chunks.append(_chunk(pending, len(chunks), path))
        header = json.dumps(names).encode()
        return FileChunks(path, file.size_bytes, tuple(chunks), header=header)


def layout(files: Sequence[IndexedFile], selected: Sequence[str]) -> Layout:
    """Return the columns: the parts of the records and their key.

    Raises:
        ConfigError: A selected part does not exist.
        DataError: The parts differ between files.
    """
    first, *others = with_distinct_headers(files)
    for file in others:
        raise DataError(
            "The records of the tar files have different parts.",
            received=f"{file.path} has {file.header.decode()}, {first.path}"
            f" {first.header.decode()}",
            hint="Write the same parts in all files.",
        )
    parts = [KEY, *json.loads(first.header)]
    names = selected_columns(selected, parts, holder=first.path, noun="part")
    return Layout(tuple(Column(name, BYTES) for name in names))


def decode(payload: bytes, *, chunk: ChunkInfo, file: IndexedFile, layout: Layout) -> ColumnChunk:
    """Return the parts of a chunk's records, as the contents of their files.

    Raises:
        DataError: The file has changed since it was scanned.
    """
    rows: list[dict[str, bytes]] = []
    members = list(_members(io.BytesIO(payload), file.path))
    for member in members:
        key, name = _split(member.name)
        if not rows or rows[-1][KEY] != key.encode():
            rows.append({KEY: key.encode()})
        start = member.offset_data
        rows[-1][name] = payload[start : start + member.size]
    if _checksum(members) != chunk.checksum or len(rows) != chunk.num_records:
        raise chunk.changed(file.path)
    columns = (column.name for column in layout.columns)
    return ColumnChunk([object_array([row[name] for row in rows]) for name in columns])


def holds_chunk(file: InputFile, chunk: ChunkInfo) -> bool:
    """Whether the names and sizes of a chunk's files are unchanged; reads the whole chunk.

    Raises:
        DataError: The file cannot be read, or is no longer a tar file.
    """
    payload = file.read_at(chunk.offset, num_bytes=chunk.compressed_bytes)
    return _checksum(_members(io.BytesIO(payload), file.path)) == chunk.checksum


def _samples(file: InputFile) -> Iterator[_Sample]:
    sample: _Sample | None = None
    for member in _members(SeekableFile(file), file.path, is_whole=True):
        key, name = _split(member.name)
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample
            sample = _Sample(key, member.offset)
        if not name or name in sample.names:
            problem = "it occurs twice" if name else "its name has no ending that names a part"
            raise _damaged(file.path, f"{member.name}: {problem}")
        sample.names.append(name)
        sample.end = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
        if sample.end > file.size_bytes:
            raise _damaged(file.path, f"it ends within {member.name}")
        sample.members.append(member)
    if sample is not None:
        yield sample


def _chunk(samples: Sequence[_Sample], number: int, path: str) -> ChunkInfo:
    start, end = samples[0].offset, samples[-1].end
    if end - start > _MAX_BYTES:
        raise _damaged(path, f"the record {samples[0].key} is larger than 4 GiB")
    checksum = _checksum(member for sample in samples for member in sample.members)
    return ChunkInfo.between(number, start, end, checksum=checksum, num_records=len(samples))


def _members(
    stream: SeekableFile | io.BytesIO, path: str, *, is_whole: bool = False
) -> Iterator[tarfile.TarInfo]:
    """Yield the regular files of a tar file or of a part of one; ignore folders and links."""
    try:
        with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:") as archive:
            while (member := archive.next()) is not None:
                if member.isreg():
                    yield member
                vars(archive)["members"].clear()  # tarfile would keep all members in memory.
            # tarfile treats a damaged header and the end of the file like the end mark.
            stream.seek(archive.offset)
            if is_whole and stream.read(_BLOCK) != bytes(_BLOCK):
                raise tarfile.ReadError(f"no end mark at byte {archive.offset}")
    except (tarfile.TarError, EOFError) as e:
        raise _damaged(path, f"it is not a tar file, compressed, or truncated ({e})") from e


def _split(name: str) -> tuple[str, str]:
    """Split a file name into key and part at the first dot of its base name, as WebDataset does."""
    folder, slash, base = name.rpartition("/")
    key, _, part = base.partition(".")
    return f"{folder}{slash}{key}", part.lower()


def _checksum(members: Iterable[tarfile.TarInfo]) -> int:
    facts = [(member.name, member.size, member.chksum) for member in members]
    return zlib.crc32(json.dumps(facts).encode())


def _damaged(path: str, problem: str) -> DataError:
    message = f"cannot be read as tar shards of records: {problem}."
    hint = "Write it with webdataset.TarWriter or tar, without compression."
    return file_error(path, message, hint)
