"""Tar files as WebDataset writes them: the files of one key, one after the other, are a record.

The key of `000/cat.seg.png` is `000/cat`, and its column `seg.png`. Chunks are runs of whole
records.
"""

import io
import json
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, cast

import numpy as np

from edl_horovod.errors import ConfigError, DataError, did_you_mean
from edl_horovod.records.chunks import ChunkInfo, Codec, FileChunks, changed
from edl_horovod.records.columns import ColumnChunk
from edl_horovod.records.files.input_file import InputFile
from edl_horovod.records.files.local import open_input
from edl_horovod.records.layout import BYTES, Column, Layout
from edl_horovod.records.read_ahead import ReadAhead
from edl_horovod.records.sources.seekable import SeekableFile
from edl_horovod.records.tables import IndexedFile

__all__ = ["CHUNK_BYTES", "decode_chunk", "holds_chunk", "layout", "read_chunks"]

CHUNK_BYTES = 1 << 20
"""Size of a chunk; only one of a single record is larger."""
KEY = "__key__"
_BLOCK = tarfile.BLOCKSIZE
_MOST_BYTES = (1 << 32) - 1


@dataclass
class _Sample:
    """A record that is being gathered."""

    key: str
    offset: int
    """Where the header of its first file begins."""
    names: list[str] = field(default_factory=list)
    headers: list[tuple[str, int, int]] = field(default_factory=list)
    """The name, size and checksum of the header of each file."""
    end: int = 0


def read_chunks(path: str) -> FileChunks:
    """The chunks of a tar file; the headers of its files are read, what they hold is not.

    Raises:
        DataError: The file cannot be opened, is compressed, is damaged or is no tar file, or its
            records do not have the same parts.
    """
    with ReadAhead(open_input(path)) as file:
        chunks: list[ChunkInfo] = []
        names: list[str] = []
        open_chunk: list[_Sample] = []
        for sample in _samples(file):
            names = names or sorted(sample.names)
            if sorted(sample.names) != names:
                raise DataError(
                    f"The records of {path} do not have the same parts.",
                    received=f"{sample.key} has {', '.join(sorted(sample.names))}, those before it"
                    f" {', '.join(names)}",
                    cure="Write the same parts in each, empty ones where there is nothing.",
                )
            if open_chunk and sample.end - open_chunk[0].offset > CHUNK_BYTES:
                chunks.append(_chunk(open_chunk, len(chunks), path))
                open_chunk = []
            open_chunk.append(sample)
        if open_chunk:
            chunks.append(_chunk(open_chunk, len(chunks), path))
        return FileChunks(
            path=path,
            size_bytes=file.size_bytes,
            chunks=tuple(chunks),
            header=json.dumps(names).encode(),
        )


def layout(files: Sequence[IndexedFile], *, wanted: Sequence[str]) -> Layout:
    """The parts of the records, and their key.

    Raises:
        ConfigError: There is no such part.
        DataError: Files differ in their parts.
    """
    filled = [file for file in files if file.num_chunks]
    for file in filled:
        if file.header != filled[0].header:
            raise DataError(
                "The tar files have records of different parts.",
                received=f"{file.path} has {file.header.decode()}, {filled[0].path}"
                f" {filled[0].header.decode()}",
                cure="Write the same parts in all.",
            )
    names = [KEY, *json.loads(filled[0].header)]
    for name in wanted:
        if name not in names:
            raise ConfigError(
                f"{filled[0].path} has no part {name!r}.",
                received={"data_plan.columns": ",".join(wanted)},
                cure=f"Its records have {', '.join(names)}.{did_you_mean(name, names)}",
            )
    return Layout(tuple(Column(name, BYTES) for name in wanted or names))


