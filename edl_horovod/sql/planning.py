"""Plans what a statement asks of a job, before any row is read and without side effects."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any

from edl_horovod.errors import did_you_mean
from edl_horovod.files.url_secrets import without_secrets
from edl_horovod.models.lookup import list_bases, list_definitions, list_parameters
from edl_horovod.models.zoo import RATE_NAMES
from edl_horovod.sql.attributes import SortedAttributes, column_dicts, column_names, sort_attributes
from edl_horovod.sql.models import About, StoredModel
from edl_horovod.sql.sqlflow import (
    METRIC_NAMES,
    MODEL_PARTS,
    PARAMETER_HINTS,
    equivalent_model,
    explain_missing_model,
    translate,
)
from edl_horovod.sql.statements import (
    Attribute,
    ColumnCall,
    Evaluate,
    EvaluateColumns,
    Explain,
    Name,
    Predict,
    SourcePosition,
    StatementError,
    Train,
)
from edl_horovod.sql.training_rows import Split
from edl_horovod.sql.trials import SWEEP_OPTIONS, TrialsPlan, plan_trials

_TRAIN_OPTIONS: dict[str, type | UnionType] = {
    "train.class_weights": str,
    "train.nulls": dict | str,
    "train.split": str,
    "train.split_column": str,
    "train.split_fraction": float,
    "train.split_seed": int,
    "train.validation_select": str,
    "validation.metrics": str,
}
_SPLIT_OPTIONS = {"split", "split_fraction", "split_seed", "validation_select"}
"""Options of a training that say which rows are held back."""
_PREDICT_OPTIONS: dict[str, type] = {
    "predict.columns": list,
    "predict.nulls": dict,
    "predict.probabilities": bool,
    "predict.replace_table": bool,
    "predict.replace_values": bool,
}
_EXPLAIN_OPTIONS: dict[str, type] = {"validation.nulls": dict, "validation.overwrite": bool}
_EVALUATE_OPTIONS: dict[str, type] = {"validation.metrics": str, **_EXPLAIN_OPTIONS}
_COMPARISON_OPTIONS: dict[str, type] = {"validation.metrics": str, "validation.overwrite": bool}

_CLASSIFIER, _REGRESSOR, _LINEAR = "ClassificationSpec", "RegressionSpec", "LinearSpec"
"""The base classes of the zoo's models of tables."""
_PARTS = {"deep", "wide"}
"""Names of parts of models. A part without a COLUMN clause reads all columns."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A training as its statement describes it."""

    label: str
    """The column that is learned."""
    settings: dict[str, Any]
    """Settings of the job, by keys with dots."""
    nulls: dict[str, Any]
    """The value that replaces NULLs, by column."""
    filled_columns: tuple[str, ...]
    """Columns whose NULLs become their mean or most frequent value, by train.nulls='mean'."""
    notes: tuple[str, ...]
    """Sentences about what was decided for the user."""
    split: Split
    """Which rows are held back for the validation."""
    is_split_default: bool
    """Whether the statement leaves the split open, so that a small table is not split."""
    split_key: str
    """The column whose values decide the split, for the kind `key`; else empty."""
    validation_select: str
    """A SELECT of the rows for the validation; empty without one."""
    trials: TrialsPlan | None
    """The trials, of which the best becomes the model; None for a single training."""
    has_classes: bool | None
    """Whether the label is a class, not a number; None if the model does not tell."""
    is_linear: bool
    """Whether it is a linear model of the zoo."""
    num_classes: int | None
    """The maximum number of classes of the label; None for any number."""
    possible_dates: tuple[str, ...]
    """Columns whose texts are read as dates if all of them are dates."""
    columns: tuple[str, ...] | None
    """The columns of the SELECT that are needed, including the label; None for all."""

    @property
    def split_in_words(self) -> str:
        """A phrase about which rows are for the validation."""
        if self.validation_select:
            return f"validation on {without_secrets(self.validation_select)}"
        if self.split.kind in ("none", "column"):
            return " ".join(filter(None, (self.split.kind, self.split.column)))
        key = f" of {self.split_key}" if self.split_key else ""
        return f"{self.split.kind}{key}: {self.split.fraction:.0%} held back"


