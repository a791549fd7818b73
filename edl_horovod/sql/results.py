"""The results of statements."""

import html
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edl_horovod.sql.importance import Importance

__all__ = ["Result"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a statement: rows, a trained model, or a message about what was done."""

    columns: tuple[str, ...] = ()
    """Names of the columns; empty for a result without rows."""
    rows: tuple[tuple[Any, ...], ...] = ()
    has_more_rows: bool = False
    """Whether the database had more rows than were read."""
    message: str = ""
    """Sentences about what was done."""
    model: str = ""
    """The version that was trained or used: `m@3`."""
    metrics: dict[str, float] = field(default_factory=dict)
    importances: "tuple[Importance, ...]" = ()
    """The rows of an EXPLAIN, for `importance.draw`."""

    def __iter__(self) -> Any:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def _repr_html_(self) -> str:
        """The result as a notebook shows it."""
        message = f"<p>{html.escape(self.message)}</p>" if self.message else ""
        if not self.columns:
            return message or "<p></p>"
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        lines = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
            for row in self.rows
        )
        return f"<table><tr>{head}</tr>{lines}</table>{message}"

    def dicts(self) -> list[dict[str, Any]]:
        """The rows as dicts with the names of columns as keys."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]
