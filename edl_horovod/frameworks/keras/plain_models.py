"""Keras models without a spec: a `keras.Model` subclass or a function that returns a model.

The parts of a spec are built from functions, Keras objects, or their names.
"""

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses.losses import LossFunctionWrapper

from edl_horovod.errors import ConfigError, UserCodeError, did_you_mean
from edl_horovod.frameworks import plain_models as parts
from edl_horovod.frameworks.keras.metrics import MetricCall, as_keras_metric, require_dict
from edl_horovod.frameworks.keras.optimizer import wrong_optimizer
from edl_horovod.frameworks.plain_models import Part
from edl_horovod.models.calling import declared
from edl_horovod.models.parts import LOSS_ROLES, PlainModels, declares_roles, with_roles
from edl_horovod.spec import Mode

_WEIGHTS = "sample_weight"
_NOT_NAMES = {"Loss", "Optimizer", "deserialize", "get", "legacy", "schedules", "serialize"}
"""Names in Keras' modules of losses and optimizers that are neither."""


def model_part(maker: Any, *, label: str) -> Part:
    """Build a `create_model` that calls a class or a function.

    Args:
        maker: A `keras.Model` subclass, or a function that returns a model.
        label: Name of `maker` in messages.
    """

    def create(**params: Any) -> Any:
        model = maker(**params)
        if not isinstance(model, keras.Model):
            raise UserCodeError(
                f"{label} must return a keras.Model.", received=type(model).__name__
            )
        return model

    is_class = inspect.isclass(maker)
    parameters = _constructor_parameters(maker) if is_class else parts.named_parameters(maker)
    return parts.model_part(create, parameters, label=label)


def dataset_part(function: Any, *, label: str) -> Part:
    """Build a `create_dataset` from a function of the data set and, if declared, the mode."""

    def require_dataset(examples: Any) -> None:
        if not isinstance(examples, tf.data.Dataset):
            raise UserCodeError(
                f"{label} must return a tf.data.Dataset.", received=type(examples).__name__
            )

    return parts.dataset_part(
        function_part(function, label=label), label=label, check=require_dataset
    )


def loss_part(loss: Any, *, label: str) -> Part:
    """Build a `create_loss` from a function of labels and outputs, a Keras loss, or its name."""
    if isinstance(loss, str):
        loss = _keras_object(loss, keras.losses, "loss")
    if inspect.isclass(loss) and issubclass(loss, keras.losses.Loss):
        loss = loss()
    if inspect.isfunction(loss) and loss.__module__.startswith("keras."):
        loss = LossFunctionWrapper(loss)  # As `compile` does it: with masks, and of equal ranks.
    if isinstance(loss, keras.losses.Loss):
        loss = _mean_loss(loss, label)
    function = function_part(loss, label=label)
    takes_weights = _WEIGHTS in inspect.signature(function).parameters
    if takes_weights:
        function = functools.partial(function, sample_weight=None)
    make = with_roles(function, LOSS_ROLES, label=label)

    def create_loss(*args: Any, sample_weight: Any = None, **kwargs: Any) -> tf.Tensor:
        if takes_weights:
            kwargs[_WEIGHTS] = sample_weight
        value = make(*args, **kwargs)
        if value is None:
            raise UserCodeError(f"{label} must return the loss.", received="None")
        if sample_weight is not None and not takes_weights:
            value = _weighted(value, sample_weight, label)
        # One value for each example or position is accepted, too.
        return tf.reduce_mean(value)

    parameters = dict(inspect.signature(make).parameters)
    parameters[_WEIGHTS] = inspect.Parameter(_WEIGHTS, inspect.Parameter.KEYWORD_ONLY, default=None)
    signature = inspect.Signature([*parameters.values()])
    create_loss.__signature__ = signature  # type: ignore[attr-defined]
    create_loss.__qualname__ = label
    return create_loss