@dataclass(frozen=True, kw_only=True)
class PredictionPlan:
    """A prediction as its statement describes it."""

    settings: dict[str, Any]
    """Settings of the job, by keys with dots."""
    nulls: dict[str, Any]
    """The value that replaces NULLs, by column."""
    columns: tuple[str, ...]
    """The user's names for the columns of predictions; empty for the usual names."""
    has_probabilities: bool
    """Whether the probability of each class becomes a column."""
    replace_table: bool
    """Whether a table unrelated to the rows may be dropped."""
    replace_values: bool
    """Whether values may be replaced in a column that PREDICT did not create."""


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """An evaluation or an explanation as its statement describes it."""

    settings: dict[str, Any]
    """Settings of the job, by keys with dots."""
    nulls: dict[str, Any]
    """The value that replaces NULLs, by column."""
    metrics: tuple[str, ...]
    """The requested metrics in lower case; empty for all."""
    overwrite: bool
    """Whether earlier results in the table are replaced."""
    notes: tuple[str, ...]
    """Sentences about attributes without effect."""


def plan_training(
    statement: Train, columns: Sequence[str], zoo: Path, *, is_confined: bool = False
) -> TrainingPlan:
    """Plan a training.

    Args:
        statement: The statement.
        columns: The columns of its SELECT.
        zoo: The folder of models.
        is_confined: Whether only the settings that a service permits may be set.

    Raises:
        StatementError: The zoo lacks the model, the model lacks a parameter, the SELECT lacks a
            column, or an attribute is wrong.
    """
    statement, renaming_notes = _translate_sqlflow(statement, zoo)
    parameters = list_parameters(zoo, str(statement.model))
    bases = list_bases(zoo, str(statement.model))
    has_spec = bool({_CLASSIFIER, _REGRESSOR} & bases)
    option_types = _TRAIN_OPTIONS | SWEEP_OPTIONS
    if _CLASSIFIER in bases and "n_classes" not in (parameters or ()):
        option_types["model.n_classes"] = int
    attributes = sort_attributes(
        statement.attributes,
        prefixes=("model", "train", "validation", "engine", "sweep"),
        option_types=option_types,
        is_confined=is_confined,
    )
    _check_params(statement, attributes, parameters)
    columns_read = column_names(statement.columns)
    for name, name_in_statement in columns_read.items():
        _check_selected(name, columns, name_in_statement.position, "COLUMN")
    label, notes = _label(statement, columns, columns_read)
    if metrics := attributes.options.get("validation.metrics"):
        note = f"A training measures the metrics of its model, not {metrics.value}: EVALUATE does."
        notes = (note, *notes)
    options = _options(attributes, "train")
    split = _split(statement, attributes, columns)
    params = _params(statement, attributes, label)
    settings = {f"params.{name}": value for name, value in params.items()} | attributes.settings
    needed_columns = _needed_columns(statement, columns_read, label, options.get("split_column"))
    exported = needed_columns or columns
    if split.kind == "column":
        settings["data_plan.columns"] = [name for name in exported if name != split.column]
    if len(columns) - (split.kind == "column") < 2:
        problem = f"The SELECT gives only {label!r}, and no columns to learn it from."
        raise statement.error(problem, "Select some more columns.")
    has_validation = split.kind != "none" or bool(options.get("validation_select"))
    nulls = options.get("nulls", {})
    fills_nulls = isinstance(nulls, str)
    if fills_nulls and nulls != "mean":
        problem = "train.nulls must be a {dict} or 'mean'."
        raise attributes.options["train.nulls"].error(problem, f"It is {nulls!r}.")
    return TrainingPlan(
        label=label,
        settings={**settings, "model_def": str(statement.model)},
        nulls={} if fills_nulls else nulls,
        filled_columns=tuple(
            name for name in exported if fills_nulls and name not in (label, split.column)
        ),
        notes=(*renaming_notes, *notes),
        has_classes=_CLASSIFIER in bases if has_spec else None,
        is_linear=_LINEAR in bases,
        num_classes=options.get("model.n_classes"),
        split=split,
        is_split_default=not options.keys() & _SPLIT_OPTIONS,
        split_key=options["split_column"] if split.kind == "key" else "",
        validation_select=options.get("validation_select", ""),
        trials=plan_trials(attributes, has_validation=has_validation),
        possible_dates=_possible_dates(statement, params, exported) if has_spec else (),
        columns=needed_columns,
    )


