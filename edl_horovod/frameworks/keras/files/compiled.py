"""Optimizer, loss and metrics of a Keras model: from its options, else from its file.

Optimizers are described as in Keras 2 or as in Keras 3.
"""

import contextlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import keras

from edl_horovod.errors import UserCodeError, did_you_mean
from edl_horovod.frameworks.keras.files.config_upgrade import classes_in
from edl_horovod.frameworks.keras.files.definition import Definition
from edl_horovod.frameworks.keras.optimizer import wrong_optimizer
from edl_horovod.models.calling import user_code
from edl_horovod.models.modules import CustomObject, import_object

_OPTIONS = ("optimizer", "loss", "metrics")
_OPTION_KEYS = ("value", "path", "args")
_MODULES = {"loss": keras.losses, "metrics": keras.metrics, "optimizer": keras.optimizers}
_RENAMED_LOSSES = {
    "cosine": "cosine_similarity",
    "cosine_proximity": "cosine_similarity",
    "kullback_leibler_divergence": "kl_divergence",
    "logcosh": "log_cosh",
}
_RESOLVED_BY_SHAPE = ("accuracy", "acc", "crossentropy", "ce")
"""Metric names that Keras resolves by the shapes of labels and outputs."""
_NOT_PARTS = frozenset({"Loss", "Metric", "deserialize", "get", "serialize"})
_WRAPPERS = ("MeanMetricWrapper", "LossFunctionWrapper")
"""Classes of Keras 2 that wrap a function, whose name is in the setting `fn`."""

_KERAS_2_ONLY = frozenset({"is_legacy_optimizer", "jit_compile", "schedule_decay"})
"""Arguments to drop: runtime options, and Nadam's schedule, which is constant in Keras 3."""
_EPSILON = 1e-7
"""Keras' default, for which Keras 2 saved None."""


def missing_parts(definition: Definition) -> dict[str, UserCodeError]:
    """Find out whether the file and the options lack an optimizer or a loss.

    Returns:
        For each missing part (`optimizer`, `loss`), the error to raise if the job's settings do not
        provide it either.

    Raises:
        UserCodeError: An option has an unknown name.
    """
    model = definition.source
    for key in model.compile_options:
        if key not in _OPTIONS:
            raise UserCodeError(
                f"The spec of {model.name!r} has an unknown compile option.",
                received={key: model.compile_options[key]},
                hint=f"{did_you_mean(key, _OPTIONS)} Allowed options: {', '.join(_OPTIONS)}.",
            )
    from_file = {"optimizer": definition.optimizer, "loss": definition.compiled.get("loss")}
    return {
        key: UserCodeError(
            f"{definition.file} contains no {key}, and the spec of {model.name!r} sets none.",
            hint=f"Set compile_model_options: {{{key}: ...}} in the spec to its name in Keras, set"
            f" {key}=... for the job, or compile the model before it is saved.",
        )
        for key, value in from_file.items()
        if model.compile_options.get(key) is None and not value
    }


