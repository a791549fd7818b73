"""Sorts what a statement says of its model: the attributes of WITH, and the COLUMN clauses.

An attribute is a parameter of the model, a setting of the jobs or an option. The COLUMN clauses
become the dicts that models take as their parameter `columns`.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import Any

from edl_horovod.columns.clauses import read_clauses
from edl_horovod.config.fields import dict_key_of, settings
from edl_horovod.config.schema import TARGET_SECTIONS, JobConfig
from edl_horovod.errors import ConfigError, did_you_mean
from edl_horovod.sql import statements
from edl_horovod.sql.statements import Attribute, ColumnCall, Literal, Name, StatementError

_MODEL_SETTINGS = ("loss", "optimizer")
"""Attributes with the prefix `model` that are settings of a job."""
_RENAMED = {
    "engine.num_workers": "launch.np",
    "predict.batch_size": "train.batch_size",
    "predict.num_workers": "launch.np",
    "validation.batch_size": "train.batch_size",
    "validation.steps": "train.evaluate_steps",
}
_ENGINE_SETTINGS = (
    "callbacks",
    "checkpoint",
    "data_plan",
    "debug",
    "elastic",
    "framework",
    "launch",
    *TARGET_SECTIONS,
)
"""Settings and sections that attributes name with the prefix `engine`."""
_MAX_STEPS = 1_000_000
_MAX_TRIALS = 100
_BOUNDS = {
    "launch.np": (1, 8),
    "sweep.num_trials": (1, _MAX_TRIALS),
    "train.batch_size": (1, 100_000),
    "train.epochs": (1, 1_000),
    "train.evaluate_steps": (0, _MAX_STEPS),
    "train.max_steps": (0, _MAX_STEPS),
}
"""The bounds of numbers that clients of a service may set."""
_STOPPING = ("metric", "min_delta", "mode", "patience", "restore_best")
_PERMITTED_SETTINGS = (
    *_BOUNDS,
    *("data_plan.seed", "data_plan.shuffle", "framework", "loss", "optimizer"),
    *("train.class_weight", "train.clip_norm", "train.clip_value", "train.learning_rate"),
    *("train.precision", *(f"train.early_stopping.{name}" for name in _STOPPING)),
)
"""Settings of a job that clients of a service may set. They may also set parameters of models, and
the options of statements."""
_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "NUMERIC": ("name", "shape"),
    "DENSE": ("name", "shape", "separator"),
    "CATEGORY_ID": ("name", "num_buckets"),
    "CATEGORY_HASH": ("name", "num_buckets"),
    "SEQ_CATEGORY_ID": ("name", "num_buckets", "separator"),
    "BUCKET": ("name", "borders"),
    "CROSS": ("of", "num_buckets"),
    "EMBEDDING": ("of", "dimension", "combiner"),
    "INDICATOR": ("of",),
}
"""The arguments of each function in order; `read_clauses` checks their values."""
_WEIGHTS_HINT = "Leave the weights out: CATEGORY_HASH(column, number)."
_SEPARATORS = {"COMMA": ","}
"""SQLFlow's names of separators."""
_TYPES = ("INT", "FLOAT")
"""Types that SQLFlow writes after a separator; here the rows determine them."""


@dataclass(frozen=True, kw_only=True)
class SortedAttributes:
    """The attributes of a statement by their use."""

    params: dict[str, Any] = field(default_factory=dict)
    """Parameters of the model."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the job, by keys with dots."""
    varied: dict[str, Attribute] = field(default_factory=dict)
    """Attributes with several values, by setting: `train.learning_rate`, `params.x`."""
    options: dict[str, Attribute] = field(default_factory=dict)
    """Attributes that the statement itself evaluates, by their whole names: `train.split`."""

    @property
    def param_names(self) -> tuple[str, ...]:
        """The names of the model parameters that are set, with one value or several."""
        varied = (key.partition(".") for key in self.varied)
        return (*self.params, *(name for section, _, name in varied if section == "params"))