def plan_prediction(
    statement: Predict, columns: Sequence[str], stored: StoredModel, *, is_confined: bool = False
) -> PredictionPlan:
    """Plan a prediction.

    Raises:
        StatementError: The SELECT lacks a column that the model was trained with, or an attribute
            is wrong.
    """
    for attribute in statement.attributes:
        if attribute.name == "predict.overwrite":
            raise attribute.error(
                "There is no attribute predict.overwrite: it would not say what may be lost.",
                "Write predict.replace_values to replace the values of a column, or"
                " predict.replace_table to drop a whole table and make a new one.",
            )
    attributes = sort_attributes(
        statement.attributes,
        prefixes=("predict", "engine"),
        option_types=_PREDICT_OPTIONS,
        is_confined=is_confined,
    )
    check_columns(stored, columns, statement.using.position, needs_label=False)
    options = _options(attributes, "predict")
    nulls = {name: value for name, value in stored.about.nulls.items() if name in columns}
    return PredictionPlan(
        settings=attributes.settings,
        nulls=nulls | options.get("nulls", {}),
        columns=tuple(map(str, options.get("columns", ()))),
        has_probabilities=options.get("probabilities", False),
        replace_table=options.get("replace_table", False),
        replace_values=options.get("replace_values", False),
    )


def plan_evaluation(
    statement: Evaluate | Explain,
    columns: Sequence[str],
    stored: StoredModel,
    *,
    metrics: Sequence[str] = (),
    is_confined: bool = False,
) -> EvaluationPlan:
    """Plan an evaluation or an explanation.

    Args:
        statement: The statement.
        columns: The columns of its SELECT.
        stored: The model.
        metrics: The metrics available for the model; only for an evaluation.
        is_confined: Whether only the settings that a service permits may be set.

    Raises:
        StatementError: The SELECT lacks a column that the model was trained with, LABEL is not the
            label of the model, or a metric is unknown.
    """
    attributes, notes = translate(statement.attributes)
    sorted_attributes = sort_attributes(
        attributes,
        prefixes=("validation", "engine"),
        option_types=_EVALUATE_OPTIONS if isinstance(statement, Evaluate) else _EXPLAIN_OPTIONS,
        is_confined=is_confined,
    )
    label = stored.about.label
    if statement.label is not None and str(statement.label) != label:
        raise statement.label.error(
            f"The model {stored} learned {label!r}, not {str(statement.label)!r}.",
            f"Write LABEL {label}, and select that column: AS gives a column another name.",
        )
    check_columns(stored, columns, statement.model.position, needs_label=True)
    options = _options(sorted_attributes, "validation")
    nulls = {name: value for name, value in stored.about.nulls.items() if name in columns}
    return EvaluationPlan(
        settings=sorted_attributes.settings,
        nulls=nulls | options.get("nulls", {}),
        metrics=requested_metrics(sorted_attributes.options.get("validation.metrics"), metrics),
        overwrite=options.get("overwrite", False),
        notes=notes,
    )


def comparison_options(
    statement: EvaluateColumns, columns: Sequence[str]
) -> Mapping[str, Attribute]:
    """Check a comparison of two columns; returns its options by name.

    Raises:
        StatementError: The SELECT lacks one of them, has two of its name, or they are the same; or
            an attribute is for models.
    """
    sorted_attributes = sort_attributes(
        statement.attributes, prefixes=("validation",), option_types=_COMPARISON_OPTIONS
    )
    if sorted_attributes.settings:
        attribute = statement.attributes[0]
        problem = "Settings of jobs have no effect here, because no model is evaluated."
        raise attribute.error(problem, f"Allowed: {', '.join(_COMPARISON_OPTIONS)}.")
    for name, clause in ((statement.label, "LABEL"), (statement.predicted, "USING")):
        column = name.parts[-1]
        _check_selected(column, columns, name.position, clause)
        if (count := columns.count(column)) > 1:
            raise name.error(
                f"{clause} names {column!r}, and the SELECT gives {count} columns of this name.",
                "Give one of them another name by AS, and write that name.",
            )
    if statement.label.parts[-1] == statement.predicted.parts[-1]:
        raise statement.predicted.error(
            f"LABEL and USING both name {statement.predicted.parts[-1]!r}.",
            "Select the labels and the predictions, with different names.",
        )
    return sorted_attributes.options


def check_columns(
    stored: StoredModel, columns: Sequence[str], position: SourcePosition, *, needs_label: bool
) -> None:
    """Refuse a SELECT that lacks columns that a model was trained with.

    Raises:
        StatementError: A column is missing.
    """
    about = stored.about
    needed = [*about.features, *([about.label] if needs_label else [])]
    missing = [name for name in needed if name not in columns]
    if missing:
        names = ", ".join(map(repr, missing))
        suggestion = did_you_mean(missing[0], columns)
        hint = f"Select it, or give a column that name by AS.{suggestion}"
        problem = f"The model {stored} was trained with {names}, which the SELECT does not give."
        raise StatementError(problem, position, hint=f"{hint} It gives {', '.join(columns)}.")