@dataclass(frozen=True, kw_only=True)
class CompileArguments:
    """Creates new arguments for `compile` at each call."""

    definition: Definition
    custom: Mapping[str, Any]
    """The user's objects by the names that the files use."""

    def make(self) -> dict[str, Any]:
        """Create the arguments of `model.compile`.

        Raises:
            UserCodeError: An argument has an unknown name or cannot be created.
        """
        options, compiled = self.definition.source.compile_options, self.definition.compiled
        arguments: dict[str, Any] = {}
        if (option := options.get("optimizer")) is not None:
            arguments["optimizer"] = self._option("optimizer", option)
        else:
            # Keras requires one; if there is none, this default is never used.
            arguments["optimizer"] = self._optimizer(self.definition.optimizer or "SGD")
        if (option := options.get("loss")) is not None:
            arguments["loss"] = _map_parts(option, partial(self._option, "loss"))
        else:
            arguments["loss"] = _map_parts(compiled.get("loss"), partial(self._part, "loss"))
            if compiled.get("loss_weights") is not None:
                arguments["loss_weights"] = compiled["loss_weights"]
        if (option := options.get("metrics")) is not None:
            metrics = [option] if isinstance(option, str) else option
            arguments["metrics"] = _map_parts(metrics, partial(self._option, "metrics"))
        else:
            for key in ("metrics", "weighted_metrics"):
                if config := _flatten_single_output(compiled.get(key)):
                    arguments[key] = _map_parts(config, partial(self._part, "metrics"))
        return arguments

    @property
    def _source(self) -> str:
        return str(self.definition.file)

    def _optimizer(self, config: Any) -> keras.optimizers.Optimizer:
        if isinstance(config, str):
            config = {"class_name": config, "config": {}}
        name, is_keras_2 = str(config.get("class_name")), self.definition.is_keras_2
        is_known = name.rpartition(">")[2].lower() in map(str.lower, _known_optimizers())
        if is_known and (is_keras_2 or "module" not in config):
            settings = config.get("config") or {}
            return _optimizer_from_settings(
                name, settings, source=self._source, is_keras_2=is_keras_2
            )
        return self._deserialize("optimizer", name, config)

    def _option(self, part: str, option: Any) -> Any:
        """Create a part of the spec, which is a name or `{value, path, args}`."""
        name, settings, path = _read_option(part, option)
        if path is not None or name in self.custom:
            value = self._custom_object(name, settings, path)
            if part == "optimizer" and not isinstance(value, keras.optimizers.Optimizer):
                raise wrong_optimizer(value, f"{name} of {path or 'custom_objects'}")
            return value
        if name.startswith(("keras.", "tf.", "tensorflow.")):
            name = name.rpartition(".")[2]
        source = f"the spec of {self.definition.source.name!r}"
        if part == "optimizer":
            return _optimizer_from_settings(name, settings, source=source, is_keras_2=False)
        return self._named(part, name, settings, source)

    def _part(self, part: str, config: Any) -> Any:
        """Create a loss or a metric of the file, which is a name or a configuration."""
        if config is None:
            return None
        if isinstance(config, str):
            if config in self.custom:
                return self.custom[config]
            return self._named(part, config, {}, self._source)
        name, settings = str(config.get("class_name")), config.get("config")
        if name == "function":
            return self._part(part, str(settings))
        is_known = inspect.isclass(getattr(_MODULES[part], name, None))
        if name in _WRAPPERS and isinstance(settings.get("fn"), str | Mapping):
            return self._unwrap(part, settings)
        if is_known and (self.definition.is_keras_2 or "module" not in config):
            arguments = {k: v for k, v in settings.items() if k != "fn"}
            if arguments.get("reduction") == "auto":
                arguments["reduction"] = "sum_over_batch_size"
            return self._named(part, name, arguments, self._source)
        return self._deserialize(part, name, config)

    def _unwrap(self, part: str, settings: Mapping[str, Any]) -> Any:
        """Create the function that a class of Keras 2 wrapped, under its original name."""
        serialized = settings["fn"]
        name = str(serialized.get("config")) if isinstance(serialized, Mapping) else str(serialized)
        name = _RENAMED_LOSSES.get(name, name)
        function = self.custom.get(name, getattr(_MODULES[part], name, None))
        if not callable(function):
            return self._named(part, name, {}, self._source)
        if part == "loss":
            return function
        return keras.metrics.MeanMetricWrapper(function, name=settings.get("name", name))

    def _named(self, part: str, name: str, settings: Mapping[str, Any], source: str) -> Any:
        module = _MODULES[part]
        if part == "metrics" and name in _RESOLVED_BY_SHAPE and not settings:
            return name
        name = _RENAMED_LOSSES.get(name, name)
        value = getattr(module, name, None)
        if name in _NOT_PARTS or not callable(value):
            value = None
            with contextlib.suppress(TypeError, ValueError):
                value = None if name.startswith("_") else module.get(name)
        if value is None:
            known = [key for key in vars(module) if key[0] != "_" and key not in _NOT_PARTS]
            raise UserCodeError(
                f"Keras has no {part} {name!r}, which {source} refers to.",
                received={part: name},
                hint=f"{did_you_mean(name, known)} Provide your own function in custom_objects"
                " (key, value, path), or set one of Keras in compile_model_options.",
            )
        if inspect.isclass(value):
            try:
                return value(**settings)
            except (TypeError, ValueError) as e:
                raise UserCodeError(
                    f"The {part} {name!r} of {source} cannot be created: {e}"
                ) from e
        if part == "metrics" and not settings:
            return name  # Keras then reports the metric by this name.
        if settings and not isinstance(value, keras.metrics.Metric | keras.losses.Loss):
            raise UserCodeError(
                f"The {part} {name!r} of {source} is a function, which takes no args.",
                received={"args": dict(settings)},
                hint="Use the name of its class, or remove args.",
            )
        return value

    def _custom_object(self, name: str, settings: Mapping[str, Any], path: Path | None) -> Any:
        if path is None:
            value = self.custom[name]
        else:
            reference = CustomObject(key=name, value=name, path=path)
            value = import_object(reference, is_trusted=self.definition.source.is_trusted)
        if not inspect.isclass(value) and not settings:
            return value
        with user_code(f"Creating {name}", root=path or self.definition.file.parent):
            return value(**settings)

    def _deserialize(self, part: str, name: str, config: Any) -> Any:
        """Create a part that Keras 3 serialized, or an instance of a class of the user."""
        if not isinstance(config, Mapping) or "class_name" not in config:
            raise UserCodeError(
                f"{self._source} does not describe its {part}.", received=str(config)[:80]
            )
        serialized = {"module": None, "registered_name": name, **config}
        try:
            return keras.saving.deserialize_keras_object(
                serialized,
                custom_objects=dict(self.custom),
                safe_mode=not self.definition.source.is_trusted,
            )
        except (TypeError, ValueError) as e:
            known = list(vars(_MODULES[part]))
            raise UserCodeError(
                f"The {part} {name!r} of {self._source} cannot be created.",
                received=str(e).partition("\n")[0][:200],
                hint=f"{did_you_mean(name, known)} If it is yours, provide it in custom_objects"
                " (key, value, path), or set another in compile_model_options.",
            ) from e


