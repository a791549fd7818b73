"""A step's records in the form that a user's `create_dataset` receives: bytes or columns."""

from typing import Any

import torch

from edl_horovod.records.columns import Ragged, Values
from edl_horovod.records.layout import BYTES, Layout
from edl_horovod.records.source import Records

__all__ = ["num_records", "records_for_user"]


def num_records(records: Records) -> int:
    """Return the number of records."""
    first = records[0] if records else b""
    return len(records) if isinstance(first, bytes) else len(first)


def records_for_user(records: Records, layout: Layout | None) -> Any:
    """Convert a step's records for the user's code.

    Args:
        records: The records as the source returned them.
        layout: The source's columns; None if a record is bytes.

    Returns:
        A list of bytes; or, packed as the source packs a record, one value for each column: a
        tensor of shape (records, ...), a list of tensors if the records differ in length, or a list
        of bytes for text.
    """
    if layout is None:
        return records
    return layout.pack(
        [
            _column(values, is_text=column.dtype == BYTES)
            for column, values in zip(layout.columns, records, strict=True)
            if not isinstance(values, bytes)
        ]
    )


def _column(values: Values, *, is_text: bool) -> Any:
    if isinstance(values, Ragged):
        lengths = values.lengths.tolist()
        if is_text:
            remaining = iter(values.values)
            return [[next(remaining) for _ in range(length)] for length in lengths]
        return list(torch.split(torch.as_tensor(values.values), lengths))
    return values.tolist() if is_text else torch.as_tensor(values)
