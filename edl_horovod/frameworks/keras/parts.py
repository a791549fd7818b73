"""The parts of a spec from what Keras users write: functions, Keras objects, or their names."""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import ConfigError, UserCodeError, did_you_mean
from edl_horovod.frameworks.keras.metrics import Measured, as_keras_metric
from edl_horovod.models.calling import wrong_optimizer
from edl_horovod.models.roles import DATASET_ROLES, LOSS_ROLES, declares_roles, with_roles
from edl_horovod.spec import Mode

__all__ = [
    "callbacks_part",
    "dataset_part",
    "loss_part",
    "metrics_part",
    "model_part",
    "optimizer_part",
]

Part = Callable[..., Any]

_DATASET = ("dataset", "mode")
_WEIGHTS = "sample_weight"
_NOT_NAMES = frozenset(
    {"Loss", "Optimizer", "deserialize", "get", "legacy", "schedules", "serialize"}
)
"""What Keras' modules of losses and optimizers hold besides these."""


def model_part(maker: Any, *, label: str) -> Part:
    """A `create_model` that calls a class or a function.

    Args:
        maker: A `keras.Model` subclass, or a function that returns a model.
        label: Names it in messages.
    """

    def create_model(**params: Any) -> Any:
        model = maker(**params)
        if not isinstance(model, keras.Model):
            raise UserCodeError(
                f"{label} must return a keras.Model.", received=type(model).__name__
            )
        return model

    own = _constructor_parameters(maker) if inspect.isclass(maker) else _named(maker)
    by_keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    create_model.__signature__ = inspect.Signature(by_keyword)  # type: ignore[attr-defined]
    create_model.__qualname__ = label
    return create_model


def dataset_part(function: Any, *, label: str) -> Part:
    """A `create_dataset` from a function of the data set and, where it declares it, the mode."""
    make = with_roles(_function(function, label), DATASET_ROLES, label=label)
    own = list(inspect.signature(make).parameters.values())[len(DATASET_ROLES) :]

    def create_dataset(dataset: Any, mode: Mode, **params: Any) -> Any:
        made = make(dataset, mode, None, **params)
        if not isinstance(made, tf.data.Dataset):
            raise UserCodeError(
                f"{label} must return a tf.data.Dataset.", received=type(made).__name__
            )
        return made

    given = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in _DATASET]
    create_dataset.__signature__ = inspect.Signature([*given, *own])  # type: ignore[attr-defined]
    create_dataset.__qualname__ = label
    return create_dataset


def loss_part(loss: Any, *, label: str) -> Part:
    """A `create_loss` from a function of labels and outputs, a Keras loss, or the name of one."""
    if isinstance(loss, str):
        loss = _keras_named(loss, keras.losses, "loss")
    if inspect.isclass(loss) and issubclass(loss, keras.losses.Loss):
        loss = loss()
    if isinstance(loss, keras.losses.Loss):
        loss = _mean_of(loss, label)
    function = _function(loss, label)
    weighs = _WEIGHTS in inspect.signature(function).parameters
    if weighs:
        function = functools.partial(function, sample_weight=None)
    make = with_roles(function, LOSS_ROLES, label=label)

    def create_loss(*args: Any, sample_weight: Any = None, **kwargs: Any) -> tf.Tensor:
        value = make(*args, **kwargs, **({_WEIGHTS: sample_weight} if weighs else {}))
        if value is None:
            raise UserCodeError(f"{label} must return the loss.", received="None")
        if sample_weight is not None and not weighs:
            value = _weighted(value, sample_weight, label)
        # One value an example or a position is as good as their mean.
        return tf.reduce_mean(value)

    signature = inspect.signature(make)
    own = [each for name, each in signature.parameters.items() if name != _WEIGHTS]
    weights = inspect.Parameter(_WEIGHTS, inspect.Parameter.KEYWORD_ONLY, default=None)
    create_loss.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*own, weights]
    )
    create_loss.__qualname__ = label
    return create_loss