def _read_option(part: str, option: Any) -> tuple[str, dict[str, Any], Path | None]:
    """Split an option into its name, its arguments and its file."""
    if isinstance(option, str):
        return option, {}, None
    if not isinstance(option, Mapping) or not isinstance(option.get("value"), str):
        raise UserCodeError(
            f"The compile option {part} must be a name, or an object with value, path and args.",
            received={part: option},
            hint=f"Write {part}: {{value: NAME, args: {{...}}}}.",
        )
    for key in option:
        if key not in _OPTION_KEYS:
            raise UserCodeError(
                f"The compile option {part} has an unknown key.",
                received={key: option[key]},
                hint=f"{did_you_mean(key, _OPTION_KEYS)} Allowed keys: {', '.join(_OPTION_KEYS)}.",
            )
    path = option.get("path")
    return option["value"], dict(option.get("args") or {}), Path(path) if path else None


def _map_parts(value: Any, create: Any) -> Any:
    """Apply `create` to a part, or to each part of a list or dict with one for each output."""
    if isinstance(value, list | tuple):
        return [_map_parts(part, create) for part in value]
    is_part = isinstance(value, Mapping) and {"class_name", "value"} & value.keys()
    if isinstance(value, Mapping) and not is_part:
        return {key: _map_parts(part, create) for key, part in value.items()}
    return create(value)


def _flatten_single_output(metrics: Any) -> Any:
    """Unwrap the list of a single output's metrics; Keras 2 wrote one list for each output."""
    is_nested = isinstance(metrics, list) and len(metrics) == 1 and isinstance(metrics[0], list)
    return metrics[0] if is_nested else metrics


def _known_optimizers() -> dict[str, type[keras.optimizers.Optimizer]]:
    """Map the names of Keras' optimizers to their classes."""
    known = classes_in(keras.optimizers, keras.optimizers.Optimizer)
    del known["Optimizer"]
    return known


