"""SQLFlow's names of models, attributes and metrics, and the equivalent names here."""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from edl_horovod.sql.statements import Attribute

_MODELS = {
    "DNNClassifier": "classifier.DNN",
    "DNNRegressor": "regressor.DNN",
    "DNNLinearCombinedClassifier": "classifier.wide_and_deep",
    "DNNLinearCombinedRegressor": "regressor.wide_and_deep",
    "LinearClassifier": "classifier.Logistic",
    "LinearRegressor": "regressor.Linear",
}
_SQLFLOW_PREFIX = "sqlflow_models."
"""The prefix of the models that come with SQLFlow."""
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
"""Attributes, or sections of attributes, that change no result; and why."""
LABEL_ATTRIBUTES = ("label_col", "label_column")
"""Attributes of EVALUATE and EXPLAIN that name the label, as LABEL does."""
UNQUOTED_ATTRIBUTES = (
    *LABEL_ATTRIBUTES,
    *("model.dnn_optimizer", "model.linear_optimizer", "model.optimizer", "optimizer"),
    *("summary.plot_type", "train.optimizer", "validation.metrics"),
)
"""Attributes whose text may be written without quotes."""
PARAMETER_HINTS = {
    "batch_norm": "The networks here have no such layers. Leave it out.",
    "dnn_optimizer": "One optimizer trains both parts: write optimizer.",
    "label_dimension": "A model predicts one number. Leave it out.",
    "linear_optimizer": "One optimizer trains both parts: write optimizer.",
    "n_classes": "It predicts a number. Leave it out.",
}
"""Hints for parameters that only SQLFlow's models have."""
MODEL_PARTS = {"dnn_feature_columns": "deep", "linear_feature_columns": "wide"}
"""Parts of a model in COLUMN ... FOR."""
EXPLAINERS = ("TreeExplainer", "XGBoostExplainer")
"""The explainers that EXPLAIN ... USING accepts."""
METRIC_NAMES = {
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
"""Keys are in lower case."""


def equivalent_model(name: str) -> str | None:
    """The model of the zoo that corresponds to a model of SQLFlow; None if there is none."""
    return _MODELS.get(name.removeprefix(_SQLFLOW_PREFIX))


def explain_missing_model(name: str) -> tuple[str, str] | None:
    """Why the zoo lacks a model of SQLFlow, and what to write instead; None for other names."""
    if _TREES.search(name):
        problem = f"{name} consists of decision trees, and the models here are neural networks."
        return problem, "Write classifier.DNN for classes, or regressor.DNN for a number."
    if _CLUSTERS.search(name):
        problem = f"{name} learns without a label, and the models here need one."
        return problem, "Write classifier.DNN or regressor.DNN, and LABEL."
    if name.startswith(_SQLFLOW_PREFIX):
        problem = f"{name} belongs to the models that come with SQLFlow."
        return problem, "Put its file into a folder, and write model_zoo=FOLDER."
    return None


def translate(
    attributes: Sequence[Attribute], *, parameters: Collection[str] = ()
) -> tuple[tuple[Attribute, ...], tuple[str, ...]]:
    """Rename SQLFlow's attributes.

    Args:
        attributes: The attributes as written.
        parameters: The parameters of the model, which keep their names.

    Returns:
        The attributes under the names used here, and sentences about attributes without effect.

    Raises:
        StatementError: An attribute is set twice under two names.
    """
    translated: dict[str, Attribute] = {}
    notes = []
    for attribute in attributes:
        name = attribute.name
        section = "".join(name.partition(".")[:2])
        if reason := _WITHOUT_EFFECT.get(name) or _WITHOUT_EFFECT.get(section):
            notes.append(f"{name} has no effect: {reason}.")
            continue
        if name.removeprefix("model.") not in parameters:
            name = _ATTRIBUTES.get(name, name)
        if name in translated:
            hint = f"It is on line {translated[name].position.line}. Leave one of them out."
            raise attribute.error(f"{attribute.name} is set twice, under two names.", hint)
        value = attribute.value
        if name in ("optimizer", "model.optimizer") and isinstance(value, str):
            value = value.removesuffix("Optimizer")  # `AdagradOptimizer` becomes `Adagrad`.
        translated[name] = replace(attribute, name=name, value=value)
    return tuple(translated.values()), tuple(notes)
