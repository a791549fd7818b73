"""The names that SQLFlow has for models, attributes and metrics, and ours for the same."""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from edl_horovod.sql.problems import StatementError
from edl_horovod.sql.statements import Attribute

__all__ = [
    "EXPLAINERS",
    "LABELS",
    "METRICS",
    "PARTS",
    "WHY_NO_PARAMETER",
    "WORD_VALUES",
    "model_of",
    "translate",
    "why_no_model",
]

_MODELS = {
    "DNNClassifier": "classifier.DNN",
    "DNNRegressor": "regressor.DNN",
    "DNNLinearCombinedClassifier": "classifier.wide_and_deep",
    "DNNLinearCombinedRegressor": "regressor.wide_and_deep",
    "LinearClassifier": "classifier.Logistic",
    "LinearRegressor": "regressor.Linear",
}
_ZOO = "sqlflow_models."
"""Begins the names of the models that come with SQLFlow."""
_TREES = re.compile(r"xgboost|boosted_?trees|random_?forests?", re.IGNORECASE)
_CLUSTERS = re.compile(r"kmeans|cluster|oneclass", re.IGNORECASE)

_ATTRIBUTES = {
    "dnn_hidden_units": "hidden_units",
    "model.dnn_hidden_units": "model.hidden_units",
    "n_classes": "model.n_classes",
    "optimizer.learning_rate": "train.learning_rate",
    "train.epoch": "train.epochs",
    "train.num_workers": "engine.num_workers",
    "train.optimizer": "model.optimizer",
    "train.save_checkpoints_steps": "engine.checkpoint.every_steps",
    "validation.select": "train.validation_select",
}
_WITHOUT_EFFECT = {
    "summary.": "edl sql --picture FILE draws what EXPLAIN gives",
    "train.log_every_n_iter": "the command says how far a job is",
    "train.num_ps": "a ring has no parameter servers",
    "train.verbose": "the command says how far a job is",
    "validation.start_delay_secs": "validation.steps says when a training is evaluated",
    "validation.throttle_secs": "validation.steps says when a training is evaluated",
}
"""Attributes that change no result, or what all of them begin with."""
LABELS = ("label_col", "label_column")
"""Attributes of EVALUATE and EXPLAIN that say what LABEL says."""
WORD_VALUES = frozenset(
    {
        *LABELS,
        "model.dnn_optimizer",
        "model.linear_optimizer",
        "model.optimizer",
        "optimizer",
        "summary.plot_type",
        "train.optimizer",
        "validation.metrics",
    }
)
"""Attributes whose text may stand without quotes."""
WHY_NO_PARAMETER = {
    "batch_norm": "The networks here have no such layers. Leave it out.",
    "dnn_optimizer": "One optimizer trains both parts: write optimizer.",
    "label_dimension": "A model predicts one number. Leave it out.",
    "linear_optimizer": "One optimizer trains both parts: write optimizer.",
    "n_classes": "It predicts a number. Leave it out.",
}
"""What to do about parameters that SQLFlow's models have."""
PARTS = {"dnn_feature_columns": "deep", "linear_feature_columns": "wide"}
"""What COLUMN ... FOR calls the parts of a model."""
EXPLAINERS = ("TreeExplainer", "XGBoostExplainer")
"""What EXPLAIN ... USING may name."""
METRICS = {
    "accuracy_score": "accuracy",
    "binaryaccuracy": "accuracy",
    "categoricalaccuracy": "accuracy",
    "f1_score": "f1",
    "mean_absolute_error": "mae",
    "meanabsoluteerror": "mae",
    "precision_score": "precision",
    "r2_score": "r2",
    "recall_score": "recall",
    "roc_auc_score": "auc",
    "rootmeansquarederror": "rmse",
}
"""In lower case."""


def model_of(name: str) -> str | None:
    """The model of our zoo that a name means."""
    return _MODELS.get(name.removeprefix(_ZOO))


def why_no_model(name: str) -> tuple[str, str] | None:
    """Why there is no such model here, and what to write instead; None for a name of others."""
    if _TREES.search(name):
        problem = f"{name} is made of decision trees, and the models here are neural networks."
        return problem, "Write classifier.DNN for classes, or regressor.DNN for a number."
    if _CLUSTERS.search(name):
        problem = f"{name} learns without a label, and the models here learn a column."
        return problem, "Write classifier.DNN or regressor.DNN, and LABEL."
    if name.startswith(_ZOO):
        problem = f"{name} belongs to the models that come with SQLFlow."
        return problem, "Put its file into a folder, and write model_zoo=FOLDER."
    return None


def translate(
    attributes: Sequence[Attribute], *, parameters: Collection[str] = ()
) -> tuple[tuple[Attribute, ...], tuple[str, ...]]:
    """Attributes under our names, and sentences about those that have no effect here.

    Args:
        attributes: As they were written.
        parameters: Of the model: these keep their names.

    Raises:
        StatementError: Two say the same.
    """
    translated: dict[str, Attribute] = {}
    sentences = []
    for attribute in attributes:
        name = attribute.name
        if why := next((why for key, why in _WITHOUT_EFFECT.items() if _is(name, key)), ""):
            sentences.append(f"{name} has no effect: {why}.")
            continue
        if name.removeprefix("model.") not in parameters:
            name = _ATTRIBUTES.get(name, name)
        if name in translated:
            problem = f"{attribute.name} says what another attribute says, too."
            hint = f"That stands on line {translated[name].position.line}. Leave one out."
            raise StatementError(problem, attribute.position, hint=hint)
        translated[name] = replace(attribute, name=name, value=_value(name, attribute.value))
    return tuple(translated.values()), tuple(sentences)


def _is(name: str, key: str) -> bool:
    return name.startswith(key) if key.endswith(".") else name == key


def _value(name: str, value: object) -> object:
    """`AdagradOptimizer` and `RMSprop` are names of classes, which have no such ending here."""
    is_optimizer = name in ("optimizer", "model.optimizer") and isinstance(value, str)
    return str(value).removesuffix("Optimizer") if is_optimizer else value