def optimizer_part(optimizer: Any, *, label: str) -> Part:
    """Build a `create_optimizer` from a function, a Keras optimizer, its class, or its name.

    An optimizer object in the model file is copied, because it would carry its state into the next
    job of the same process.
    """
    if isinstance(optimizer, str):
        optimizer = _keras_object(optimizer, keras.optimizers, "optimizer")
    if inspect.isclass(optimizer) and issubclass(optimizer, keras.optimizers.Optimizer):
        optimizer = optimizer()
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return _checked_optimizer(function_part(optimizer, label=label), label)
    optimizer_class, config = type(optimizer), optimizer.get_config()
    excluded_pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)

    def create_optimizer(lr: float | None = None) -> Any:
        override = {} if lr is None else {"learning_rate": lr}
        copy = optimizer_class.from_config({**config, **override})
        if excluded_pattern is not None:  # get_config leaves it out.
            copy.exclude_from_weight_decay(var_names=[excluded_pattern.pattern])
        return copy

    return create_optimizer


def metrics_part(function: Any, *, label: str) -> Part:
    """Build a `create_metrics` from ElasticDL's `eval_metrics_fn`, for `Mode.EVALUATION` only.

    Args:
        function: Takes labels and outputs and returns a dict of values. Or takes nothing and
            returns a dict of functions of labels and outputs or of Keras metrics, by name, or one
            such dict for each output.
        label: Name of `function` in messages.
    """
    function = function_part(function, label=label)
    if declares_roles(function):
        make = with_roles(function, LOSS_ROLES, label=label)
        return lambda mode, labels, outputs: _checked_values(
            make(labels=labels, outputs=outputs) if mode is Mode.EVALUATION else {}, label
        )
    metrics_by_name: dict[str, tuple[Part, str | None]] = {}

    def create_metrics(mode: Mode, labels: Any, outputs: Any) -> dict[str, Any]:
        if mode is not Mode.EVALUATION:
            return {}
        if not metrics_by_name:
            with tf.init_scope():  # Metrics create variables; tracing forbids it.
                metrics_by_name.update(_flatten_metrics(function(), label))
        values = {
            name: metric(labels=labels, outputs=_output(outputs, output, label))
            for name, (metric, output) in metrics_by_name.items()
        }
        return _checked_values(values, label)

    return create_metrics


def function_part(value: Any, *, label: str) -> Part:
    """Check that a part, such as `create_callbacks`, is a function without `self`."""
    if callable(value):
        parameters = inspect.signature(value).parameters
        if next(iter(parameters), "") != "self":
            return value  # type: ignore[no-any-return]  # callable() narrows to object.
        raise UserCodeError(
            f"{label} is called on the class, before a model exists. Decorate it with"
            " @staticmethod and remove self."
        )
    raise UserCodeError(f"{label} must be a function.", received=repr(value))


def _weighted(value: Any, weights: tf.Tensor, label: str) -> tf.Tensor:
    """Multiply the loss of each example or position by the weight of its example."""
    value = tf.convert_to_tensor(value)
    if not value.shape.rank:
        raise UserCodeError(
            f"{label} must return one value for each example, because create_dataset returns"
            " example weights.",
            received="a scalar",
            hint="Do not take the mean over the examples, or declare sample_weight and apply it.",
        )
    weights = tf.cast(weights, value.dtype)
    num_missing_axes = value.shape.rank - (weights.shape.rank or 0)
    if num_missing_axes > 0:
        weights = tf.reshape(weights, tf.concat([tf.shape(weights), [1] * num_missing_axes], 0))
    elif num_missing_axes < 0:  # Weights of shape (examples, 1) for losses of shape (examples,).
        weights = tf.reshape(weights, tf.shape(value))
    return value * weights


def _constructor_parameters(model_class: type) -> list[inspect.Parameter]:
    """List the parameters of a class's constructor and those that it passes on to bases.

    Bases that Keras defines are left out.
    """
    by_name: dict[str, inspect.Parameter] = {}
    for base in model_class.__mro__:
        if base.__module__.partition(".")[0] == "keras":
            break
        if "__init__" in vars(base):
            parameters = parts.named_parameters(vars(base)["__init__"])[1:]
            by_name = {p.name: p for p in parameters} | by_name
            if not declared(vars(base)["__init__"]).takes_any:
                break
    return sorted(by_name.values(), key=lambda p: p.default is not inspect.Parameter.empty)


