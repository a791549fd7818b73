"""Files of records: read in both ways; RecordIO written by the package, or put together by hand."""

import contextlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from edl_horovod.records.reader import Reader
from edl_horovod.records.sources.recordio import Writer


def write(path: str | Path, records: Iterable[bytes], **options: Any) -> Path:
    with Writer(path, **options) as writer:
        for record in records:
            writer.write(record)
    return Path(path)


def read(data: str | Path, **options: Any) -> list[bytes]:
    """All records, which are the same by their numbers and one after another."""
    with Reader.open(str(data), **options) as reader:
        # By their numbers first: no chunk is cached yet.
        last_first = reader.read(range(len(reader) - 1, -1, -1))
        records = list(reader)
        assert last_first == records[::-1]
        return records


def framed(records: list[bytes]) -> bytes:
    """The payload of a chunk, before it is compressed."""
    return b"".join(struct.pack("<I", len(record)) + record for record in records)


def chunk_by_hand(payload: bytes, *, codec: int, num_records: int) -> bytes:
    """A chunk whose header fits its payload, which is compressed as the codec says."""
    facts = (zlib.crc32(payload), codec, len(payload), num_records)
    return b"\x04\x03\x02\x01" + struct.pack("<IIII", *facts) + payload


def numbers(data: str | Path, **options: Any) -> list[int]:
    """The numbers of the records that `write_numbered` wrote."""
    return [int.from_bytes(record[:4], "little") for record in read(data, **options)]


@contextlib.contextmanager
def keeping_times(path: Path) -> Iterator[None]:
    """What the block does to a file changes neither its size nor its times."""
    before = path.stat()
    yield
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def flip_a_bit(path: Path, at: int) -> None:
    """Damage a file as a disk does, or a copy."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    with keeping_times(path):
        path.write_bytes(content)
