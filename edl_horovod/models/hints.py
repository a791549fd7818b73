"""Hints for model files that were written for TensorFlow 1, Keras 2 or NumPy.

An error of TensorFlow or Keras is recognised by its text, as the installed versions write it;
`tests/component/models/test_old_model_files.py` raises these errors for real.
"""

import re
from collections.abc import Callable

__all__ = ["OPTIMIZER_HINT", "hint_for"]

OPTIMIZER_HINT = "tf.train's optimizers are gone: use one of Keras 3, such as keras.optimizers.SGD"
_TENSORFLOW_1_HINTS = {
    "ConfigProto": "Leave it out: the job sets up the devices",
    "Session": "Leave it out: the job runs the steps",
    "app": "Leave it out: parameters come as params.NAME=VALUE",
    "compat": "Write it for TensorFlow 2",
    "contrib": "tf.contrib is gone; Keras has most of it in keras.layers",
    "enable_eager_execution": "Leave it out: TensorFlow 2 is eager",
    "estimator": "Estimators are gone: write a Keras model",
    "flags": "Leave it out: parameters come as params.NAME=VALUE",
    "get_variable": "Call add_weight in a layer of yours",
    "global_variables_initializer": "Leave it out: Keras initialises its variables",
    "layers": "Write keras.layers",
    "log": "Write tf.math.log",
    "losses": "Write keras.losses, or a function of tf.nn",
    "metrics": "Write keras.metrics",
    "placeholder": "Write keras.Input",
    "random_normal": "Write tf.random.normal",
    "random_uniform": "Write tf.random.uniform",
    "reset_default_graph": "Leave it out: there is no default graph",
    "set_random_seed": "Leave it out: set data_plan.seed",
    "to_float": "Write tf.cast(x, tf.float32)",
    "to_int32": "Write tf.cast(x, tf.int32)",
    "truncated_normal": "Write tf.random.truncated_normal",
    "variable_scope": "Leave it out: Keras names its variables",
}
_TENSOR_EXPRESSIONS = {
    "argmax": "tf.argmax(x, axis)",
    "astype": "tf.cast(x, dtype)",
    "flatten": "tf.reshape(x, [-1])",
    "max": "tf.reduce_max(x)",
    "mean": "tf.reduce_mean(x)",
    "min": "tf.reduce_min(x)",
    "ravel": "tf.reshape(x, [-1])",
    "reshape": "tf.reshape(x, shape)",
    "sum": "tf.reduce_sum(x)",
    "T": "tf.transpose(x)",
    "transpose": "tf.transpose(x)",
}
_MODEL_HINTS = {
    "_set_inputs": "Leave it out: the job runs the model once on the first features",
    "fit_generator": "Leave it out: the job trains the model",
    "predict_classes": "Write tf.argmax(model(x), -1)",
    "uses_learning_phase": "Leave it out: a layer's call is handed `training`",
}


def _tensorflow_hint(match: re.Match[str]) -> str:
    if match[1] == "train" and match[2].endswith("Optimizer"):
        return OPTIMIZER_HINT
    if match[1]:
        return ""
    return _TENSORFLOW_1_HINTS.get(match[2], "")


def _tensor_hint(match: re.Match[str]) -> str:
    name = match[1]
    if name == "numpy":
        return (
            "A step is traced once, before there are values: leave out .numpy() and write it with"
            " functions of TensorFlow"
        )
    instead = _TENSOR_EXPRESSIONS.get(name)
    return f"A tensor is not a NumPy array: write {instead}" if instead else ""


_HINTS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (
        re.compile(r"module 'tensorflow(?:\._api\.v2\.|\.)?(\w*)' has no attribute '(\w+)'"),
        _tensorflow_hint,
    ),
    (re.compile(r"'?\w*Tensor'? object has no attribute '(\w+)'"), _tensor_hint),
    (
        re.compile(r"'\w+' object has no attribute '(\w+)'"),
        lambda match: _MODEL_HINTS.get(match[1], ""),
    ),
    (
        re.compile(r"Argument\(s\) not recognized: \{'lr'"),
        lambda match: "Write learning_rate instead of lr",
    ),
    (
        re.compile(r"Argument `decay` is no longer supported"),
        lambda match: (
            "Write a schedule as learning_rate, such as keras.optimizers.schedules.InverseTimeDecay"
        ),
    ),
    (
        re.compile(r"Unrecognized keyword arguments? passed to \w+: \{'(\w+)'"),
        lambda match: (
            "Put keras.Input(batch_shape=...) before the layer"
            if match[1] == "batch_input_shape"
            else ""
        ),
    ),
    (
        re.compile(r"has type (\w+) that does not match type (\w+) of argument"),
        lambda match: (
            f"Give both one type: tf.cast(labels, tf.{match[2]}), or output_type=tf.{match[1]} to"
            " tf.argmax"
        ),
    ),
    (
        re.compile(r"Missing data for input|does not match the (?:expected )?structure"),
        lambda match: (
            "Call the model's inputs as the features are called: keras.Input(..., name='image')"
        ),
    ),
    (
        # A layer looks up the size of its last axis in the shapes of a dict.
        re.compile(r"^KeyError: -1$"),
        lambda match: (
            "If a layer was handed the features' dict: take them by name (x['image']), or make the"
            " model of keras.Input(name=...) of these names"
        ),
    ),
)


def hint_for(text: str) -> str:
    """What to do about an error with this text; empty for an error that is not known."""
    for pattern, make_sentence in _HINTS:
        match = pattern.search(text)
        if match and (sentence := make_sentence(match)):
            return sentence
    return ""