def _weighted(value: Any, weights: tf.Tensor, label: str) -> tf.Tensor:
    """One value an example or a position, times the weights of the examples."""
    value = tf.convert_to_tensor(value)
    if not value.shape.rank:
        raise UserCodeError(
            f"{label} must return one value for each example, as create_dataset gives weights of"
            " them.",
            received="one number",
            cure="Leave out the mean over the examples, or declare sample_weight and weigh them.",
        )
    weights = tf.cast(weights, value.dtype)
    missing = value.shape.rank - (weights.shape.rank or 0)
    if missing > 0:
        weights = tf.reshape(weights, tf.concat([tf.shape(weights), [1] * missing], 0))
    elif missing < 0:  # (examples, 1) for one value an example.
        weights = tf.reshape(weights, tf.shape(value))
    return value * weights


def optimizer_part(optimizer: Any, *, label: str) -> Part:
    """A `create_optimizer` from a function, a Keras optimizer or its class, or the name of one.

    An optimizer that was made by the model file is not used itself: another job in the process
    would find its state in it.
    """
    if isinstance(optimizer, str):
        optimizer = _keras_named(optimizer, keras.optimizers, "optimizer")
    if inspect.isclass(optimizer) and issubclass(optimizer, keras.optimizers.Optimizer):
        optimizer = optimizer()
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return _checked_optimizer(_function(optimizer, label), label)
    kind, config = type(optimizer), optimizer.get_config()
    excluded = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)

    def create_optimizer(lr: float | None = None) -> Any:
        rate = {} if lr is None else {"learning_rate": lr}
        made = kind.from_config({**config, **rate})
        if excluded is not None:  # The configuration does not hold it.
            made.exclude_from_weight_decay(var_names=[excluded.pattern])
        return made

    return create_optimizer


def metrics_part(function: Any, *, label: str) -> Part:
    """A `create_metrics` from ElasticDL's `eval_metrics_fn`, for `Mode.EVALUATION` only.

    Args:
        function: Returns a dict of functions of labels and outputs, or of Keras metrics, by name,
            or such a dict for each output; or takes labels and outputs and returns a dict of
            values.
        label: Names it in messages.
    """
    function = _function(function, label)
    if declares_roles(function):
        make = with_roles(function, LOSS_ROLES, label=label)
        return lambda mode, labels, outputs: _values(
            make(labels=labels, outputs=outputs) if mode is Mode.EVALUATION else {}, label
        )
    found: dict[str, tuple[Part, str | None]] = {}

    def create_metrics(mode: Mode, labels: Any, outputs: Any) -> dict[str, Any]:
        if mode is not Mode.EVALUATION:
            return {}
        if not found:
            with tf.init_scope():  # Keras metrics make variables, which a traced step must not.
                found.update(_metrics(function(), label))
        values = {
            name: metric(labels=labels, outputs=_output(outputs, output, label))
            for name, (metric, output) in found.items()
        }
        return _values(values, label)

    return create_metrics


def callbacks_part(function: Any, *, label: str) -> Part:
    """A `create_callbacks` from a function."""
    return _function(function, label)


def _function(value: Any, label: str) -> Part:
    if callable(value):
        parameters = inspect.signature(value).parameters
        if next(iter(parameters), "") != "self":
            return value  # type: ignore[no-any-return]  # callable() says no more.
        raise UserCodeError(
            f"{label} is called on the class, before there is a model. Write @staticmethod above"
            " it, and leave out self."
        )
    raise UserCodeError(f"{label} must be a function.", received=repr(value))


def _named(function: Any) -> list[inspect.Parameter]:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p for p in inspect.signature(function).parameters.values() if p.kind not in variable]


