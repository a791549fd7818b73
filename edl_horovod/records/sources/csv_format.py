"""CSV files: a record is the text of one row without its line end.

Chunks are runs of whole rows, found by one scan of the file; they do not include the header line.
The rows are found with array operations, so that a scan is as fast as a disk.

A quote opens a field only at its start and closes it only at its end; inside a field it is doubled.
So a line end ends a row if the number of quotes before it is even. A quote anywhere else is damage:
`tf.io.decode_csv` refuses it too, and the rows after it would be ambiguous.
"""

import functools
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo, FileChunks, holds_bytes, is_skipping, warn_skipped
from edl_horovod.records.columns import FlatRecords
from edl_horovod.records.files.input_file import InputFile, file_error
from edl_horovod.records.files.pool import open_input
from edl_horovod.records.record_format import RecordFormat
from edl_horovod.records.source import FormatSettings
from edl_horovod.records.sources.text_lines import text_start

CHUNK_BYTES = 1 << 20
"""Maximum size of a chunk; only a chunk of a single row is larger."""
MAX_ROW_BYTES = 32 << 20
"""A longer row is treated as a row with an unclosed quote."""
_READ_BYTES = 4 << 20
_READ_BYTES_AFTER_DAMAGE = 1 << 16

_HINT = (
    "Quote the whole field and double the quotes in it, or set data_plan.damaged=skip to skip such"
    " lines."
)

_LF, _CR, _QUOTE = b"\n"[0], b"\r"[0], b'"'[0]
# Bytes allowed next to an opening or closing quote: a delimiter, a line end, another quote.
_MAY_ADJOIN_QUOTE = np.zeros(256, dtype=bool)
_MAY_ADJOIN_QUOTE[list(b',;\t|\n\r"')] = True


@dataclass(frozen=True)
class _BadQuote:
    """A quote that makes the ends of rows ambiguous."""

    offset: int
    is_open: bool
    """Whether the quote is never closed; if not, it is at an invalid position."""


@dataclass(frozen=True)
class _Rows:
    """The rows of a part of a file that begins at the start of a row."""

    starts: NDArray[np.int64]
    """Offset of the first byte of each complete row, up to the first damage."""
    ends: NDArray[np.int64]
    """Offset after the line end of each of these rows."""
    is_empty: NDArray[np.bool_]
    """Whether the row is empty."""
    bad_quote: _BadQuote | None
    """The first bad quote, which is after these rows."""

    @property
    def num_bytes(self) -> int:
        """Total size of these rows, in bytes."""
        return int(self.ends[-1]) if len(self.ends) else 0


def make(name: str, settings: FormatSettings) -> RecordFormat:
    """The format with the settings of a job."""
    scan = functools.partial(read_chunks, damaged=settings.damaged, has_header=settings.csv_header)
    return RecordFormat(name, scan, decode_chunk, holds_bytes)


def read_chunks(path: str, *, damaged: str = "raise", has_header: bool = True) -> FileChunks:
    """Find the chunks of a CSV file; reads the whole file once.

    Args:
        path: A CSV file in UTF-8 or another extension of ASCII.
        damaged: `raise` at a row with an unclosed or misplaced quote, or `skip` such lines.
        has_header: Whether the first non-empty line names the columns.

    Raises:
        DataError: The file cannot be opened, is damaged, is compressed or is not text, or its
            header looks like data.
    """
    with open_input(path) as file:
        scan = _Scan(file, is_skipping(damaged), wants_header=has_header)
        scan.run()
        chunks, num_skipped = tuple(scan.chunks), scan.num_skipped
        return FileChunks(path, file.size_bytes, chunks, num_skipped, num_skipped, scan.header)


def decode_chunk(payload: bytes, *, chunk: ChunkInfo, path: str) -> FlatRecords:
    """Decode the rows of a chunk, without line ends and empty lines.

    Raises:
        DataError: The file has changed since it was scanned.
    """
    chunk.check(payload, path)
    rows = find_rows(payload, is_end=True)
    text, ends = np.frombuffer(payload, dtype=np.uint8), rows.ends
    for line_end in (_LF, _CR):  # A row has at least one byte.
        ends = ends - (text[ends - 1] == line_end)
    is_row = ends > rows.starts
    return FlatRecords(payload, rows.starts[is_row], ends[is_row])


def find_rows(data: bytes, *, is_end: bool) -> _Rows:
    """Find the complete rows at the start of a part of a file.

    Args:
        data: Bytes that begin at the start of a row.
        is_end: Whether the file ends with `data`; then the last row needs no line end.
    """
    text = np.frombuffer(data, dtype=np.uint8)
    ends = _line_ends(data, text, is_end=is_end)
    bad_quote = None
    if b'"' in data:
        quotes = np.flatnonzero(text == _QUOTE)
        ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
        bad_quote = _first_stray(text, quotes)
        if bad_quote is None and is_end and len(quotes) % 2:
            bad_quote = _BadQuote(_last_opening(text, quotes), is_open=True)
        if bad_quote is not None:
            ends = ends[ends <= bad_quote.offset]
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    first_bytes = text[starts]
    is_empty = (first_bytes == _LF) | (first_bytes == _CR)
    return _Rows(starts, ends, is_empty, bad_quote)


