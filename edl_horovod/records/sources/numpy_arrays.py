"""Where the arrays of `.npy` and `.npz` files lie: their types, shapes and first bytes.

An `.npz` file is a zip archive of `.npy` files. Where it is not compressed (`numpy.savez`), an
array in it is a run of bytes as in a file of its own; else (`numpy.savez_compressed`) no record of
it can be reached without unpacking all before it, so a rank that needs the array unpacks all of it.
The archive has a checksum of each array as a whole, which is verified where all of it is read: when
it is unpacked, or when `checked_runs` notes the checksums of its runs.
"""

import functools
import io
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo, Codec, FileChunks, sampled_checksum
from edl_horovod.records.files.input_file import InputFile
from edl_horovod.records.files.local import open_input
from edl_horovod.records.read_ahead import ReadAhead
from edl_horovod.records.sources.seekable import SeekableFile

__all__ = ["StoredArray", "arrays_of", "checked_runs", "damaged_array", "unpacked"]

_LOCAL_HEADER = struct.Struct("<26xHH")


@dataclass(frozen=True)
class StoredArray:
    """An array in a file."""

    path: str
    name: str
    """Its name in an `.npz` file, or the file's without its end."""
    offset: int
    """First byte of its first record; -1 where it is compressed."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    checksum: int
    """Of its member where it is one of an archive, else of samples of its file."""
    member: tuple[int, int] | None = None
    """Where its member of an archive begins and ends, if that is not compressed."""

    @property
    def is_packed(self) -> bool:
        """Whether it is compressed."""
        return self.offset < 0

    @property
    def where(self) -> str:
        """The file, and the name in it."""
        return f"the array {self.name!r} of {self.path}"

    @property
    def row_bytes(self) -> int:
        """Size of one record."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize


def arrays_of(path: str) -> list[StoredArray]:
    """The arrays of a file; their contents are not read.

    Raises:
        DataError: The file cannot be opened, is damaged, or is none that NumPy wrote.
    """
    with open_input(path) as file, _reading(path):
        if not path.lower().endswith(".npz"):
            stream = SeekableFile(file)
            dtype, shape = _header(stream, path)
            offset, num_bytes = stream.tell(), _num_bytes(dtype, shape)
            _check_end(path, offset + num_bytes, file.size_bytes)
            name = path.rpartition("/")[2].rpartition(".")[0]
            return [StoredArray(path, name, offset, dtype, shape, sampled_checksum(file))]
        with zipfile.ZipFile(SeekableFile(file)) as archive:
            return [_member(archive, one, file) for one in archive.infolist()]


@functools.lru_cache(maxsize=8)
def unpacked(array: StoredArray) -> NDArray[Any]:
    """All of a compressed array; the latest few are kept.

    Raises:
        DataError: It is damaged.
    """
    with open_input(array.path) as file, _reading(array.path):
        with zipfile.ZipFile(SeekableFile(file)) as archive:
            info = archive.getinfo(f"{array.name}.npy")
            content = archive.read(info)
        found = np.load(io.BytesIO(content), allow_pickle=False)
    if (found.dtype, found.shape, info.CRC) != (array.dtype, array.shape, array.checksum):
        raise damaged_array(array.path, f"{array.where} has changed since the job indexed it")
    kept: NDArray[Any] = found
    return kept


def checked_runs(path: str, arrays: Sequence[StoredArray], rows: int) -> FileChunks:
    """Runs of records of uncompressed arrays of an archive, in the order of the file.

    All of the arrays is read once, and the archive's checksums are verified.

    Args:
        path: The archive.
        arrays: The arrays.
        rows: Records of a run; the last of an array may have fewer.

    Raises:
        DataError: It cannot be read, or is damaged.
    """
    chunks: list[ChunkInfo] = []
    with ReadAhead(open_input(path)) as file:
        for array in arrays:
            assert array.member is not None
            start, end = array.member
            checksum = zlib.crc32(file.read_at(start, num_bytes=array.offset - start))
            at = array.offset
            for first in range(0, array.shape[0] if array.row_bytes else 0, rows):
                count = min(rows, array.shape[0] - first)
                payload = file.read_at(at, num_bytes=count * array.row_bytes)
                checksum = zlib.crc32(payload, checksum)
                chunk = ChunkInfo(
                    number=len(chunks),
                    offset=at,
                    checksum=zlib.crc32(payload),
                    codec=Codec.NONE,
                    compressed_bytes=len(payload),
                    num_records=count,
                )
                chunks.append(chunk)
                at += len(payload)
            if zlib.crc32(file.read_at(at, num_bytes=end - at), checksum) != array.checksum:
                raise damaged_array(path, f"Bad CRC-32 for {array.name + '.npy'!r}")
        return FileChunks(path=path, size_bytes=file.size_bytes, chunks=tuple(chunks))


def damaged_array(path: str, problem: str) -> DataError:
    """What is said of a file that cannot be read."""
    return DataError(
        f"{path} cannot be read: {problem}.",
        received={"path": path},
        cure="Write it again with numpy.save or numpy.savez.",
    )


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: InputFile) -> StoredArray:
    name = info.filename.removesuffix(".npy")
    if name == info.filename:
        raise damaged_array(file.path, f"it holds {info.filename!r}, which is no array")
    with archive.open(info) as stream:
        dtype, shape = _header(stream, file.path)
        header_bytes = stream.tell()
    offset, member = -1, None
    if info.compress_type == zipfile.ZIP_STORED:
        local = file.read_at(info.header_offset, num_bytes=_LOCAL_HEADER.size)
        names_bytes = sum(_LOCAL_HEADER.unpack(local))
        start = info.header_offset + _LOCAL_HEADER.size + names_bytes
        offset, member = start + header_bytes, (start, start + info.file_size)
        _check_end(file.path, offset + _num_bytes(dtype, shape), file.size_bytes)
    return StoredArray(file.path, name, offset, dtype, shape, info.CRC, member)


def _header(stream: IO[bytes] | SeekableFile, path: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in read:
        raise damaged_array(path, f"its version {version} of the format has named fields")
    shape, is_fortran, dtype = read[version](stream)
    if dtype.hasobject or dtype.fields is not None:
        what = "Python objects" if dtype.hasobject else "named fields"
        raise damaged_array(path, f"an array of it holds {what}, not numbers or text")
    if is_fortran and len(shape) > 1:
        raise damaged_array(
            path, "its records are not back to back (save numpy.ascontiguousarray(array))"
        )
    return dtype, shape


def _num_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def _check_end(path: str, end: int, size_bytes: int) -> None:
    if end > size_bytes:
        raise damaged_array(path, f"it ends {end - size_bytes} bytes before its last record does")


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile, zlib.error) as e:
        raise damaged_array(path, str(e).splitlines()[0] if str(e) else type(e).__name__) from e
