"""Pictures in a folder for each class: a record is a picture with the number of its class.

Classes are numbered by their sorted names, as `keras.utils.image_dataset_from_directory` does.
"""

import logging
from collections.abc import Sequence

import numpy as np

from edl_horovod.errors import ConfigError, DataError
from edl_horovod.records.chunks import ChunkInfo, Codec, FileChunks, changed
from edl_horovod.records.columns import ColumnChunk, Stored
from edl_horovod.records.files.input_file import InputFile
from edl_horovod.records.files.local import open_input
from edl_horovod.records.flat_records import FlatRecords
from edl_horovod.records.layout import BYTES, Column, Layout
from edl_horovod.records.record_format import FormatSettings
from edl_horovod.records.sources.image_classes import class_of
from edl_horovod.records.tables import IndexedFile

__all__ = ["ImageFolders"]

log = logging.getLogger(__name__)

_COLUMNS = (Column("image", BYTES), Column("label", "int64"), Column("class", BYTES))
_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM")
_LONGEST_START = 8


class ImageFolders:
    """Scans and reads the pictures of one job."""

    def __init__(self, settings: FormatSettings) -> None:
        """Follow the settings.

        Raises:
            ConfigError: There is no such column.
        """
        columns = {column.name: column for column in _COLUMNS}
        for name in settings.columns:
            if name not in columns:
                raise ConfigError(
                    f"Pictures have no column {name!r}.",
                    received={"data_plan.columns": ",".join(settings.columns)},
                    cure=f"They have {', '.join(columns)}.",
                )
        self._columns = tuple(columns[name] for name in settings.columns) or _COLUMNS
        self._is_skipping = settings.damaged == "skip"
        self._numbers: dict[str, int] = {}

    def scan(self, path: str) -> FileChunks:
        """A picture as the only chunk of its file; its start is read with `damaged=skip` alone.

        Raises:
            DataError: It is not there, or is empty.
        """
        with open_input(path) as file:
            size = file.size_bytes
            start = file.read_at(0, num_bytes=_LONGEST_START) if self._is_skipping else b""
        is_damaged = not size or (self._is_skipping and not start.startswith(_STARTS))
        if is_damaged and not self._is_skipping:
            raise _no_picture(path, b"")
        if is_damaged:
            log.warning("%s: left out, it is no picture (data_plan.damaged=skip)", path)
            return FileChunks(
                path=path, size_bytes=size, chunks=(), skipped_chunks=1, skipped_records=1
            )
        chunk = ChunkInfo(
            number=0,
            offset=0,
            checksum=0,
            codec=Codec.NONE,
            compressed_bytes=size,
            num_records=1,
        )
        return FileChunks(path=path, size_bytes=size, chunks=(chunk,))

    def layout(self, files: Sequence[IndexedFile]) -> Layout:
        """The columns; the classes get their numbers."""
        names = sorted({class_of(file.path) for file in files})
        self._numbers = {name: number for number, name in enumerate(names)}
        return Layout(self._columns)

    def decode(
        self, payload: bytes, *, chunk: ChunkInfo, file: IndexedFile, layout: Layout
    ) -> ColumnChunk:
        """A picture as its file holds it, and its class.

        Raises:
            DataError: It is none that `tf.io.decode_image` knows, or has another size now.
        """
        if len(payload) != chunk.compressed_bytes:
            raise changed(file.path, chunk)
        if not payload.startswith(_STARTS):
            raise _no_picture(file.path, payload[:_LONGEST_START])
        name = class_of(file.path)
        values: dict[str, Stored] = {
            "image": _one(payload),
            "label": np.array([self._numbers[name]], dtype=np.int64),
            "class": _one(name.encode()),
        }
        return ColumnChunk([values[column.name] for column in layout.columns])

    def holds(self, file: InputFile, chunk: ChunkInfo) -> bool:
        """Whether a file of the same size is the same: pictures are not read to find that out."""
        return file.size_bytes == chunk.compressed_bytes


def _one(content: bytes) -> FlatRecords:
    ends = np.array([len(content)], dtype=np.int64)
    return FlatRecords(content, np.zeros(1, dtype=np.int64), ends)


def _no_picture(path: str, start: bytes) -> DataError:
    found = start.hex(" ") or "nothing"
    return DataError(
        f"{path} is no JPEG, PNG, GIF or BMP picture: it starts with {found}.",
        received={"path": path},
        cure="Remove it, or set data_plan.damaged=skip to leave out what is none.",
    )