def decode_chunk(
    payload: bytes, *, chunk: ChunkInfo, file: IndexedFile, layout: Layout
) -> ColumnChunk:
    """The parts of the records of a chunk, as their files hold them.

    Raises:
        DataError: The file has changed since it was scanned.
    """
    rows: list[dict[str, bytes]] = []
    headers = []
    for member in _members(io.BytesIO(payload), file.path):
        key, name = _split(member.name)
        if not rows or rows[-1][KEY] != key.encode():
            rows.append({KEY: key.encode()})
        start = member.offset_data
        rows[-1][name] = payload[start : start + member.size]
        headers.append((member.name, member.size, member.chksum))
    if _checksum(headers) != chunk.checksum or len(rows) != chunk.num_records:
        raise changed(file.path, chunk)
    columns = []
    for column in layout.columns:
        values = np.empty(len(rows), dtype=object)
        values[:] = [row[column.name] for row in rows]
        columns.append(values)
    return ColumnChunk(columns)


def holds_chunk(file: InputFile, chunk: ChunkInfo) -> bool:
    """Whether files of the same names and sizes are still there; all of the chunk is read.

    Raises:
        DataError: The file cannot be read, or is no tar file any more.
    """
    payload = file.read_at(chunk.offset, num_bytes=chunk.compressed_bytes)
    members = _members(io.BytesIO(payload), file.path)
    return _checksum([(one.name, one.size, one.chksum) for one in members]) == chunk.checksum


def _samples(file: InputFile) -> Iterator[_Sample]:
    sample: _Sample | None = None
    for member in _members(SeekableFile(file), file.path, is_whole=True):
        key, name = _split(member.name)
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample
            sample = _Sample(key, member.offset)
        if not name or name in sample.names:
            what = "no end of its name says which part it is" if not name else "it is there twice"
            raise _damaged(file.path, f"{member.name}: {what}")
        sample.names.append(name)
        sample.end = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
        if sample.end > file.size_bytes:
            raise _damaged(file.path, f"it ends within {member.name}")
        sample.headers.append((member.name, member.size, member.chksum))
    if sample is not None:
        yield sample


def _chunk(samples: Sequence[_Sample], number: int, path: str) -> ChunkInfo:
    start, end = samples[0].offset, samples[-1].end
    if end - start > _MOST_BYTES:
        raise _damaged(path, f"the record {samples[0].key} is larger than 4 GiB")
    return ChunkInfo(
        number=number,
        offset=start,
        checksum=_checksum([header for sample in samples for header in sample.headers]),
        codec=Codec.NONE,
        compressed_bytes=end - start,
        num_records=len(samples),
    )


def _members(
    stream: SeekableFile | io.BytesIO, path: str, *, is_whole: bool = False
) -> Iterator[tarfile.TarInfo]:
    """The regular files of a tar file, or of a run of them; folders and links are passed over."""
    try:
        with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:") as archive:
            while (member := archive.next()) is not None:
                if member.isreg():
                    yield member
                vars(archive)["members"].clear()  # It would keep them all.
            # The module takes a damaged header, and the end of the file, for the end mark.
            stream.seek(archive.offset)
            if is_whole and stream.read(_BLOCK) != bytes(_BLOCK):
                raise tarfile.ReadError(f"no end mark at byte {archive.offset}")
    except (tarfile.TarError, EOFError) as e:
        raise _damaged(path, f"it is no tar file, is compressed, or was cut off ({e})") from e


def _split(name: str) -> tuple[str, str]:
    """The key of a file and its part, as WebDataset cuts its name: at the base's first dot."""
    folder, slash, base = name.rpartition("/")
    key, _, part = base.partition(".")
    return f"{folder}{slash}{key}", part.lower()


def _checksum(headers: Sequence[tuple[str, int, int]]) -> int:
    return zlib.crc32(json.dumps(headers).encode())


def _damaged(path: str, problem: str) -> DataError:
    return DataError(
        f"{path} cannot be read as tar shards of records: {problem}.",
        received={"path": path},
        cure="Write it with webdataset.TarWriter or tar, without compression.",
    )