def _optimizer_from_settings(
    name: str, settings: Mapping[str, Any], *, source: str, is_keras_2: bool
) -> keras.optimizers.Optimizer:
    """Create a Keras optimizer from its name and arguments.

    Args:
        name: The name of the class in any case, optionally with the prefix `Custom>`.
        settings: The arguments; `lr` and `decay` of Keras 2 are accepted.
        source: Name of the file or spec in messages.
        is_keras_2: Whether Keras 2 wrote the arguments, so that its defaults apply.

    Raises:
        UserCodeError: Keras has no such optimizer, or it does not accept an argument.
    """
    known = _known_optimizers()
    by_lower_case = {key.lower(): value for key, value in known.items()}
    optimizer_class = by_lower_case.get(name.rpartition(">")[2].rpartition(".")[2].lower())
    if optimizer_class is None:
        raise UserCodeError(
            f"Keras has no optimizer {name!r}, which {source} refers to.",
            received={"optimizer": name},
            hint=f"{did_you_mean(name, known)} Available: {', '.join(sorted(known))}.",
        )
    arguments = _current_arguments(optimizer_class, settings, source, is_keras_2=is_keras_2)
    try:
        return optimizer_class.from_config(arguments)
    except (TypeError, ValueError) as e:
        raise UserCodeError(f"The optimizer {name!r} of {source} cannot be created: {e}") from e


def _current_arguments(
    optimizer_class: type[keras.optimizers.Optimizer],
    settings: Mapping[str, Any],
    source: str,
    *,
    is_keras_2: bool,
) -> dict[str, Any]:
    arguments = {key: value for key, value in settings.items() if key not in _KERAS_2_ONLY}
    if "lr" in arguments:
        if "learning_rate" in arguments:
            raise UserCodeError(
                f"The optimizer of {source} has both lr and learning_rate.",
                received={key: arguments[key] for key in ("lr", "learning_rate")},
                hint="Remove lr.",
            )
        arguments["learning_rate"] = arguments.pop("lr")
    decay = arguments.pop("decay", None)
    parameters = inspect.signature(optimizer_class).parameters
    accepted = set(parameters) - {"kwargs"}
    if "learning_rate" in accepted:
        rate = arguments.get("learning_rate", parameters["learning_rate"].default)
        arguments["learning_rate"] = _rate(rate, decay or 0.0, source)
    if arguments.get("epsilon", 1) is None:
        arguments["epsilon"] = _EPSILON
    if is_keras_2 and optimizer_class is keras.optimizers.Adagrad:
        # Keras 2 without TensorFlow always started at 0 and did not save the setting.
        arguments.setdefault("initial_accumulator_value", 0.0)
    for key in list(arguments):
        if key not in accepted:
            raise UserCodeError(
                f"Keras' {optimizer_class.__name__} does not accept {key!r}, which {source} sets.",
                received={key: arguments[key]},
                hint=f"{did_you_mean(key, accepted)} Accepted: {', '.join(sorted(accepted))}.",
            )
    return arguments


def _rate(rate: Any, decay: float, source: str) -> Any:
    """Build a learning rate: a number, or a schedule, which replaces the decay of Keras 2."""
    if isinstance(rate, Mapping):
        name = str(rate.get("class_name"))
        known = classes_in(keras.optimizers.schedules)
        if name not in known:
            raise UserCodeError(
                f"Keras has no schedule {name!r}, which {source} refers to.",
                received={"learning_rate": name},
                hint=f"{did_you_mean(name, known)} Available: {', '.join(sorted(known))}.",
            )
        if decay:
            raise UserCodeError(
                f"The optimizer of {source} has both a schedule and a decay.",
                received={"decay": decay},
                hint="Remove the decay.",
            )
    elif decay:
        settings = {"initial_learning_rate": float(rate), "decay_steps": 1, "decay_rate": decay}
        rate = {"class_name": "InverseTimeDecay", "config": settings}
    else:
        return float(rate)
    return {"module": "keras.optimizers.schedules", "registered_name": None, **rate}
