"""The arrays of `.npy` and `.npz` files: their types, shapes and offsets.

An `.npz` file is a zip archive of `.npy` files. If it is not compressed (`numpy.savez`), an array
in it is a contiguous run of bytes, as in a separate file. If it is (`numpy.savez_compressed`), a
rank that needs a record decompresses the whole array. The archive has a checksum of each whole
array, which is verified when the array is decompressed, or when `checked_runs` computes the
checksums of its runs.
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
from edl_horovod.records.files.input_file import InputFile, ReadAhead, SeekableFile
from edl_horovod.records.files.pool import open_input

__all__ = ["StoredArray", "arrays_of", "checked_runs", "damaged_array", "decompressed"]

_LOCAL_HEADER = struct.Struct("<26xHH")


@dataclass(frozen=True)
class StoredArray:
    """An array in a file."""

    path: str
    name: str
    """Its name in an `.npz` file, or the file's name without its ending."""
    offset: int
    """Offset of its first record in the file; -1 if it is compressed."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    checksum: int
    """Checksum of the archive member, or of samples of an `.npy` file."""
    member: tuple[int, int] | None = None
    """Start and end of its uncompressed archive member in the file; else None."""

    @property
    def is_compressed(self) -> bool:
        """Whether the array is compressed."""
        return self.offset < 0

    @property
    def label(self) -> str:
        """The name and the file of the array, for messages."""
        return f"the array {self.name!r} of {self.path}"

    @property
    def row_bytes(self) -> int:
        """Size of one record, in bytes."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize


def arrays_of(path: str) -> list[StoredArray]:
    """Return the arrays of a file without reading their contents.

    Raises:
        DataError: The file cannot be opened, is damaged, or is not a NumPy file.
    """
    with open_input(path) as file, _translated_errors(path):
        if not path.lower().endswith(".npz"):
            stream = SeekableFile(file)
            dtype, shape = _header(stream, path)
            offset, num_bytes = stream.tell(), _num_bytes(dtype, shape)
            _check_end(path, offset + num_bytes, file.size_bytes)
            name = path.rpartition("/")[2].rpartition(".")[0]
            return [StoredArray(path, name, offset, dtype, shape, sampled_checksum(file))]
        with zipfile.ZipFile(SeekableFile(file)) as archive:
            return [_member(archive, info, file) for info in archive.infolist()]


@functools.lru_cache(maxsize=8)
def decompressed(array: StoredArray) -> NDArray[Any]:
    """Decompress a whole array; the last few arrays are cached.

    Raises:
        DataError: The array is damaged.
    """
    with open_input(array.path) as file, _translated_errors(array.path):
        with zipfile.ZipFile(SeekableFile(file)) as archive:
            info = archive.getinfo(f"{array.name}.npy")
            content = archive.read(info)
        values = np.load(io.BytesIO(content), allow_pickle=False)
    if (values.dtype, values.shape, info.CRC) != (array.dtype, array.shape, array.checksum):
        raise damaged_array(array.path, f"{array.label} has changed since the job indexed it")
    result: NDArray[Any] = values
    return result


def checked_runs(path: str, arrays: Sequence[StoredArray], rows: int) -> FileChunks:
    """Read uncompressed arrays of an archive once and return the checksums of their runs.

    The archive's own checksums are verified.

    Args:
        path: Path of the archive.
        arrays: The arrays to read, in file order.
        rows: Records of a run; the last run of an array may have fewer.

    Raises:
        DataError: The archive cannot be read or is damaged.
    """
    chunks: list[ChunkInfo] = []
    with ReadAhead(open_input(path)) as file:
        for array in arrays:
            assert array.member is not None
            start, end = array.member
            checksum = zlib.crc32(file.read_at(start, num_bytes=array.offset - start))
            offset = array.offset
            for first in range(0, array.shape[0] if array.row_bytes else 0, rows):
                count = min(rows, array.shape[0] - first)
                payload = file.read_at(offset, num_bytes=count * array.row_bytes)
                checksum = zlib.crc32(payload, checksum)
                chunk = ChunkInfo(
                    number=len(chunks),
                    offset=offset,
                    checksum=zlib.crc32(payload),
                    codec=Codec.NONE,
                    compressed_bytes=len(payload),
                    num_records=count,
                )
                chunks.append(chunk)
                offset += len(payload)
            if zlib.crc32(file.read_at(offset, num_bytes=end - offset), checksum) != array.checksum:
                raise damaged_array(path, f"Bad CRC-32 for {array.name + '.npy'!r}")
        return FileChunks(path=path, size_bytes=file.size_bytes, chunks=tuple(chunks))


def damaged_array(path: str, problem: str) -> DataError:
    """Return the error for a NumPy file that cannot be read."""
    return DataError(
        f"{path} cannot be read: {problem}.",
        received={"path": path},
        hint="Write it again with numpy.save or numpy.savez.",
    )


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: InputFile) -> StoredArray:
    name = info.filename.removesuffix(".npy")
    if name == info.filename:
        raise damaged_array(file.path, f"it contains {info.filename!r}, which is not an array")
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
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise damaged_array(path, f"its format version {version} is for arrays with named fields")
    shape, is_fortran, dtype = readers[version](stream)
    if dtype.hasobject or dtype.fields is not None:
        problem = "Python objects" if dtype.hasobject else "named fields"
        raise damaged_array(path, f"an array in it contains {problem}, not numbers or text")
    if is_fortran and len(shape) > 1:
        raise damaged_array(
            path, "its records are not contiguous (save numpy.ascontiguousarray(array))"
        )
    return dtype, shape


def _num_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def _check_end(path: str, end: int, size_bytes: int) -> None:
    if end > size_bytes:
        raise damaged_array(path, f"it is truncated: {end - size_bytes} bytes are missing")


@contextmanager
def _translated_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile, zlib.error) as e:
        raise damaged_array(path, str(e).splitlines()[0] if str(e) else type(e).__name__) from e