def check_kinds(about: About, kinds: Mapping[str, str], position: SourcePosition) -> None:
    """Refuse rows whose columns hold other kinds of values than in the training.

    Args:
        about: The description of the model.
        kinds: The kind of values by column of the rows.
        position: The position of the model in the statement.

    Raises:
        StatementError: A column holds values of another kind.
    """
    for column in about.columns:
        kind = kinds.get(column.name, column.kind)
        is_number = {kind, column.kind} <= {"integer", "number"}
        if kind != column.kind and not is_number:
            difference = f"{kind} values, and the model was trained with {column.kind} values"
            problem = f"The column {column.name!r} holds {difference}."
            raise StatementError(problem, position, hint="Cast it in the SELECT.")


def requested_metrics(attribute: Attribute | None, available: Sequence[str]) -> tuple[str, ...]:
    """The metrics that `validation.metrics` names; empty for all.

    Args:
        attribute: `validation.metrics`, if the statement has it.
        available: All metrics of such a model.

    Raises:
        StatementError: A metric is unknown.
    """
    if attribute is None:
        return ()
    texts = filter(None, (name.strip().lower() for name in attribute.value.split(",")))
    metrics = tuple(METRIC_NAMES.get(text, text) for text in texts)
    for name in metrics:
        if name not in available:
            hint = f"{did_you_mean(name, available)} Metrics: {', '.join(available)}."
            raise attribute.error(f"There is no metric {name!r}.", hint)
    return metrics


def _translate_sqlflow(statement: Train, zoo: Path) -> tuple[Train, tuple[str, ...]]:
    """Replace SQLFlow's names in a training; returns it with sentences about the changes.

    Raises:
        StatementError: The zoo lacks the model, or an attribute is set twice under two names.
    """
    model, attributes = statement.model, statement.attributes
    notes: tuple[str, ...] = ()
    equivalent = equivalent_model(str(model)) if not _is_in_zoo(str(model), zoo) else None
    if equivalent is not None and _is_in_zoo(equivalent, zoo):
        parts = tuple(equivalent.split("."))
        model = Name(parts=parts, folded=parts, position=model.position)
        notes = (f"{statement.model} is {model} here.",)
    _check_model(model, zoo)
    parameters = list_parameters(zoo, str(model)) or ()
    attributes, without_effect = translate(attributes, parameters=parameters)
    columns = tuple(
        replace(clause, part=MODEL_PARTS.get(clause.part, clause.part))
        for clause in statement.columns
    )
    translated = replace(statement, model=model, attributes=attributes, columns=columns)
    return translated, (*notes, *without_effect)


def _params(statement: Train, attributes: SortedAttributes, label: str) -> dict[str, Any]:
    """The parameters of the model, including those that clauses set."""
    clauses = {"label": "LABEL"} | ({"columns": "COLUMN"} if statement.columns else {})
    for name, clause in clauses.items():
        if name in attributes.param_names:
            problem = f"The attribute {name} and {clause} exclude each other."
            raise _attribute_of(statement, name).error(problem, f"Write {clause} alone.")
    for name in RATE_NAMES:
        rate = attributes.params.get(name, 1.0)
        if isinstance(rate, bool) or not isinstance(rate, int | float) or rate <= 0:
            problem = f"{name} must be a number above 0."
            raise _attribute_of(statement, name).error(problem, f"It is {rate!r}.")
    params = {**attributes.params, "label": label}
    if statement.columns:
        params["columns"] = column_dicts(statement.columns)
    if weights := attributes.options.get("train.class_weights"):
        params["class_weights"] = weights.value
    return params


def _possible_dates(
    statement: Train, params: Mapping[str, Any], columns: Sequence[str]
) -> tuple[str, ...]:
    """The columns for which the statement does not say how to read them."""
    calls = [
        replace(clause, terms=tuple(term for term in clause.terms if isinstance(term, ColumnCall)))
        for clause in statement.columns
    ]
    lists = [params.get(name) for name in ("numeric", "categorical")]
    named = [name for names in lists if isinstance(names, list) for name in names]
    decided = {*column_names(calls), *named, params["label"]}
    return tuple(name for name in columns if name not in decided)


