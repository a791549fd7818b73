"""The statements of a program as data, their positions in it, their results and their errors."""

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edl_horovod.errors import ConfigError
from edl_horovod.files.url_secrets import without_secrets


@dataclass(frozen=True, kw_only=True)
class Importance:
    """The importance of a column."""

    column: str
    importance: float
    """How much the score falls when the column is shuffled: the mean over the repeats."""
    deviation: float
    """The standard deviation over the repeats."""


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
    importances: tuple[Importance, ...] = ()
    """The rows of an EXPLAIN, for `metrics.draw`."""

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


_MOST_SHOWN = 100
"""Characters of a line that an error shows."""


@dataclass(frozen=True)
class SourcePosition:
    """A position in the text of a program."""

    text: str = field(repr=False)
    offset: int
    """Number of characters before it."""

    @property
    def line(self) -> int:
        """The line, counted from 1."""
        return self.text.count("\n", 0, self.offset) + 1

    @property
    def column(self) -> int:
        """The character within the line, counted from 1."""
        return self.offset - self._line_start + 1

    @property
    def excerpt(self) -> str:
        """The line with a caret below the position; only the line where it holds secrets."""
        end = self.text.find("\n", self.offset)
        line = self.text[self._line_start : end if end >= 0 else None].rstrip("\r")
        if without_secrets(line) != line:
            return f"  {without_secrets(line)}"
        skipped = max(0, self.column - 1 - _MOST_SHOWN // 2)
        shown = line[skipped : skipped + _MOST_SHOWN]
        # A tab stays one, so that the caret stands below its character.
        before = ["\t" if char == "\t" else " " for char in shown[: self.column - 1 - skipped]]
        return f"  {_printable(shown)}\n  {''.join(before)}^"

    @property
    def _line_start(self) -> int:
        return self.text.rfind("\n", 0, self.offset) + 1


class StatementError(ConfigError):
    """A statement that cannot be understood or carried out."""

    def __init__(self, problem: str, position: SourcePosition, *, hint: str = "") -> None:
        """Add the line of the program to the hint.

        Args:
            problem: What is wrong, as a sentence.
            position: Where the wrong part begins.
            hint: What to write instead, in sentences.
        """
        self.position = position
        super().__init__(
            problem,
            received=f"line {position.line}, column {position.column}",
            hint=f"{hint.strip()}\n{position.excerpt}",
        )


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A part of a program."""

    position: SourcePosition

    def error(self, problem: str, hint: str) -> StatementError:
        """An error in this part; see `StatementError`."""
        return StatementError(problem, self.position, hint=hint)


@dataclass(frozen=True, kw_only=True)
class Name(_Part):
    """A name of one part, or of several parts with dots between them."""

    parts: tuple[str, ...]
    """Without quotes."""
    folded: tuple[str, ...]
    """The parts as PostgreSQL reads them: in lower case unless quoted."""

    def __str__(self) -> str:
        return ".".join(self.parts)

    def parts_in(self, dialect: str) -> tuple[str, ...]:
        """The parts as a database with this dialect looks them up."""
        return self.folded if dialect == "postgres" else self.parts


@dataclass(frozen=True, kw_only=True)
class ModelName(_Part):
    """A trained model by its name, `m`, or one version of it, `m@3`."""

    name: str
    version: int | None
    """None for the live version."""

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"


@dataclass(frozen=True, kw_only=True)
class HparamRange:
    """HPARAM_RANGE(low, high [, 'log']): the numbers between two bounds, including both."""

    low: int | float
    high: int | float
    is_log: bool
    """Whether values are drawn on a logarithmic scale."""
    written: str
    """As in the statement."""


@dataclass(frozen=True, kw_only=True)
class HparamCandidates:
    """HPARAM_CANDIDATES([value, ...]): a list of literals."""

    values: tuple[Any, ...]
    written: str
    """As in the statement."""


Hparam = HparamRange | HparamCandidates
"""Several values of an attribute, one for each trial of a training."""


@dataclass(frozen=True, kw_only=True)
class Attribute(_Part):
    """One `name=value` of a WITH clause."""

    name: str
    """The whole name, with dots: `model.hidden_units`."""
    value: Any
    """A literal: a number, text, True, False, None, or a list or dict of these; for TRAIN also an
    `Hparam`."""


@dataclass(frozen=True, kw_only=True)
class ColumnCall(_Part):
    """A function of a COLUMN clause: `BUCKET(age, [18, 65])`."""

    function: str
    """As written; empty for a list of columns."""
    arguments: "tuple[ColumnCall | Name | Literal, ...]"


@dataclass(frozen=True, kw_only=True)
class Literal(_Part):
    """A number, text or list in a COLUMN function."""

    value: Any


ColumnTerm = ColumnCall | Name


@dataclass(frozen=True, kw_only=True)
class ColumnClause(_Part):
    """One COLUMN clause: terms for one part of the model."""

    terms: tuple[ColumnTerm, ...]
    part: str
    """The part that FOR names, for example `deep`; empty without FOR."""


@dataclass(frozen=True, kw_only=True)
class Statement(_Part):
    """Any statement."""


@dataclass(frozen=True, kw_only=True)
class ModelStatement(Statement):
    """A statement about a trained model."""

    model: ModelName


@dataclass(frozen=True, kw_only=True)
class SelectStatement(Statement):
    """A SELECT, unchanged, followed by added clauses."""

    text: str
    """The whole statement."""
    select: str
    """The SELECT alone."""
    attributes: tuple[Attribute, ...]

    def values(self) -> Mapping[str, Any]:
        """The WITH clause as a dict."""
        return {attribute.name: attribute.value for attribute in self.attributes}


@dataclass(frozen=True, kw_only=True)
class Train(SelectStatement):
    """SELECT ... TRAIN model [WITH] [COLUMN ...] [LABEL] [USING] INTO name."""

    model: Name
    """A model of the model zoo."""
    columns: tuple[ColumnClause, ...]
    label: Name | None
    using: ModelName | None
    """The trained model whose weights the training starts from."""
    into: ModelName
    or_replace: bool
    if_not_exists: bool


@dataclass(frozen=True, kw_only=True)
class Predict(SelectStatement):
    """SELECT ... PREDICT [table.column] [WITH] USING name."""

    target: Name | None
    """The table and the column; None returns the predictions as rows."""
    using: ModelName


@dataclass(frozen=True, kw_only=True)
class Evaluate(SelectStatement):
    """SELECT ... EVALUATE name [WITH] [LABEL] [INTO table]."""

    model: ModelName
    label: Name | None
    into: Name | None
    """The table for the metrics; None returns them as rows."""


@dataclass(frozen=True, kw_only=True)
class EvaluateColumns(SelectStatement):
    """SELECT ... EVALUATE [WITH] LABEL column USING column [INTO table]."""

    label: Name
    predicted: Name
    into: Name | None


@dataclass(frozen=True, kw_only=True)
class Explain(SelectStatement):
    """SELECT ... EXPLAIN name [WITH] [LABEL] [USING explainer] [INTO table]."""

    model: ModelName
    label: Name | None
    explainer: Name | None
    """An explainer of SQLFlow, which has no effect: columns are always shuffled."""
    into: Name | None


class ShowTrain(ModelStatement):
    """SHOW TRAIN name: the statement that trained a model."""


class ShowLog(ModelStatement):
    """SHOW LOG name: losses and metrics of the steps of a training."""


class ShowTrials(ModelStatement):
    """SHOW TRIALS name: all trials of the training of a model."""


class ShowModels(Statement):
    """SHOW MODELS: all versions of all trained models."""


class AlterModel(ModelStatement):
    """ALTER MODEL name@version SET LIVE: the version that the name alone means."""


class DescribeModel(ModelStatement):
    """DESCRIBE MODEL name: everything stored about a version."""


@dataclass(frozen=True, kw_only=True)
class DropModel(ModelStatement):
    """DROP MODEL [IF EXISTS] name."""

    if_exists: bool


class ShowJobs(Statement):
    """SHOW JOBS: the jobs of statements, running and failed."""


@dataclass(frozen=True, kw_only=True)
class Kill(Statement):
    """KILL number: end a job of SHOW JOBS."""

    job: int


@dataclass(frozen=True, kw_only=True)
class Standard(Statement):
    """A statement in standard SQL, which the database gets unchanged."""

    text: str


def _printable(text: str) -> str:
    """The text with a question mark for each character that could control a terminal."""
    return "".join(char if char.isprintable() or char == "\t" else "?" for char in text)