def sort_attributes(
    attributes: Sequence[Attribute],
    *,
    prefixes: Sequence[str],
    option_types: Mapping[str, type | UnionType],
    is_confined: bool = False,
) -> SortedAttributes:
    """Sort the attributes of a statement.

    Args:
        attributes: The attributes as written.
        prefixes: The allowed prefixes; `model` may also be left out.
        option_types: The options of the statement with their types.
        is_confined: Whether only the settings that clients of a service may set are allowed.

    Raises:
        StatementError: An attribute is unknown, not permitted, of the wrong type, or set twice
            under two names.
    """
    attributes_by_use = SortedAttributes()
    attributes_by_key: dict[str, Attribute] = {}
    for attribute in attributes:
        first, dot, following = attribute.name.partition(".")
        prefix, rest = (first, following) if dot else ("", first)
        if (prefix or "model") not in prefixes:
            beginnings = [f"{known_prefix}." for known_prefix in prefixes]
            suggestion = did_you_mean(attribute.name, [*option_types, *beginnings])
            hint = f"{suggestion} Attributes begin with {', '.join(beginnings)}."
            raise attribute.error(f"There is no attribute {attribute.name} here.", hint)
        if attribute.name in option_types:
            _check_type(attribute, option_types[attribute.name])
            if is_confined:
                _check_bounds(attribute, attribute.name)
            attributes_by_use.options[attribute.name] = attribute
            continue
        if prefix in ("", "model"):
            if "." in rest:
                problem = f"Names of model parameters have no dots: {rest} has one."
                raise attribute.error(problem, "Write model.name=value.")
            is_setting = rest in _MODEL_SETTINGS
            target = attributes_by_use.settings if is_setting else attributes_by_use.params
            key = rest
        else:
            target = attributes_by_use.settings
            key = _setting(attribute, prefix, rest, option_types)
        if is_confined and target is attributes_by_use.settings:
            _check_permitted(attribute, key)
        if earlier := attributes_by_key.get(key):
            problem = f"{attribute.name} and {earlier.name} are names of the same attribute."
            raise attribute.error(problem, "Leave one of them out.")
        attributes_by_key[key] = attribute
        if isinstance(attribute.value, statements.Hparam):
            is_param = target is attributes_by_use.params
            attributes_by_use.varied[f"params.{key}" if is_param else key] = attribute
        else:
            target[key] = attribute.value
    if is_confined:
        _check_number_of_trials(attributes_by_use)
    return attributes_by_use


def _setting(attribute: Attribute, prefix: str, rest: str, option_types: Collection[str]) -> str:
    """The key of the job setting that an attribute sets."""
    setting_types = {field.key: field.annotation for field in settings(JobConfig)}
    key = _RENAMED.get(attribute.name, attribute.name)
    if prefix == "engine" and key == attribute.name:
        key = rest if rest.partition(".")[0] in _ENGINE_SETTINGS else ""
    if key in setting_types or dict_key_of(key, setting_types):
        return key
    # The error lists the attributes with this prefix.
    engine_settings = [
        f"engine.{name}" for name in setting_types if name.partition(".")[0] in _ENGINE_SETTINGS
    ]
    names = (*option_types, *_RENAMED, *setting_types, *engine_settings)
    allowed = [name for name in names if name.startswith(f"{prefix}.")]
    hint = f"{did_you_mean(attribute.name, allowed)} Allowed: {', '.join(allowed)}."
    raise attribute.error(f"There is no attribute {attribute.name}.", hint)


def _check_permitted(attribute: Attribute, key: str) -> None:
    """Refuse a setting that clients of a service may not set, or a value out of bounds."""
    if key not in _PERMITTED_SETTINGS:
        permitted = (
            f"engine.{setting}" if setting.partition(".")[0] in _ENGINE_SETTINGS else setting
            for setting in sorted(_PERMITTED_SETTINGS)
        )
        hint = f"They may set model parameters, {', '.join(permitted)}."
        raise attribute.error(f"Clients of this service must not set {attribute.name}.", hint)
    if key in _MODEL_SETTINGS and any("." in str(value) for value in _values_of(attribute)):
        problem = f"Clients of this service must not set {attribute.name} to a function."
        hint = "Write a name of Keras or PyTorch, for example 'mse' or 'adam'."
        raise attribute.error(problem, hint)
    _check_bounds(attribute, key)


def _check_bounds(attribute: Attribute, key: str) -> None:
    if key not in _BOUNDS:
        return
    least, most = _BOUNDS[key]
    for value in _values_of(attribute):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and least <= value <= most):
            problem = f"{attribute.name} must be from {least:,} to {most:,} in this service."
            raise attribute.error(problem, f"It is {value!r}.")