@dataclass
class _Scan:
    """One pass over a file."""

    file: InputFile
    is_skipping: bool
    wants_header: bool
    chunks: list[ChunkInfo] = field(default_factory=list)
    header: bytes = b""
    num_skipped: int = 0

    def run(self) -> None:
        size = self.file.size_bytes
        offset = text_start(self.file, "CSV")
        read_bytes = _READ_BYTES
        while offset < size:
            data = self.file.read_at(offset, num_bytes=read_bytes)
            is_end = offset + len(data) >= size
            rows = find_rows(data, is_end=is_end)
            self._add(data[: rows.num_bytes], rows, offset=offset)
            offset += rows.num_bytes
            rest = data[rows.num_bytes :]
            problem = _problem(rows, rest, offset=offset)
            if problem:
                # Never skip the header: another line would be used in its place.
                if not self.is_skipping or (self.wants_header and not self.header):
                    raise file_error(self.file.path, f"is damaged: {problem}.", _HINT)
                end = self._next_line(rest, offset)
                warn_skipped(self.file.path, f"bytes {offset} to {end}", problem)
                self.num_skipped += 1
                offset, read_bytes = end, _READ_BYTES_AFTER_DAMAGE
            elif rows.num_bytes:
                read_bytes = min(_READ_BYTES, read_bytes * 4)
            else:
                read_bytes = min(MAX_ROW_BYTES + 1, read_bytes * 4)

    def _add(self, data: bytes, rows: _Rows, *, offset: int) -> None:
        """Split whole rows, which begin at `offset` in the file, into chunks; store the header."""
        is_record = ~rows.is_empty
        row = 0
        if self.wants_header and not self.header and is_record.any():
            header_row = int(is_record.argmax())
            header = data[rows.starts[header_row] : rows.ends[header_row]]
            self.header = header.rstrip(b"\r\n")
            self._check_header()
            row = header_row + 1
        while row < len(rows.ends):
            chunk_start = int(rows.starts[row])
            end_row = np.searchsorted(rows.ends, chunk_start + CHUNK_BYTES, side="right")
            next_row = max(row + 1, int(end_row))
            num_records = int(np.count_nonzero(is_record[row:next_row]))
            if num_records:
                payload = data[chunk_start : rows.ends[next_row - 1]]
                start, number = offset + chunk_start, len(self.chunks)
                chunk = ChunkInfo.of(payload, number, offset=start, num_records=num_records)
                self.chunks.append(chunk)
            row = next_row

    def _check_header(self) -> None:
        if all(_is_number(name) for name in self.header.split(b",")):
            raise DataError(
                f"The first line of {self.file.path} contains only numbers, so it is not a header.",
                received=repr(self.header[:80]),
                hint="Set data_plan.csv_header=false if the files have no header line.",
            )

    def _next_line(self, rest: bytes, offset: int) -> int:
        """Return the offset of the next line; `rest` is the data already read from `offset`."""
        while (index := rest.find(b"\n")) < 0:
            offset += len(rest)
            if offset >= self.file.size_bytes:
                return offset
            rest = self.file.read_at(offset, num_bytes=_READ_BYTES)
        return offset + index + 1


def _problem(rows: _Rows, rest: bytes, *, offset: int) -> str:
    """Describe the problem of the row at an offset, whose bytes so far are `rest`; "" if none."""
    if rows.bad_quote is not None:
        quote_offset = offset - rows.num_bytes + rows.bad_quote.offset
        problem = "is never closed" if rows.bad_quote.is_open else "neither starts nor ends a field"
        row = f"the row that starts at byte {offset}"
        return f"the quote at byte {quote_offset}, in {row}, {problem}"
    limit = f"is longer than {MAX_ROW_BYTES} bytes; a quote in it may be unclosed"
    is_long = len(rest) > MAX_ROW_BYTES
    return f"the row that starts at byte {offset} {limit}" if is_long else ""


def _is_number(text: bytes) -> bool:
    try:
        float(text.strip(b' "'))
    except ValueError:
        return False
    return True


def _line_ends(data: bytes, text: NDArray[np.uint8], *, is_end: bool) -> NDArray[np.int64]:
    ends = np.flatnonzero(text == _LF) + 1
    if b"\r" in data:
        after_cr = np.flatnonzero(text == _CR) + 1
        # The CR of a CRLF does not end a row. For a CR at the end the next byte is unknown.
        is_inside = after_cr < len(text)
        lone_cr_ends = after_cr[is_inside][text[after_cr[is_inside]] != _LF]
        final_end = after_cr[~is_inside] if is_end else after_cr[:0]
        ends = np.sort(np.concatenate([ends, lone_cr_ends, final_end]))
    if is_end and len(text) and (not len(ends) or ends[-1] != len(text)):
        ends = np.append(ends, len(text))
    return ends.astype(np.int64)


def _first_stray(text: NDArray[np.uint8], quotes: NDArray[np.int64]) -> _BadQuote | None:
    opening, closing = quotes[0::2], quotes[1::2]
    opening = opening[opening > 0]
    closing = closing[closing + 1 < len(text)]
    stray_opening = opening[~_MAY_ADJOIN_QUOTE[text[opening - 1]]]
    stray_closing = closing[~_MAY_ADJOIN_QUOTE[text[closing + 1]]]
    stray = [int(positions[0]) for positions in (stray_opening, stray_closing) if len(positions)]
    return _BadQuote(min(stray), is_open=False) if stray else None


def _last_opening(text: NDArray[np.uint8], quotes: NDArray[np.int64]) -> int:
    """Return the offset of the quote that opens the last, unclosed field."""
    opening = quotes[0::2]
    # The other ones are the second quotes of doubled quotes.
    is_first = (opening == 0) | (text[opening - 1] != _QUOTE)
    return int(opening[is_first][-1])
