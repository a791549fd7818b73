"""What a statement asks of a job, decided before any row is read; nothing here acts."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any

from edl_horovod.errors import did_you_mean
from edl_horovod.files.url_secrets import without_secrets
from edl_horovod.models.lookup import list_bases, list_definitions, list_parameters
from edl_horovod.models.zoo import RATE_NAMES
from edl_horovod.sql.attributes import Meaning, read_attributes
from edl_horovod.sql.column_terms import column_dicts, column_names
from edl_horovod.sql.models import About, StoredModel
from edl_horovod.sql.problems import SourcePosition, StatementError
from edl_horovod.sql.spellings import (
    METRICS,
    PARTS,
    WHY_NO_PARAMETER,
    model_of,
    translate,
    why_no_model,
)
from edl_horovod.sql.splitting import Split
from edl_horovod.sql.statements import (
    Attribute,
    ColumnCall,
    Evaluate,
    EvaluateColumns,
    Explain,
    Name,
    Predict,
    Train,
)
from edl_horovod.sql.sweeping import OF_SWEEP, TrialsPlan, plan_trials

__all__ = [
    "ComparisonPlan",
    "MeasuringPlan",
    "PredictionPlan",
    "TrainingPlan",
    "check_columns",
    "check_kinds",
    "plan_comparison",
    "plan_measuring",
    "plan_prediction",
    "plan_training",
    "wanted_metrics",
]

_OF_TRAIN: dict[str, type | UnionType] = {
    "train.class_weights": str,
    "train.nulls": dict | str,
    "train.split": str,
    "train.split_column": str,
    "train.split_fraction": float,
    "train.split_seed": int,
    "train.validation_select": str,
    "validation.metrics": str,
}
_OF_SPLIT = {"split", "split_fraction", "split_seed", "validation_select"}
"""Attributes that say which rows are held back."""
_OF_PREDICT: dict[str, type] = {
    "predict.columns": list,
    "predict.nulls": dict,
    "predict.probabilities": bool,
    "predict.replace_table": bool,
    "predict.replace_values": bool,
}
_OF_EXPLAIN: dict[str, type] = {
    "validation.nulls": dict,
    "validation.overwrite": bool,
}
_OF_EVALUATE: dict[str, type] = {"validation.metrics": str, **_OF_EXPLAIN}
_OF_COMPARISON: dict[str, type] = {"validation.metrics": str, "validation.overwrite": bool}

_CLASSIFIER, _REGRESSOR = "ClassificationSpec", "RegressionSpec"
"""What the zoo's models of tables extend."""
_PARTS = {"deep", "wide"}
"""Of the models that have parts: one that no COLUMN clause is for reads all columns."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A training as its statement describes it."""

    label: str
    settings: dict[str, Any]
    """Of the job, by keys with dots."""
    nulls: dict[str, Any]
    """What a NULL of a column counts as."""
    filled_columns: tuple[str, ...]
    """Columns whose NULLs count as their mean or most frequent value; none without that wish."""
    told: tuple[str, ...]
    """What was decided for the user."""
    split: Split
    """Which rows are held back for the validation."""
    is_split_default: bool
    """Whether the statement says nothing of that, so that few rows are all learned from."""
    split_key: str
    """The column by whose values that is decided, of `key`."""
    validation_select: str
    """Gives the rows of the validation; empty for none but those of `split`."""
    trials: TrialsPlan | None
    """Several trainings, of which the best counts; None for one."""
    has_classes: bool | None
    """Whether the label is one of some classes, or a number; None where the model does not say."""
    num_classes: int | None
    """Most classes that the label may have; None for any number."""
    maybe_dates: tuple[str, ...]
    """Columns whose texts are read as dates if all of them are."""
    columns: tuple[str, ...] | None
    """Those of the SELECT that are needed, the label among them; None for all."""

    @property
    def split_in_words(self) -> str:
        """How rows for the validation are set apart."""
        if self.validation_select:
            return f"validation on {without_secrets(self.validation_select)}"
        if self.split.kind in ("none", "column"):
            return " ".join(filter(None, (self.split.kind, self.split.column)))
        of = f" of {self.split_key}" if self.split_key else ""
        return f"{self.split.kind}{of}: {self.split.fraction:.0%} held back"