def _check_number_of_trials(attributes: SortedAttributes) -> None:
    """Refuse a grid of too many trials; the bounds of `sweep.num_trials` are checked elsewhere."""
    grid = [attribute.value for attribute in attributes.varied.values()]
    is_grid = all(isinstance(values, statements.HparamCandidates) for values in grid)
    if "sweep.num_trials" in attributes.options or not is_grid:
        return
    num_trials = math.prod(len(candidates.values) for candidates in grid)
    if num_trials > _MAX_TRIALS:
        last = list(attributes.varied.values())[-1]
        problem = (
            f"The grid has {num_trials:,} trials, and this service runs at most {_MAX_TRIALS}."
        )
        raise last.error(problem, "Write sweep.num_trials, or fewer candidates.")


def _values_of(attribute: Attribute) -> tuple[Any, ...]:
    """The value, the candidates, or the bounds of the range of an attribute."""
    if isinstance(attribute.value, statements.HparamCandidates):
        return attribute.value.values
    if isinstance(attribute.value, statements.HparamRange):
        return (attribute.value.low, attribute.value.high)
    return (attribute.value,)


def _check_type(attribute: Attribute, option_type: type | UnionType) -> None:
    if isinstance(attribute.value, statements.Hparam):
        problem = f"{attribute.name} must be the same for all trials."
        raise attribute.error(problem, "Give it one value.")
    is_number = option_type is float and isinstance(attribute.value, int)
    if not (is_number or isinstance(attribute.value, option_type)) or (
        isinstance(attribute.value, bool) and option_type is not bool
    ):
        names: dict[type | UnionType, str] = {
            bool: "True or False",
            int: "a whole number",
            str: "a 'text'",
            list: "a [list]",
            dict: "a {dict}",
            dict | str: "a {dict} or 'mean'",
        }
        problem = f"{attribute.name} must be {names.get(option_type, 'a number')}."
        raise attribute.error(problem, f"It is {attribute.value!r}.")


def column_dicts(clauses: Sequence[statements.ColumnClause]) -> list[dict[str, Any]]:
    """The value of the parameter `columns` of a model; docs/reference/sql.md describes it.

    Raises:
        StatementError: A function is unknown, or does not take such an argument.
    """
    return [
        _checked_dict(term) | ({"for": clause.part} if clause.part else {})
        for clause in clauses
        for term in clause.terms
    ]


def _checked_dict(term: statements.ColumnTerm) -> dict[str, Any]:
    column = _term_as_dict(term)
    try:
        read_clauses([column], parts=())
    except ConfigError as e:
        raise StatementError(e.problem, term.position, hint=e.hint) from e
    return column


def column_names(clauses: Sequence[statements.ColumnClause]) -> dict[str, Name]:
    """The columns that the clauses read: their names, and where each is first used."""
    first_uses: dict[str, Name] = {}

    def collect(term: ColumnCall | Name | Literal) -> None:
        if isinstance(term, Name):
            first_uses.setdefault(_name(term), term)
        elif isinstance(term, ColumnCall):
            for argument in term.arguments:
                # A bare word after the first argument is an option: mean in EMBEDDING(a, 8, mean).
                if not isinstance(argument, Name) or argument is term.arguments[0]:
                    collect(argument)
            is_list = not term.function  # In a list, each bare word is a column: CROSS([a, b], 10).
            if is_list:
                for argument in term.arguments[1:]:
                    collect(argument)

    for clause in clauses:
        for term in clause.terms:
            collect(term)
    return first_uses


