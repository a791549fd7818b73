"""The statements of a program as data: what `parser.parse` returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edl_horovod.sql.problems import SourcePosition

__all__ = [
    "AlterModel",
    "Attribute",
    "ColumnCall",
    "ColumnClause",
    "ColumnTerm",
    "DescribeModel",
    "DropModel",
    "Evaluate",
    "EvaluateColumns",
    "Explain",
    "Hparam",
    "HparamCandidates",
    "HparamRange",
    "Kill",
    "Literal",
    "ModelName",
    "Name",
    "Predict",
    "ShowJobs",
    "ShowLog",
    "ShowModels",
    "ShowTrain",
    "ShowTrials",
    "Standard",
    "Statement",
    "Train",
]


@dataclass(frozen=True, kw_only=True)
class Name:
    """A name, possibly of several parts with dots between."""

    parts: tuple[str, ...]
    """Without quotes."""
    folded: tuple[str, ...]
    """The same as PostgreSQL reads them: what stands in no quotes is in lower case."""
    position: SourcePosition

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True, kw_only=True)
class ModelName:
    """A trained model by its name, `m`, or one version of it, `m@3`."""

    name: str
    version: int | None
    """None for the live one."""
    position: SourcePosition

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"


@dataclass(frozen=True, kw_only=True)
class HparamRange:
    """HPARAM_RANGE(low, high [, 'log']): the numbers between two bounds, which belong to it."""

    low: int | float
    high: int | float
    is_log: bool
    """Whether small numbers are chosen as often as large ones."""
    written: str


@dataclass(frozen=True, kw_only=True)
class HparamCandidates:
    """HPARAM_CANDIDATES([value, ...]): some literals."""

    values: tuple[Any, ...]
    written: str


Hparam = HparamRange | HparamCandidates
"""Several values of an attribute, of which each trial of a training has one."""


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """One `name=value` of a WITH clause."""

    name: str
    """With dots: `model.hidden_units`."""
    value: Any
    """A literal: a number, text, True, False, None, or a list or dict of these; of TRAIN also an
    `Hparam`."""
    position: SourcePosition


@dataclass(frozen=True, kw_only=True)
class ColumnCall:
    """A function of a COLUMN clause: `BUCKET(age, [18, 65])`."""

    function: str
    """As it was written."""
    arguments: "tuple[ColumnCall | Name | Literal, ...]"
    position: SourcePosition


@dataclass(frozen=True, kw_only=True)
class Literal:
    """A number, text or list in a COLUMN function."""

    value: Any
    position: SourcePosition


ColumnTerm = ColumnCall | Name


@dataclass(frozen=True, kw_only=True)
class ColumnClause:
    """One COLUMN clause: some terms, for one part of the model."""

    terms: tuple[ColumnTerm, ...]
    part: str
    """What FOR names, as `deep`; empty without."""
    position: SourcePosition


@dataclass(frozen=True, kw_only=True)
class _Extended:
    """A SELECT, unchanged, with clauses of ours behind it."""

    text: str
    """The whole statement."""
    select: str
    attributes: tuple[Attribute, ...]
    position: SourcePosition

    def values(self) -> Mapping[str, Any]:
        """The WITH clause as a dict."""
        return {attribute.name: attribute.value for attribute in self.attributes}


@dataclass(frozen=True, kw_only=True)
class Train(_Extended):
    """SELECT ... TRAIN model [WITH] [COLUMN ...] [LABEL] [USING] INTO name."""

    model: Name
    """Of the model zoo."""
    columns: tuple[ColumnClause, ...]
    label: Name | None
    using: ModelName | None
    """The trained model that training begins with."""
    into: ModelName
    or_replace: bool
    if_not_exists: bool


@dataclass(frozen=True, kw_only=True)
class Predict(_Extended):
    """SELECT ... PREDICT [table.column] [WITH] USING name."""

    target: Name | None
    """The table and the column; None returns the predictions as rows."""
    using: ModelName


@dataclass(frozen=True, kw_only=True)
class Evaluate(_Extended):
    """SELECT ... EVALUATE name [WITH] [LABEL] [INTO table]."""

    model: ModelName
    label: Name | None
    into: Name | None
    """The table of the metrics; None returns them as rows."""


@dataclass(frozen=True, kw_only=True)
class EvaluateColumns(_Extended):
    """SELECT ... EVALUATE [WITH] LABEL column USING column [INTO table]."""

    label: Name
    predicted: Name
    into: Name | None


@dataclass(frozen=True, kw_only=True)
class Explain(_Extended):
    """SELECT ... EXPLAIN name [WITH] [LABEL] [USING explainer] [INTO table]."""

    model: ModelName
    label: Name | None
    explainer: Name | None
    """What SQLFlow explains with; columns are shuffled here whatever it is."""
    into: Name | None


@dataclass(frozen=True, kw_only=True)
class ShowTrain:
    """SHOW TRAIN name: the statement that trained a model."""

    model: ModelName
    position: SourcePosition


@dataclass(frozen=True, kw_only=True)
class ShowLog:
    """SHOW LOG name: how the training of a model went."""

    model: ModelName
    position: SourcePosition


@dataclass(frozen=True, kw_only=True)
class ShowTrials:
    """SHOW TRIALS name: the trainings of which the best became the model."""

    model: ModelName
    position: SourcePosition


@dataclass(frozen=True, kw_only=True)
class ShowModels:
    """SHOW MODELS."""

    position: SourcePosition


@dataclass(frozen=True, kw_only=True)
class AlterModel:
    """ALTER MODEL name@version SET LIVE."""

    model: ModelName
    position: SourcePosition


@dataclass(frozen=True, kw_only=True)
class DescribeModel:
    """DESCRIBE MODEL name."""

    model: ModelName
    position: SourcePosition


@dataclass(frozen=True, kw_only=True)
class DropModel:
    """DROP MODEL [IF EXISTS] name."""

    model: ModelName
    if_exists: bool
    position: SourcePosition


@dataclass(frozen=True, kw_only=True)
class ShowJobs:
    """SHOW JOBS."""

    position: SourcePosition


@dataclass(frozen=True, kw_only=True)
class Kill:
    """KILL number, a job of SHOW JOBS."""

    job: int
    position: SourcePosition


@dataclass(frozen=True, kw_only=True)
class Standard:
    """A statement of the database itself, which gets it unchanged."""

    text: str
    position: SourcePosition


Statement = (
    Train
    | Predict
    | Evaluate
    | EvaluateColumns
    | Explain
    | ShowTrain
    | ShowLog
    | ShowTrials
    | ShowModels
    | AlterModel
    | DescribeModel
    | DropModel
    | ShowJobs
    | Kill
    | Standard
)
