"""Finding the rows of CSV text with array operations, so that a scan is as fast as a disk.

A quote opens a field only at its start and closes it only at its end; inside a field it is doubled.
So a line end ends a row if the number of quotes before it is even. A quote anywhere else is damage:
`tf.io.decode_csv` refuses it too, and the rows after it would be ambiguous.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["BadQuote", "Rows", "find_rows"]

_LF, _CR, _QUOTE = b"\n"[0], b"\r"[0], b'"'[0]
# Bytes allowed next to an opening or closing quote: a delimiter, a line end, another quote.
_MAY_ADJOIN_QUOTE = np.zeros(256, dtype=bool)
_MAY_ADJOIN_QUOTE[list(b',;\t|\n\r"')] = True


@dataclass(frozen=True)
class BadQuote:
    """A quote that makes the ends of rows ambiguous."""

    offset: int
    is_open: bool
    """Whether the quote is never closed; if not, it is at an invalid position."""


@dataclass(frozen=True)
class Rows:
    """The rows of a part of a file that begins at the start of a row."""

    starts: NDArray[np.int64]
    """Offset of the first byte of each complete row, up to the first damage."""
    ends: NDArray[np.int64]
    """Offset after the line end of each of these rows."""
    is_empty: NDArray[np.bool_]
    """Whether the row is empty."""
    bad_quote: BadQuote | None
    """The first bad quote, which is after these rows."""

    @property
    def num_bytes(self) -> int:
        """Total size of these rows, in bytes."""
        return int(self.ends[-1]) if len(self.ends) else 0


def find_rows(data: bytes, *, is_end: bool) -> Rows:
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
            bad_quote = BadQuote(_last_opening(text, quotes), is_open=True)
        if bad_quote is not None:
            ends = ends[ends <= bad_quote.offset]
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    first_bytes = text[starts]
    is_empty = (first_bytes == _LF) | (first_bytes == _CR)
    return Rows(starts, ends, is_empty, bad_quote)


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


def _first_stray(text: NDArray[np.uint8], quotes: NDArray[np.int64]) -> BadQuote | None:
    opening, closing = quotes[0::2], quotes[1::2]
    opening = opening[opening > 0]
    closing = closing[closing + 1 < len(text)]
    stray_opening = opening[~_MAY_ADJOIN_QUOTE[text[opening - 1]]]
    stray_closing = closing[~_MAY_ADJOIN_QUOTE[text[closing + 1]]]
    stray = [int(positions[0]) for positions in (stray_opening, stray_closing) if len(positions)]
    return BadQuote(min(stray), is_open=False) if stray else None


def _last_opening(text: NDArray[np.uint8], quotes: NDArray[np.int64]) -> int:
    """Return the offset of the quote that opens the last, unclosed field."""
    opening = quotes[0::2]
    # The other ones are the second quotes of doubled quotes.
    is_first = (opening == 0) | (text[opening - 1] != _QUOTE)
    return int(opening[is_first][-1])