def _term_as_dict(term: statements.ColumnTerm) -> dict[str, Any]:
    if isinstance(term, Name):
        return {"kind": "inferred", "name": _name(term)}
    term = _without_sqlflow_forms(term)
    function = term.function.upper()
    if function == "WEIGHTED_CATEGORY":
        raise term.error("No model of the zoo takes weights of categories.", _WEIGHTS_HINT)
    if function not in _FUNCTIONS:
        near = did_you_mean(function, _FUNCTIONS)
        problem = f"There is no column function {term.function}."
        raise term.error(problem, f"{near} Functions: {', '.join(_FUNCTIONS)}.")
    keys = _FUNCTIONS[function]
    if not 1 <= len(term.arguments) <= len(keys):
        hint = f"Write {function}({', '.join(keys)}); the last ones may be left out."
        raise term.error(f"{function} takes 1 to {len(keys)} arguments.", hint)
    pairs = zip(keys, term.arguments, strict=False)
    arguments = {key: _value(key, argument) for key, argument in pairs}
    # NUMERIC(column, n) is a text of n numbers, which models call dense.
    if function == "NUMERIC" and (shape := arguments.pop("shape", 1)) != 1:
        return {"kind": "dense", "name": arguments["name"], "shape": shape}
    return {"kind": function.lower(), **arguments}


def _without_sqlflow_forms(call: ColumnCall) -> ColumnCall:
    """Replace SQLFlow's nested forms, such as NUMERIC(DENSE(...)), by plain functions."""
    function, arguments = call.function.upper(), call.arguments
    first = arguments[0] if arguments else None
    inner = _without_sqlflow_forms(first) if isinstance(first, ColumnCall) else None
    inner_function = inner.function.upper() if inner is not None else ""
    if function in ("DENSE", "SPARSE") and len(arguments) > 3 and _is_type(arguments[3]):
        return _without_sqlflow_forms(replace(call, arguments=(*arguments[:3], *arguments[4:])))
    if function == "DENSE" and len(arguments) == 1:
        return replace(call, function="NUMERIC")
    if function == "SPARSE":
        return replace(call, function="INDICATOR", arguments=(_sequence_of_categories(call),))
    if inner is None:
        is_sequence = function == "CATEGORY_ID" and len(arguments) == 3
        return replace(call, function="SEQ_CATEGORY_ID") if is_sequence else call
    if function == "NUMERIC" and inner_function in ("NUMERIC", "DENSE", "INDICATOR"):
        return inner
    if function == "BUCKET" and inner_function == "NUMERIC" and len(inner.arguments) == 1:
        return replace(call, arguments=(inner.arguments[0], *arguments[1:]))
    if function in ("EMBEDDING", "INDICATOR", "CATEGORY_ID") and inner_function == "INDICATOR":
        categories = inner.arguments[0]
        if function == "CATEGORY_ID" and isinstance(categories, ColumnCall):
            sizes = (*arguments[1:2], *categories.arguments[2:])
            return replace(categories, arguments=(categories.arguments[0], *sizes))
        return replace(call, arguments=(categories, *arguments[1:]))
    return call


def _sequence_of_categories(sparse: ColumnCall) -> ColumnCall:
    """Replace SPARSE by a sequence of categories.

    Raises:
        StatementError: The number of categories is missing, or categories have weights.
    """
    if len(sparse.arguments) < 2:
        problem = "SPARSE needs the number of different numbers in its texts."
        raise sparse.error(problem, "Write SPARSE(column, number).")
    if len(sparse.arguments) > 3:
        raise sparse.error("No model of the zoo takes weights of categories.", _WEIGHTS_HINT)
    return replace(sparse, function="SEQ_CATEGORY_ID")


def _is_type(argument: ColumnCall | Name | Literal) -> bool:
    text = argument.value if isinstance(argument, Literal) else str(argument)
    return isinstance(text, str) and text.upper() in _TYPES


def _value(key: str, argument: ColumnCall | Name | Literal) -> Any:
    if isinstance(argument, Literal):
        if key in ("name", "of"):
            problem = f"{argument.value!r} is not a column."
            raise argument.error(problem, "Write its name without single quotes.")
        return argument.value
    if isinstance(argument, Name):
        name = _name(argument)
        return _SEPARATORS.get(name.upper(), name) if key == "separator" else name
    if key == "of":
        if argument.function:
            return _term_as_dict(argument)
        return [_value(key, term) for term in argument.arguments]
    problem = f"{argument.function or 'A list'} is not allowed here."
    raise argument.error(problem, "Write the name of a column, or a number.")


def _name(name: Name) -> str:
    if len(name.parts) > 1:
        problem = f"COLUMN takes names of columns of the SELECT, without dots: {name} has one."
        raise name.error(problem, f"Write {name.parts[-1]}.")
    return name.parts[0]