@dataclass(frozen=True, kw_only=True)
class PredictionPlan:
    """A prediction as its statement describes it."""

    settings: dict[str, Any]
    nulls: dict[str, Any]
    columns: tuple[str, ...]
    """The names that the user gives the columns of predictions; none takes ours."""
    has_probabilities: bool
    replace_table: bool
    """Whether a table that has nothing to do with the rows may be dropped."""
    replace_values: bool
    """Whether values may be replaced in a column that PREDICT did not add."""


@dataclass(frozen=True, kw_only=True)
class MeasuringPlan:
    """An evaluation or an explanation as its statement describes it."""

    settings: dict[str, Any]
    nulls: dict[str, Any]
    metrics: tuple[str, ...]
    """Those that are asked for, in lower case; none takes all."""
    overwrite: bool
    """Whether a table with an earlier result may be replaced."""
    told: tuple[str, ...]
    """What has no effect."""


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """An evaluation without a model as its statement describes it."""

    label: str
    predicted: str
    metrics: Attribute | None
    """Names those that are asked for; None takes all."""
    overwrite: bool


def plan_training(
    statement: Train, columns: Sequence[str], zoo: Path, *, is_confined: bool = False
) -> TrainingPlan:
    """Decide what a training learns from what.

    Args:
        statement: The statement.
        columns: What its SELECT gives.
        zoo: The folder of models.
        is_confined: Whether only settings that are `PERMITTED` may be set.

    Raises:
        StatementError: The zoo has no such model, the model no such parameter, or the SELECT no
            such column.
    """
    statement, of_spellings = _in_our_words(statement, zoo)
    known = list_parameters(zoo, str(statement.model))
    bases = list_bases(zoo, str(statement.model))
    has_spec = bool({_CLASSIFIER, _REGRESSOR} & bases)
    own_types = _OF_TRAIN | OF_SWEEP
    if _CLASSIFIER in bases and "n_classes" not in (known or ()):
        own_types["model.n_classes"] = int
    meaning = read_attributes(
        statement.attributes,
        prefixes=("model", "train", "validation", "engine", "sweep"),
        own=own_types,
        is_confined=is_confined,
    )
    _check_params(statement, meaning, known)
    read = column_names(statement.columns)
    for name, written in read.items():
        _check_selected(name, columns, written.position, "COLUMN")
    label, told = _label(statement, columns, read)
    own = _own(meaning, "train")
    split = _split(statement, meaning, columns)
    params = _params(statement, meaning, label)
    settings = {f"params.{name}": value for name, value in params.items()} | meaning.settings
    needed = _needed(statement, read, label, own.get("split_column"))
    if split.kind == "column":
        settings["data_plan.columns"] = [name for name in needed or columns if name != split.column]
    if len(columns) - (split.kind == "column") < 2:
        what = f"The SELECT gives only {label!r}, and nothing to learn it from."
        raise StatementError(what, statement.position, hint="Select some more columns.")
    has_validation = split.kind != "none" or bool(own.get("validation_select"))
    nulls = own.get("nulls", {})
    fills = isinstance(nulls, str)
    if fills and nulls != "mean":
        what = "train.nulls must be a {dict}, or 'mean'."
        position = meaning.own["train.nulls"].position
        raise StatementError(what, position, hint=f"It is {nulls!r}.")
    return TrainingPlan(
        label=label,
        settings={**settings, "model_def": str(statement.model)},
        nulls={} if fills else nulls,
        filled_columns=tuple(
            name for name in needed or columns if fills and name not in (label, split.column)
        ),
        told=(*of_spellings, *_told_of_metrics(meaning), *told),
        has_classes=_CLASSIFIER in bases if has_spec else None,
        num_classes=own.get("model.n_classes"),
        split=split,
        is_split_default=not own.keys() & _OF_SPLIT,
        split_key=own["split_column"] if split.kind == "key" else "",
        validation_select=own.get("validation_select", ""),
        trials=plan_trials(meaning, has_validation=has_validation),
        maybe_dates=_maybe_dates(statement, params, needed or columns) if has_spec else (),
        columns=needed,
    )


