"""What a model of tables keeps of its training data: its columns, its label and its classes."""

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
    """What was found in all rows of a training."""

    label: Column
    columns: Mapping[str, Column]
    """What may be learned from, by name: all but the label."""
    classes: Classes | None
    """Of the label; None where it is a number."""

    def to_json(self) -> dict[str, Any]:
        """The summary as plain values."""
        return {
            "label": self.label.to_json(),
            "columns": [column.to_json() for column in self.columns.values()],
            "classes": self.classes.to_json() if self.classes is not None else None,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """The summary that `to_json` gave."""
        columns = [Column.from_json(each) for each in found["columns"]]
        return cls(
            label=Column.from_json(found["label"]),
            columns={column.name: column for column in columns},
            classes=Classes.from_json(found["classes"]) if found["classes"] else None,
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
    """Look at all rows of a training once.

    Args:
        records: The rows, as texts.
        blocks: Some rows after the other, as columns; None where there are only texts.
        label: The column that is learned.
        has_classes: Whether the label is one of some classes; else it is a number.
        kinds: Columns that are to be taken for texts, or for numbers.
        tell: Called with a line for each column.
        categories: Columns whose values are categories, so that numbers have a vocabulary, too.

    Raises:
        DataError: A column is missing or cannot be learned from, or the label cannot be learned.
    """
    counts: Counter[str] = Counter()
    if blocks is not None:
        counting = _counting(blocks, label, counts, has_classes)
        found = infer_typed(counting, kinds=kinds, categories=categories)
    else:
        known = dict(kinds)
        if has_classes:
            known[label] = "text"
        texts = _counting_texts(rows_of(records), label, counts)
        found = infer(texts, kinds=known, categories=categories)
    for name in (label, *kinds):
        if name not in found:
            raise DataError(
                f"The data have no column {name!r}.",
                received=f"columns {', '.join(sorted(found)) or 'none'}",
                cure=did_you_mean(name, found) or "Select it, or name another.",
            )
    for name in sorted(found):
        tell(f"column {found[name]}")
    classes = None
    if has_classes:
        require_filled(found[label])
        classes = classes_of(found[label], counts)
        tell(f"label {label}: classes {', '.join(map(str, classes.values))}")
    else:
        require_number(found[label])
    # The vocabulary of a label is its classes.
    of_label = replace(found.pop(label), vocabulary=())
    return TableSummary(label=of_label, columns=found, classes=classes)


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
