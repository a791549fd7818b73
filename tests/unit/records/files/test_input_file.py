"""Reading ahead: the bytes of the file, by few reads where small ones are near each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_horovod.records.files.input_file import MAX_WINDOW_BYTES, FileState, InputFile, ReadAhead


class Sparse(InputFile):
    """A file of zeros that counts what is read of it."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__("sparse")
        self.reads: list[int] = []
        self._size_bytes = size_bytes

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def read_at(self, offset: int, *, num_bytes: int) -> bytes:
        assert 0 <= offset < self._size_bytes
        assert offset + num_bytes <= self._size_bytes
        self.reads.append(num_bytes)
        return bytes(num_bytes)

    def state(self) -> FileState:
        return FileState(self._size_bytes, 0)

    def close(self) -> None:
        pass


def reads_of_headers(*, chunk_bytes: int, num_chunks: int) -> list[int]:
    """The sizes of the reads that it takes to read the header of each chunk."""
    file = Sparse(num_chunks * chunk_bytes)
    ahead = ReadAhead(file)
    for number in range(num_chunks):
        assert len(ahead.read_at(number * chunk_bytes, num_bytes=20)) == 20
    return file.reads


def test_headers_of_small_chunks_come_by_large_reads_and_those_of_large_chunks_alone():
    assert reads_of_headers(chunk_bytes=1000, num_chunks=30) == [30_000]
    reads = reads_of_headers(chunk_bytes=1 << 16, num_chunks=1024)
    assert (len(reads), max(reads)) == (17, MAX_WINDOW_BYTES)
    reads = reads_of_headers(chunk_bytes=1 << 20, num_chunks=100)
    assert len(reads) <= 100
    assert sum(reads) < 5 << 20


class Text(Sparse):
    def __init__(self, data: bytes) -> None:
        super().__init__(len(data))
        self.data = data

    def read_at(self, offset: int, *, num_bytes: int) -> bytes:
        super().read_at(offset, num_bytes=num_bytes)
        return self.data[offset : offset + num_bytes]


@given(
    data=st.binary(min_size=1, max_size=300),
    wanted=st.lists(st.tuples(st.integers(0, 299), st.integers(0, 400)), max_size=20),
)
def test_bytes_are_those_of_the_file(data, wanted):
    file = ReadAhead(Text(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edl_horovod.records.files.input_file.FIRST_WINDOW_BYTES", 16)
        patch.setattr("edl_horovod.records.files.input_file.MAX_WINDOW_BYTES", 64)
        for offset, num_bytes in wanted:
            if offset < len(data):
                content = file.read_at(offset, num_bytes=num_bytes)
                assert content == data[offset : offset + num_bytes]