def plan_prediction(
    statement: Predict, columns: Sequence[str], stored: StoredModel, *, is_confined: bool = False
) -> PredictionPlan:
    """Decide what a prediction reads.

    Raises:
        StatementError: The SELECT lacks a column that the model was trained with, or an attribute
            is wrong.
    """
    for attribute in statement.attributes:
        if attribute.name == "predict.overwrite":
            raise StatementError(
                "The attribute predict.overwrite does not say what may be lost.",
                attribute.position,
                hint="Write predict.replace_values to replace the values of a column, or"
                " predict.replace_table to drop a whole table and make a new one.",
            )
    meaning = read_attributes(
        statement.attributes,
        prefixes=("predict", "engine"),
        own=_OF_PREDICT,
        is_confined=is_confined,
    )
    check_columns(stored, columns, statement.using.position, needs_label=False)
    own = _own(meaning, "predict")
    nulls = {name: value for name, value in stored.about.nulls.items() if name in columns}
    return PredictionPlan(
        settings=meaning.settings,
        nulls=nulls | own.get("nulls", {}),
        columns=tuple(map(str, own.get("columns", ()))),
        has_probabilities=own.get("probabilities", False),
        replace_table=own.get("replace_table", False),
        replace_values=own.get("replace_values", False),
    )


def plan_measuring(
    statement: Evaluate | Explain,
    columns: Sequence[str],
    stored: StoredModel,
    *,
    metrics: Sequence[str] = (),
    is_confined: bool = False,
) -> MeasuringPlan:
    """Decide what an evaluation or an explanation reads.

    Args:
        statement: The statement.
        columns: What its SELECT gives.
        stored: The model.
        metrics: Those of such a model, of an evaluation.
        is_confined: Whether only settings that are `PERMITTED` may be set.

    Raises:
        StatementError: The SELECT lacks a column that the model was trained with, LABEL names
            another than the model's, or there is no such metric.
    """
    attributes, told = translate(statement.attributes)
    meaning = read_attributes(
        attributes,
        prefixes=("validation", "engine"),
        own=_OF_EVALUATE if isinstance(statement, Evaluate) else _OF_EXPLAIN,
        is_confined=is_confined,
    )
    label = stored.about.label
    if statement.label is not None and str(statement.label) != label:
        raise StatementError(
            f"The model {stored} learned {label!r}, not {str(statement.label)!r}.",
            statement.label.position,
            hint=f"Write LABEL {label}, and select it: AS gives a column another name.",
        )
    check_columns(stored, columns, statement.model.position, needs_label=True)
    own = _own(meaning, "validation")
    nulls = {name: value for name, value in stored.about.nulls.items() if name in columns}
    return MeasuringPlan(
        settings=meaning.settings,
        nulls=nulls | own.get("nulls", {}),
        metrics=wanted_metrics(meaning.own.get("validation.metrics"), metrics),
        overwrite=own.get("overwrite", False),
        told=told,
    )


def plan_comparison(statement: EvaluateColumns, columns: Sequence[str]) -> ComparisonPlan:
    """Decide which columns are compared.

    Raises:
        StatementError: The SELECT lacks one, or an attribute is for models.
    """
    meaning = read_attributes(statement.attributes, prefixes=("validation",), own=_OF_COMPARISON)
    if meaning.settings:
        attribute = statement.attributes[0]
        what = "The settings of jobs have no meaning here: no model is evaluated."
        raise StatementError(what, attribute.position, hint=f"Allowed: {', '.join(_OF_COMPARISON)}.")
    for name, clause in ((statement.label, "LABEL"), (statement.predicted, "USING")):
        _check_selected(name.parts[-1], columns, name.position, clause)
    return ComparisonPlan(
        label=statement.label.parts[-1],
        predicted=statement.predicted.parts[-1],
        metrics=meaning.own.get("validation.metrics"),
        overwrite=_own(meaning, "validation").get("overwrite", False),
    )


def check_columns(
    stored: StoredModel, columns: Sequence[str], position: SourcePosition, *, needs_label: bool
) -> None:
    """Refuse a SELECT that lacks columns which a model was trained with.

    Raises:
        StatementError: It does.
    """
    about = stored.about
    needed = [*about.features, *([about.label] if needs_label else [])]
    missing = [name for name in needed if name not in columns]
    if missing:
        names = ", ".join(map(repr, missing))
        near = did_you_mean(missing[0], columns)
        hint = f"Select it, or give a column that name by AS.{near}"
        what = f"The model {stored} was trained with {names}, which the SELECT does not give."
        raise StatementError(what, position, hint=f"{hint} It gives {', '.join(columns)}.")


