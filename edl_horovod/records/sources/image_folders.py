"""Image files in one folder per class: a record is an encoded image with the number of its class.

Classes are numbered in the order of their sorted names, as in
`keras.utils.image_dataset_from_directory`.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo, FileChunks
from edl_horovod.records.columns import ColumnChunk, FlatRecords, Stored
from edl_horovod.records.files.input_file import InputFile, file_error, folder_name
from edl_horovod.records.files.pool import open_input
from edl_horovod.records.index_tables import IndexedFile
from edl_horovod.records.layout import BYTES, Column, Layout, selected_columns
from edl_horovod.records.record_format import ColumnFormat, RecordFormat
from edl_horovod.records.source import FormatSettings

log = logging.getLogger(__name__)

_TYPES = {"image": BYTES, "label": "int64", "class": BYTES}
"""The types of the columns, by name."""
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM")
_SIGNATURE_BYTES = 8


def make(name: str, settings: FormatSettings) -> RecordFormat:
    """The format with the settings of a job."""
    # Before all images are looked at, which takes minutes for a million.
    selected_columns(settings.columns, _TYPES, holder="An image file")
    folders = ImageFolders(skips_damage=settings.damaged == "skip")
    decode = ColumnFormat(folders.layout, folders.decode)
    return RecordFormat(name, folders.scan, decode, folders.holds, change_detection="time")


class ImageFolders:
    """Scans and reads the image files of one job."""

    def __init__(self, *, skips_damage: bool) -> None:
        self._skips_damage = skips_damage
        self._numbers: dict[str, int] = {}

    def scan(self, path: str) -> FileChunks:
        """Return the image as the only chunk of its file; read its start only with `damaged=skip`.

        Raises:
            DataError: The file does not exist or is empty.
        """
        with open_input(path) as file:
            size = file.size_bytes
            start = file.read_at(0, num_bytes=_SIGNATURE_BYTES) if self._skips_damage else b""
        if not size and not self._skips_damage:
            raise _not_an_image(path, b"")
        if self._skips_damage and not start.startswith(_SIGNATURES):
            log.warning("%s: skipped, it is not an image (data_plan.damaged=skip)", path)
            return FileChunks(path, size, (), skipped_chunks=1, skipped_records=1)
        chunk = ChunkInfo.between(0, 0, size, checksum=0, num_records=1)
        return FileChunks(path, size, (chunk,))

    def layout(self, files: Sequence[IndexedFile], selected: Sequence[str]) -> Layout:
        """Return the columns, and number the classes of the files.

        Raises:
            ConfigError: A selected column does not exist.
        """
        classes = tuple(sorted({folder_name(file.path) for file in files}))
        self._numbers = {name: number for number, name in enumerate(classes)}
        names = selected_columns(selected, _TYPES, holder="An image file")
        columns = {name: Column(name, dtype) for name, dtype in _TYPES.items()}
        columns["label"] = replace(columns["label"], classes=classes)
        return Layout(tuple(columns[name] for name in names))

    def decode(
        self, payload: bytes, *, chunk: ChunkInfo, file: IndexedFile, layout: Layout
    ) -> ColumnChunk:
        """Return the encoded image and its class.

        Raises:
            DataError: `tf.io.decode_image` does not support the image, or its size has changed.
        """
        if len(payload) != chunk.compressed_bytes:
            raise chunk.changed(file.path)
        if not payload.startswith(_SIGNATURES):
            raise _not_an_image(file.path, payload[:_SIGNATURE_BYTES])
        name = folder_name(file.path)
        values: dict[str, Stored] = {
            "image": _single_record(payload),
            "label": np.array([self._numbers[name]], dtype=np.int64),
            "class": _single_record(name.encode()),
        }
        return ColumnChunk([values[column.name] for column in layout.columns])

    def holds(self, file: InputFile, chunk: ChunkInfo) -> bool:
        """Whether the size of a file is unchanged; the image itself is not read."""
        return file.size_bytes == chunk.compressed_bytes


def _single_record(content: bytes) -> FlatRecords:
    ends = np.array([len(content)], dtype=np.int64)
    return FlatRecords(content, np.zeros(1, dtype=np.int64), ends)


def _not_an_image(path: str, start: bytes) -> DataError:
    problem = f"is not a JPEG, PNG, GIF or BMP image: it starts with {start.hex(' ') or 'nothing'}."
    hint = "Remove it, or set data_plan.damaged=skip to skip files that are not images."
    return file_error(path, problem, hint)