def _keras_object(name: str, module: Any, setting: str) -> Any:
    """Look up a loss or an optimizer of Keras by its name."""
    try:
        return module.get(name)
    except (TypeError, ValueError) as e:
        known = [k for k in dir(module) if k[0] != "_" and k not in _NOT_NAMES]
        # Keras has each loss as a function and as a class; show the functions only.
        shown = [name for name in known if name.islower()] or known
        raise ConfigError(
            f"Neither the model zoo nor Keras has this {setting}.",
            received=f"{setting}={name}",
            hint=(
                f"{did_you_mean(name, known)} Set it to file.function, to a function of the"
                f" model's file, or to one of Keras: {', '.join(shown)}."
            ),
        ) from e


def _mean_loss(loss: Any, label: str) -> Part:
    """Turn a Keras loss object into a function that returns the mean over a batch."""
    if loss.reduction in ("sum", None):
        raise UserCodeError(
            f"{label} must be the mean over a batch.",
            received=f"a {type(loss).__name__} with reduction={loss.reduction!r}",
            hint="Keep the default of Keras, reduction='sum_over_batch_size'.",
        )

    def mean_loss(labels: Any, outputs: Any, sample_weight: Any = None) -> Any:
        if not tf.nest.is_nested(outputs):
            return loss(labels, outputs, sample_weight)
        # As `compile` takes one loss for several outputs.
        tf.nest.assert_same_structure(labels, outputs, check_types=False)
        pairs = zip(tf.nest.flatten(labels), tf.nest.flatten(outputs), strict=True)
        return sum(loss(*pair, sample_weight) for pair in pairs)

    return mean_loss


def _checked_optimizer(function: Part, label: str) -> Part:
    @functools.wraps(function)
    def create_optimizer(*args: Any, **kwargs: Any) -> Any:
        optimizer = function(*args, **kwargs)
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise wrong_optimizer(optimizer, label)
        return optimizer

    return create_optimizer


def _flatten_metrics(metrics: Any, label: str) -> Iterator[tuple[str, tuple[Part, str | None]]]:
    """Yield each metric's name, its function, and the name of its output, None for all."""
    for name, metric in require_dict(metrics, label).items():
        if isinstance(metric, dict):
            for inner_name, inner in metric.items():
                yield f"{name}_{inner_name}", (_metric(inner, f"{inner_name} of {label}"), name)
        else:
            yield name, (_metric(metric, f"{name} of {label}"), None)


def _metric(metric: Any, label: str) -> Part:
    """Turn a metric into a function of labels and outputs.

    The function returns one value for each example, their mean, or a `MetricCall`.
    """
    keras_metric = as_keras_metric(metric)
    if keras_metric is None:
        return with_roles(function_part(metric, label=label), LOSS_ROLES, label=label)
    return lambda labels, outputs: MetricCall(keras_metric, labels, outputs, label)


def _output(outputs: Any, name: str | None, label: str) -> Any:
    if name is None:
        return outputs
    if isinstance(outputs, dict) and name in outputs:
        return outputs[name]
    available = ", ".join(map(repr, outputs)) if isinstance(outputs, dict) else "one without a name"
    raise UserCodeError(
        f"{label} has metrics of the output {name!r}, which the model does not have."
        f" Outputs of the model: {available}."
    )


def _checked_values(metrics: Any, label: str) -> dict[str, Any]:
    """Require a dict of Keras metrics, scalars, and values of which each example has one."""

    def checked(value: Any) -> Any:
        if isinstance(value, MetricCall):
            return value
        tensor = tf.cast(tf.convert_to_tensor(value), tf.float32)
        rank = tensor.shape.rank  # Unknown, for instance, after tf.squeeze of a batch.
        return tf.reduce_mean(tensor, None if rank is None else list(range(1, rank)))

    return {name: checked(value) for name, value in require_dict(metrics, label).items()}


PLAIN_MODELS = PlainModels(
    "keras",
    keras.Model,
    make={
        "model": model_part,
        "input_fn": dataset_part,
        "loss": loss_part,
        "optimizer": optimizer_part,
        "metrics": metrics_part,
        "callbacks": function_part,
    },
    hints={
        "input_fn": "the class default_input, or its file a function feed",
        "loss": "the class default_loss, or its file a function loss",
        "optimizer": "the class default_optimizer, or its file a function optimizer",
    },
)