def check_kinds(about: About, kinds: Mapping[str, str], position: SourcePosition) -> None:
    """Refuse rows whose columns hold something else than in the training.

    Args:
        about: The model.
        kinds: What each column of the rows holds.
        position: Of the model in the statement.

    Raises:
        StatementError: One does.
    """
    for column in about.columns:
        found = kinds.get(column.name, column.kind)
        is_number = {found, column.kind} <= {"integer", "number"}
        if found != column.kind and not is_number:
            raise StatementError(
                f"The column {column.name!r} holds {found} values, and the model was trained with"
                f" {column.kind} values.",
                position,
                hint="Cast it in the SELECT.",
            )


def wanted_metrics(attribute: Attribute | None, known: Sequence[str]) -> tuple[str, ...]:
    """The metrics that `validation.metrics` names; none for all.

    Raises:
        StatementError: There is no such metric.
    """
    if attribute is None:
        return ()
    texts = filter(None, (each.strip().lower() for each in attribute.value.split(",")))
    wanted = tuple(METRICS.get(text, text) for text in texts)
    for name in wanted:
        if name not in known:
            raise StatementError(
                f"There is no metric {name!r}.",
                attribute.position,
                hint=f"{did_you_mean(name, known)} Metrics: {', '.join(known)}.",
            )
    return wanted


def _in_our_words(statement: Train, zoo: Path) -> tuple[Train, tuple[str, ...]]:
    """A training without the spellings of SQLFlow, and sentences about them.

    Raises:
        StatementError: The zoo has no such model, or two attributes say the same.
    """
    model, attributes = statement.model, statement.attributes
    sentences: tuple[str, ...] = ()
    spelled = model_of(str(model)) if not _is_in_zoo(str(model), zoo) else None
    if spelled is not None and _is_in_zoo(spelled, zoo):
        parts = tuple(spelled.split("."))
        model = Name(parts=parts, folded=parts, position=model.position)
        sentences = (f"{statement.model} is {model} here.",)
    _check_model(model, zoo)
    parameters = list_parameters(zoo, str(model)) or ()
    attributes, without_effect = translate(attributes, parameters=parameters)
    columns = tuple(
        replace(clause, part=PARTS.get(clause.part, clause.part)) for clause in statement.columns
    )
    translated = replace(statement, model=model, attributes=attributes, columns=columns)
    return translated, (*sentences, *without_effect)


def _told_of_metrics(meaning: Meaning) -> tuple[str, ...]:
    attribute = meaning.own.get("validation.metrics")
    if attribute is None:
        return ()
    return (
        f"A training measures what its model says, not {attribute.value}: EVALUATE gives those.",
    )


def _params(statement: Train, meaning: Meaning, label: str) -> dict[str, Any]:
    """The parameters of the model, those that clauses say among them."""
    clauses = {"label": "LABEL"} | ({"columns": "COLUMN"} if statement.columns else {})
    for name, clause in clauses.items():
        if name in meaning.param_names:
            raise StatementError(
                f"The attribute {name} says what {clause} says.",
                _position_of(statement, name),
                hint=f"Write {clause} alone.",
            )
    for name in RATE_NAMES:
        rate = meaning.params.get(name, 1.0)
        if isinstance(rate, bool) or not isinstance(rate, int | float) or rate <= 0:
            what = f"{name} must be a number above 0."
            raise StatementError(what, _position_of(statement, name), hint=f"It is {rate!r}.")
    params = {**meaning.params, "label": label}
    if statement.columns:
        params["columns"] = column_dicts(statement.columns)
    if weights := meaning.own.get("train.class_weights"):
        params["class_weights"] = weights.value
    return params


def _maybe_dates(
    statement: Train, params: Mapping[str, Any], columns: Sequence[str]
) -> tuple[str, ...]:
    """The columns that nothing says how to read."""
    calls = [
        replace(clause, terms=tuple(it for it in clause.terms if isinstance(it, ColumnCall)))
        for clause in statement.columns
    ]
    told = {*column_names(calls), params["label"]}
    for name in ("numeric", "categorical"):
        named = params.get(name, ())
        told.update(named if isinstance(named, list) else ())
    return tuple(name for name in columns if name not in told)


