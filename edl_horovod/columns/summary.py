"""The summary of its training data that a model of tables stores: columns, label and classes."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from edl_horovod.columns.cells import rows_of
from edl_horovod.columns.infer import Column, Kind, infer
from edl_horovod.columns.labels import Classes, classes_of, require_filled, require_number
from edl_horovod.columns.typed import Array, infer_typed, keys_of
from edl_horovod.errors import DataError, did_you_mean

__all__ = ["TableSummary", "summarize"]


@dataclass(frozen=True, kw_only=True)
class TableSummary:
    """The columns, the label and the classes of the training data."""

    label: Column
    columns: Mapping[str, Column]
    """All columns except the label, by name."""
    classes: Classes | None
    """The classes of the label; None if it is a number."""

    def to_json(self) -> dict[str, Any]:
        """Convert the summary to plain values."""
        return {
            "label": self.label.to_json(),
            "columns": [column.to_json() for column in self.columns.values()],
            "classes": self.classes.to_json() if self.classes is not None else None,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create the summary from the values that `to_json` returned."""
        columns = [Column.from_json(column) for column in values["columns"]]
        return cls(
            label=Column.from_json(values["label"]),
            columns={column.name: column for column in columns},
            classes=Classes.from_json(values["classes"]) if values["classes"] else None,
        )


def summarize(
    records: Iterable[bytes],
    blocks: Iterable[Mapping[str, Array]] | None,
    *,
    label: str,
    has_classes: bool,
    kinds: Mapping[str, Kind],
    tell: Callable[[str], None],
    categories: Collection[str] = (),
) -> TableSummary:
    """Read all rows of the training data once and summarize them.

    Args:
        records: The rows as records of texts.
        blocks: Consecutive blocks of rows as columns; None if the data has only texts.
        label: Name of the column to predict.
        has_classes: Whether the label is a class; if not, it is a number.
        kinds: The kinds of columns that must be text or numbers.
        tell: Called with a line for each column.
        categories: Columns whose values are categories, so that numbers have a vocabulary, too.

    Raises:
        DataError: A column is missing or cannot be used, or the label is unsuitable.
    """
    counts: Counter[str] = Counter()
    if blocks is not None:
        counted_blocks = _counting(blocks, label, counts, has_classes)
        columns = infer_typed(counted_blocks, kinds=kinds, categories=categories)
    else:
        text_kinds = dict(kinds)
        if has_classes:
            text_kinds[label] = "text"
        counted_rows = _counting_texts(rows_of(records), label, counts)
        columns = infer(counted_rows, kinds=text_kinds, categories=categories)
    for name in (label, *kinds):
        if name not in columns:
            raise DataError(
                f"The data has no column {name!r}.",
                received=f"columns {', '.join(sorted(columns)) or 'none'}",
                hint=did_you_mean(name, columns) or "Select it, or choose another column.",
            )
    for name in sorted(columns):
        tell(f"column {columns[name]}")
    classes = None
    if has_classes:
        require_filled(columns[label])
        classes = classes_of(columns[label], counts)
        tell(f"label {label}: classes {', '.join(map(str, classes.values))}")
    else:
        require_number(columns[label])
    # The classes replace the vocabulary of the label.
    label_column = replace(columns.pop(label), vocabulary=())
    return TableSummary(label=label_column, columns=columns, classes=classes)


def _counting(
    blocks: Iterable[Mapping[str, Array]], label: str, counts: Counter[str], has_classes: bool
) -> Iterator[Mapping[str, Array]]:
    for block in blocks:
        if has_classes and label in block and block[label].dtype.kind in "biuOS":
            counts.update(keys_of(block[label]))
        yield block


def _counting_texts(
    rows: Iterable[dict[str, str]], label: str, counts: Counter[str]
) -> Iterator[dict[str, str]]:
    for row in rows:
        if text := row.get(label):
            counts[text] += 1
        yield row
