"""A step's records as a user's `create_dataset` gets them: bytes, or their columns."""

from typing import Any

import torch

from edl_horovod.records.columns import Ragged, Values
from edl_horovod.records.layout import BYTES, Layout
from edl_horovod.records.source import Records

__all__ = ["given_records", "num_records"]


def num_records(records: Records) -> int:
    """How many records these are."""
    first = records[0] if records else b""
    return len(records) if isinstance(first, bytes) else len(first)


def given_records(records: Records, layout: Layout | None) -> Any:
    """The records of a step.

    Args:
        records: As the source read them.
        layout: The source's columns; None where a record is bytes.

    Returns:
        A list of bytes; or, packed as the source packs a record, one value for each column: a
        tensor of shape (records, ...), a list of tensors where records differ in length, or a list
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
            left = iter(values.values)
            return [[next(left) for _ in range(length)] for length in lengths]
        return list(torch.split(torch.as_tensor(values.values), lengths))
    return values.tolist() if is_text else torch.as_tensor(values)
