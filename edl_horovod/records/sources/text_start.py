"""Detection of the byte order mark of text files, and of files that are not plain text."""

from edl_horovod.errors import DataError
from edl_horovod.records.files.input_file import InputFile

__all__ = ["text_start"]

_UTF8_MARK = b"\xef\xbb\xbf"
_FOREIGN_STARTS = {
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"\x1f\x8b": "gzip-compressed",
    b"PK\x03\x04": "a zip archive or a spreadsheet",
}


def text_start(file: InputFile, name: str) -> int:
    """Return the offset after the byte order mark; 0 if the file has none.

    Args:
        file: Plain text in UTF-8 or another extension of ASCII.
        name: The name of its format in messages.

    Raises:
        DataError: The file is compressed or has another encoding.
    """
    start = file.read_at(0, num_bytes=4) if file.size_bytes else b""
    for mark, kind in _FOREIGN_STARTS.items():
        if start.startswith(mark):
            raise DataError(
                f"{file.path} is {kind}, not plain {name}.",
                received={"path": file.path, "first_bytes": start.hex(" ")},
                hint=f"Unpack it, or save it as {name} in UTF-8.",
            )
    return len(_UTF8_MARK) if start.startswith(_UTF8_MARK) else 0