def _constructor_parameters(kind: type) -> list[inspect.Parameter]:
    """What the constructors of a class and of its bases declare, up to Keras' own."""
    found: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] == "keras":
            break
        if "__init__" in vars(base):
            parameters = _named(vars(base)["__init__"])[1:]
            found = {p.name: p for p in parameters} | found
            if not _passes_on(vars(base)["__init__"]):
                break
    return sorted(found.values(), key=lambda p: p.default is not inspect.Parameter.empty)


def _passes_on(function: Any) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _keras_named(name: str, module: Any, setting: str) -> Any:
    """What Keras knows by a name."""
    try:
        return module.get(name)
    except (TypeError, ValueError) as e:
        known = [k for k in dir(module) if k[0] != "_" and k not in _NOT_NAMES]
        # A loss is there as a function and as a class; one of them is enough to choose from.
        shown = [name for name in known if name.islower()] or known
        raise ConfigError(
            f"Neither the model zoo nor Keras has this {setting}.",
            received=f"{setting}={name}",
            cure=(
                f"{did_you_mean(name, known)} Write file.function, a function of the model's own"
                f" file, or one of Keras: {', '.join(shown)}."
            ),
        ) from e


def _mean_of(loss: Any, label: str) -> Part:
    """A Keras loss object as a function."""
    if loss.reduction in ("sum", None):
        raise UserCodeError(
            f"{label} must be the mean over a batch.",
            received=f"a {type(loss).__name__} with reduction={loss.reduction!r}",
            cure="Leave Keras' own, 'sum_over_batch_size'.",
        )
    return lambda labels, outputs, sample_weight=None: loss(labels, outputs, sample_weight)


def _checked_optimizer(function: Part, label: str) -> Part:
    @functools.wraps(function)
    def create_optimizer(*args: Any, **kwargs: Any) -> Any:
        optimizer = function(*args, **kwargs)
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise wrong_optimizer(optimizer, label)
        return optimizer

    return create_optimizer


def _metrics(made: Any, label: str) -> Iterator[tuple[str, tuple[Part, str | None]]]:
    """Each metric's name, its function, and the name of the output that it is about."""
    for name, metric in _dict(made, label).items():
        if isinstance(metric, dict):
            for inner, of_output in metric.items():
                yield f"{name}_{inner}", (_metric(of_output, f"{inner} of {label}"), name)
        else:
            yield name, (_metric(metric, f"{name} of {label}"), None)


def _metric(metric: Any, label: str) -> Part:
    """A metric as a function of labels and outputs: one value an example, a mean, or counts."""
    keras_metric = as_keras_metric(metric)
    if keras_metric is None:
        return with_roles(_function(metric, label), LOSS_ROLES, label=label)
    return lambda labels, outputs: Measured(keras_metric, labels, outputs, label)


def _output(outputs: Any, name: str | None, label: str) -> Any:
    if name is None:
        return outputs
    if isinstance(outputs, dict) and name in outputs:
        return outputs[name]
    has = ", ".join(map(repr, outputs)) if isinstance(outputs, dict) else "one without a name"
    raise UserCodeError(
        f"{label} has metrics of the output {name!r}, which the model has not. It has: {has}."
    )


def _dict(made: Any, label: str) -> dict[str, Any]:
    if isinstance(made, dict):
        return made
    raise UserCodeError(f"{label} must return a dict.", received=type(made).__name__)


def _values(given: Any, label: str) -> dict[str, Any]:
    """Metrics as scalars or one value an example, whatever their shape; those of Keras as such."""
    values: dict[str, Any] = {}
    for name, value in _dict(given, label).items():
        if isinstance(value, Measured):
            values[name] = value
            continue
        tensor = tf.cast(tf.convert_to_tensor(value), tf.float32)
        rank = tensor.shape.rank
        if rank is None:  # As by tf.squeeze, where a batch may be of one example.
            values[name] = tf.reduce_mean(tensor)
            continue
        values[name] = tf.reduce_mean(tensor, axis=list(range(1, rank))) if rank > 1 else tensor
    return values