def _needed(
    statement: Train, read: Mapping[str, Name], label: str, split_column: str | None
) -> tuple[str, ...] | None:
    """The columns that a training needs; None where a part of the model reads all of them."""
    parts = {clause.part for clause in statement.columns}
    if not parts or not (parts & {""} or parts >= _PARTS):
        return None
    return tuple(dict.fromkeys((*read, label, *filter(None, [split_column]))))


def _split(statement: Train, meaning: Meaning, columns: Sequence[str]) -> Split:
    """Which rows are held back."""
    own = _own(meaning, "train")
    default = "none" if own.get("validation_select") else "random"
    kind, column = own.get("split", default), own.get("split_column", "")
    if own.get("validation_select") and kind != "none":
        what = "train.validation_select and train.split both say what the validation is on."
        raise StatementError(what, statement.position, hint="Leave one out.")
    if (kind in ("key", "column")) != bool(column):
        what = "train.split_column goes with train.split='key' and 'column', which need it."
        raise StatementError(what, statement.position, hint=f"train.split is {kind!r}.")
    if column:
        position = meaning.own["train.split_column"].position
        _check_selected(column, columns, position, "train.split_column")
    return Split(
        kind=kind,
        fraction=float(own.get("split_fraction", 0.1)),
        column=column if kind == "column" else "",
        seed=own.get("split_seed", 0),
    )


def _is_in_zoo(name: str, zoo: Path) -> bool:
    return any(each == name or each.startswith(f"{name}.") for each in _known_models(zoo))


def _known_models(zoo: Path) -> list[str]:
    return [name for name in list_definitions(zoo) if not name.startswith("_")]


def _check_model(model: Name, zoo: Path) -> None:
    name = str(model)
    if _is_in_zoo(name, zoo):
        return
    if why := why_no_model(name):
        raise StatementError(why[0], model.position, hint=why[1])
    known = _known_models(zoo)
    same = [each for each in known if each.rpartition(".")[2].lower() == name.lower()]
    near = f" Did you mean {' or '.join(map(repr, same))}?" if same else did_you_mean(name, known)
    hint = f"{near} Models: {', '.join(known)}."
    raise StatementError(f"There is no model {name} in the zoo.", model.position, hint=hint)


def _check_params(statement: Train, meaning: Meaning, known: Collection[str] | None) -> None:
    """Refuse a misspelt parameter before rows are read, where the zoo's files tell."""
    if known is None:
        return
    allowed = {*known, *RATE_NAMES} if {*known} & {*RATE_NAMES} else {*known}
    for name in meaning.param_names:
        if name not in allowed:
            near = did_you_mean(name, sorted(allowed)).strip()
            raise StatementError(
                f"The model {statement.model} has no parameter {name}.",
                _position_of(statement, name),
                hint=WHY_NO_PARAMETER.get(name, near),
            )


def _label(
    statement: Train, columns: Sequence[str], read: dict[str, Name]
) -> tuple[str, tuple[str, ...]]:
    """The column that is learned, and what to tell about it."""
    if statement.label is not None:
        label = statement.label.parts[-1]
        _check_selected(label, columns, statement.label.position, "LABEL")
        if label in read:
            what = f"{label} is the label, and so no column to learn from."
            raise StatementError(what, read[label].position, hint="Leave it out of COLUMN.")
        return label, ()
    free = [name for name in columns if name not in read]
    if not free:
        what = "COLUMN names every column of the SELECT, and one is to be learned."
        raise StatementError(what, statement.position, hint="Write LABEL and a column.")
    return free[-1], (f"The label is {free[-1]!r}, the last column; LABEL names another.",)


def _check_selected(name: str, columns: Sequence[str], position: SourcePosition, clause: str) -> None:
    if name not in columns:
        hint = f"{did_you_mean(name, columns)} It gives {', '.join(columns)}."
        what = f"{clause} names {name!r}, which the SELECT does not give."
        raise StatementError(what, position, hint=hint)


def _position_of(statement: Train, name: str) -> SourcePosition:
    names = (f"model.{name}", name)
    return next(it.position for it in statement.attributes if it.name in names)


def _own(meaning: Meaning, prefix: str) -> dict[str, Any]:
    return {
        name.removeprefix(f"{prefix}."): attribute.value for name, attribute in meaning.own.items()
    }
