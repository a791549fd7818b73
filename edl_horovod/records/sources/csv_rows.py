"""Where the rows of CSV text end. Pure, and by whole arrays: a scan keeps up with a disk.

A quote opens a field only at the field's start and closes it only at its end; inside it is doubled.
So a line end ends a row where the number of quotes before it is even. A quote anywhere else is
damage: `tf.io.decode_csv` would refuse it too, and what follows it could be cut in two ways.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["BadQuote", "Rows", "find_rows"]

_LF, _CR, _QUOTE = b"\n"[0], b"\r"[0], b'"'[0]
# Beside a quote that opens or closes a field: any delimiter in use, a line end, another quote.
_FITS = np.zeros(256, dtype=bool)
_FITS[list(b',;\t|\n\r"')] = True


@dataclass(frozen=True)
class BadQuote:
    """A quote that makes it unsure where rows end."""

    at: int
    is_open: bool
    """Whether it is never closed; else it is in the wrong place."""


@dataclass(frozen=True)
class Rows:
    """What was found in a stretch of a file that starts where a row does."""

    starts: NDArray[np.int64]
    """The first byte of each whole row, up to the first damage."""
    ends: NDArray[np.int64]
    """The byte after each of these rows and its line end."""
    is_empty: NDArray[np.bool_]
    """Whether there is nothing in the row."""
    bad_quote: BadQuote | None
    """The first one after those rows."""

    @property
    def num_bytes(self) -> int:
        """Size of the whole rows."""
        return int(self.ends[-1]) if len(self.ends) else 0


def find_rows(data: bytes, *, is_end: bool) -> Rows:
    """The whole rows at the start of a stretch.

    Args:
        data: Starts at the start of a row.
        is_end: Whether the file ends with it; then its last row needs no line end.
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
            ends = ends[ends <= bad_quote.at]
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    first_bytes = text[starts]
    is_empty = (first_bytes == _LF) | (first_bytes == _CR)
    return Rows(starts, ends, is_empty, bad_quote)


def _line_ends(data: bytes, text: NDArray[np.uint8], *, is_end: bool) -> NDArray[np.int64]:
    ends = np.flatnonzero(text == _LF) + 1
    if b"\r" in data:
        after = np.flatnonzero(text == _CR) + 1
        # The CR of a CRLF is no end of its own; whether the last byte is one, the next would tell.
        is_inside = after < len(text)
        alone = after[is_inside][text[after[is_inside]] != _LF]
        last = after[~is_inside] if is_end else after[:0]
        ends = np.sort(np.concatenate([ends, alone, last]))
    if is_end and len(text) and (not len(ends) or ends[-1] != len(text)):
        ends = np.append(ends, len(text))
    return ends.astype(np.int64)


def _first_stray(text: NDArray[np.uint8], quotes: NDArray[np.int64]) -> BadQuote | None:
    opening, closing = quotes[0::2], quotes[1::2]
    opening = opening[opening > 0]
    closing = closing[closing + 1 < len(text)]
    stray_opening = opening[~_FITS[text[opening - 1]]]
    stray_closing = closing[~_FITS[text[closing + 1]]]
    stray = [int(found[0]) for found in (stray_opening, stray_closing) if len(found)]
    return BadQuote(min(stray), is_open=False) if stray else None


def _last_opening(text: NDArray[np.uint8], quotes: NDArray[np.int64]) -> int:
    """The quote that opens the field in which the text ends."""
    opening = quotes[0::2]
    # The others are second halves of doubled quotes.
    is_first = (opening == 0) | (text[opening - 1] != _QUOTE)
    return int(opening[is_first][-1])