def _needed_columns(
    statement: Train, columns_read: Mapping[str, Name], label: str, split_column: str | None
) -> tuple[str, ...] | None:
    """The columns that a training needs; None if a part of the model reads all columns."""
    parts = {clause.part for clause in statement.columns}
    if not parts or not (parts & {""} or parts >= _PARTS):
        return None
    return tuple(dict.fromkeys((*columns_read, label, *filter(None, [split_column]))))


def _split(statement: Train, attributes: SortedAttributes, columns: Sequence[str]) -> Split:
    """How the rows for the validation are chosen."""
    options = _options(attributes, "train")
    default = "none" if options.get("validation_select") else "random"
    kind, column = options.get("split", default), options.get("split_column", "")
    if options.get("validation_select") and kind != "none":
        problem = "train.validation_select and train.split both choose the rows for the validation."
        raise statement.error(problem, "Leave one of them out.")
    if (kind in ("key", "column")) != bool(column):
        problem = (
            "train.split_column is for train.split='key' and train.split='column', which need it."
        )
        raise statement.error(problem, f"train.split is {kind!r}.")
    if column:
        position = attributes.options["train.split_column"].position
        _check_selected(column, columns, position, "train.split_column")
    return Split(
        kind=kind,
        fraction=float(options.get("split_fraction", 0.1)),
        column=column if kind == "column" else "",
        seed=options.get("split_seed", 0),
    )


def _is_in_zoo(name: str, zoo: Path) -> bool:
    return any(model == name or model.startswith(f"{name}.") for model in _zoo_models(zoo))


def _zoo_models(zoo: Path) -> list[str]:
    return [name for name in list_definitions(zoo) if not name.startswith("_")]


def _check_model(model: Name, zoo: Path) -> None:
    name = str(model)
    if _is_in_zoo(name, zoo):
        return
    if explanation := explain_missing_model(name):
        raise model.error(explanation[0], explanation[1])
    models = _zoo_models(zoo)
    same_class = [model for model in models if model.rpartition(".")[2].lower() == name.lower()]
    suggestion = did_you_mean(name, models)
    if same_class:
        suggestion = f" Did you mean {' or '.join(map(repr, same_class))}?"
    hint = f"{suggestion} Models: {', '.join(models)}."
    raise model.error(f"There is no model {name} in the zoo.", hint)


def _check_params(
    statement: Train, attributes: SortedAttributes, parameters: Collection[str] | None
) -> None:
    """Refuse an unknown parameter, if the zoo's files tell the parameters of the model."""
    if parameters is None:
        return
    allowed = {*parameters, *RATE_NAMES} if {*parameters} & {*RATE_NAMES} else {*parameters}
    for name in attributes.param_names:
        if name not in allowed:
            problem = f"The model {statement.model} has no parameter {name}."
            hint = PARAMETER_HINTS.get(name, did_you_mean(name, sorted(allowed)).strip())
            raise _attribute_of(statement, name).error(problem, hint)


def _label(
    statement: Train, columns: Sequence[str], columns_read: dict[str, Name]
) -> tuple[str, tuple[str, ...]]:
    """The column that is learned, and sentences about the choice."""
    if statement.label is not None:
        label = statement.label.parts[-1]
        _check_selected(label, columns, statement.label.position, "LABEL")
        if label in columns_read:
            problem = f"{label} is the label, so the model cannot learn from it."
            raise columns_read[label].error(problem, "Leave it out of COLUMN.")
        return label, ()
    candidates = [name for name in columns if name not in columns_read]
    if not candidates:
        problem = "COLUMN names every column of the SELECT, so none is left as label."
        raise statement.error(problem, "Write LABEL and a column.")
    note = f"The label is {candidates[-1]!r}, the last column; LABEL names another."
    return candidates[-1], (note,)


def _check_selected(
    name: str, columns: Sequence[str], position: SourcePosition, clause: str
) -> None:
    if name not in columns:
        hint = f"{did_you_mean(name, columns)} It gives {', '.join(columns)}."
        problem = f"{clause} names {name!r}, which the SELECT does not give."
        raise StatementError(problem, position, hint=hint)


def _attribute_of(statement: Train, name: str) -> Attribute:
    names = (f"model.{name}", name)
    return next(attribute for attribute in statement.attributes if attribute.name in names)


def _options(attributes: SortedAttributes, prefix: str) -> dict[str, Any]:
    return {
        name.removeprefix(f"{prefix}."): attribute.value
        for name, attribute in attributes.options.items()
    }
