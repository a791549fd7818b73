"""Optimizer, loss and metrics of a model in files: what the spec says, else what its file holds."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from edl_horovod.errors import UserCodeError, did_you_mean
from edl_horovod.frameworks.keras.files.definition import Definition
from edl_horovod.frameworks.keras.files.optimizers import known_optimizers, optimizer_of
from edl_horovod.models.calling import user_code, wrong_optimizer
from edl_horovod.models.custom_objects import imported
from edl_horovod.models.file_model import CustomObject, FileModel

__all__ = ["CompileArguments", "missing_parts"]

_OPTIONS = ("optimizer", "loss", "metrics")
_OPTION_KEYS = ("value", "path", "args")
_OLDER_LOSSES = {
    "cosine": "cosine_similarity",
    "cosine_proximity": "cosine_similarity",
    "kullback_leibler_divergence": "kl_divergence",
    "logcosh": "log_cosh",
}
_BY_LABELS = ("accuracy", "acc", "crossentropy", "ce")
"""Metrics that Keras chooses by the shapes of labels and outputs."""
_NOT_PARTS = frozenset({"Loss", "Metric", "deserialize", "get", "serialize"})
_WRAPPERS = ("MeanMetricWrapper", "LossFunctionWrapper")
"""Classes of Keras 2 around a function, whose name is the setting `fn`."""


def missing_parts(definition: Definition, model: FileModel) -> dict[str, UserCodeError]:
    """The optimizer and the loss, as far as neither the file nor the options have them.

    Returns:
        By `optimizer` and `loss`, what to say where the settings of the job have none either.

    Raises:
        UserCodeError: An option has an unknown name.
    """
    for key in model.compile_options:
        if key not in _OPTIONS:
            raise UserCodeError(
                f"The spec of {model.name!r} has a compile option that Keras lacks.",
                received={key: model.compile_options[key]},
                cure=f"{did_you_mean(key, _OPTIONS)} There are: {', '.join(_OPTIONS)}.",
            )
    compiled = definition.compiled or {}
    found = {
        "optimizer": compiled.get("optimizer_config") or compiled.get("optimizer"),
        "loss": compiled.get("loss"),
    }
    return {
        key: UserCodeError(
            f"{definition.file} holds no {key}, and the spec of {model.name!r} gives none.",
            cure=f"Write it as compile_model_options: {{{key}: ...}} in the spec, by its name in"
            f" Keras; or set {key}=... for the job, or compile the model before it is saved.",
        )
        for key, value in found.items()
        if model.compile_options.get(key) is None and not value
    }


@dataclass(frozen=True, kw_only=True)
class CompileArguments:
    """Makes the arguments of `compile`, new ones at each call."""

    definition: Definition
    model: FileModel
    custom: Mapping[str, Any]
    """The user's objects by the names in the files."""

    def make(self) -> dict[str, Any]:
        """The arguments of `model.compile`.

        Raises:
            UserCodeError: One of them names nothing, or cannot be made.
        """
        options, compiled = self.model.compile_options, self.definition.compiled or {}
        arguments: dict[str, Any] = {}
        if (option := options.get("optimizer")) is not None:
            arguments["optimizer"] = self._optimizer_option(option)
        else:
            found = compiled.get("optimizer_config") or compiled.get("optimizer")
            # Keras wants one; where there is none, this one is never used.
            arguments["optimizer"] = self._optimizer(found or "SGD")
        if (option := options.get("loss")) is not None:
            arguments["loss"] = _each(option, lambda one: self._option("loss", one))
        else:
            arguments["loss"] = _each(compiled.get("loss"), lambda one: self._part("loss", one))
            if compiled.get("loss_weights") is not None:
                arguments["loss_weights"] = compiled["loss_weights"]
        if (option := options.get("metrics")) is not None:
            metrics = [option] if isinstance(option, str) else option
            arguments["metrics"] = _each(metrics, lambda one: self._option("metrics", one))
        else:
            for key in ("metrics", "weighted_metrics"):
                if found := _only_list(compiled.get(key)):
                    arguments[key] = _each(found, lambda one: self._part("metrics", one))
        return arguments

    @property
    def _place(self) -> str:
        return str(self.definition.file)

    def _optimizer_option(self, option: Any) -> keras.optimizers.Optimizer:
        name, settings, path = _read_option("optimizer", option)
        if path is not None or name in self.custom:
            place = f"{name} of {path or 'custom_objects'}"
            made = self._made_by_user(name, settings, path)
            if not isinstance(made, keras.optimizers.Optimizer):
                raise wrong_optimizer(made, place)
            return made
        place = f"the spec of {self.model.name!r}"
        return optimizer_of(_bare(name), settings, place=place, is_keras_2=False)

    def _optimizer(self, config: Any) -> keras.optimizers.Optimizer:
        if isinstance(config, str):
            config = {"class_name": config, "config": {}}
        name, is_keras_2 = str(config.get("class_name")), self.definition.is_keras_2
        is_named = name.rpartition(">")[2].lower() in map(str.lower, known_optimizers())
        if is_named and (is_keras_2 or "module" not in config):
            settings = config.get("config") or {}
            return optimizer_of(name, settings, place=self._place, is_keras_2=is_keras_2)
        return self._deserialized("optimizer", name, config)

    def _option(self, part: str, option: Any) -> Any:
        """A loss or a metric of the spec: a name, or `{value, path, args}`."""
        name, settings, path = _read_option(part, option)
        if path is not None or name in self.custom:
            return self._made_by_user(name, settings, path)
        return self._named(part, _bare(name), settings, f"the spec of {self.model.name!r}")

    def _part(self, part: str, config: Any) -> Any:
        """A loss or a metric of the file: a name, or a configuration."""
        if config is None:
            return None
        if isinstance(config, str):
            if config in self.custom:
                return self.custom[config]
            return self._named(part, config, {}, self._place)
        name, settings = str(config.get("class_name")), config.get("config")
        if name == "function":
            return self._part(part, str(settings))
        known = inspect.isclass(getattr(_module(part), name, None))
        if name in _WRAPPERS and isinstance(settings.get("fn"), str | Mapping):
            return self._wrapped(part, settings)
        if known and (self.definition.is_keras_2 or "module" not in config):
            kept = {k: v for k, v in settings.items() if k != "fn"}
            if kept.get("reduction") == "auto":
                kept["reduction"] = "sum_over_batch_size"
            return self._named(part, name, kept, self._place)
        return self._deserialized(part, name, config)

    def _wrapped(self, part: str, settings: Mapping[str, Any]) -> Any:
        """A function that Keras 2 wrapped, under the name that it had."""
        found = settings["fn"]
        name = str(found.get("config")) if isinstance(found, Mapping) else str(found)
        name = _OLDER_LOSSES.get(name, name)
        function = self.custom.get(name, getattr(_module(part), name, None))
        if not callable(function):
            return self._named(part, name, {}, self._place)
        if part == "loss":
            return function
        return keras.metrics.MeanMetricWrapper(function, name=settings.get("name", name))

    def _named(self, part: str, name: str, settings: Mapping[str, Any], place: str) -> Any:
        module = _module(part)
        if part == "metrics" and name in _BY_LABELS and not settings:
            return name
        name = _OLDER_LOSSES.get(name, name)
        found = getattr(module, name, None)
        if name in _NOT_PARTS or not callable(found):
            found = None
            if not name.startswith("_"):
                try:
                    found = module.get(name)
                except (TypeError, ValueError):
                    found = None
        if found is None:
            known = [key for key in vars(module) if key[0] != "_" and key not in _NOT_PARTS]
            raise UserCodeError(
                f"Keras has no {part} {name!r}, which {place} names.",
                received={part: name},
                cure=f"{did_you_mean(name, known)} Give a function of yours as custom_objects (key,"
                " value, path), or write the name of one of Keras among compile_model_options.",
            )
        if inspect.isclass(found):
            try:
                return found(**settings)
            except (TypeError, ValueError) as e:
                raise UserCodeError(f"The {part} {name!r} of {place} cannot be made: {e}") from e
        if part == "metrics" and not settings:
            return name  # By which Keras then shows it.
        if settings and not isinstance(found, keras.metrics.Metric | keras.losses.Loss):
            raise UserCodeError(
                f"The {part} {name!r} of {place} is a function, which takes no settings.",
                received={"args": dict(settings)},
                cure="Write the name of its class.",
            )
        return found

    def _made_by_user(self, name: str, settings: Mapping[str, Any], path: Path | None) -> Any:
        if path is None:
            found = self.custom[name]
        else:
            wanted = CustomObject(key=name, value=name, path=path)
            found = imported(wanted, is_trusted=self.model.is_trusted)
        if not inspect.isclass(found) and not settings:
            return found
        with user_code(f"Making {name}", root=path or self.definition.file.parent):
            return found(**settings)

    def _deserialized(self, part: str, name: str, config: Any) -> Any:
        """What today's Keras wrote, or a class of the user's."""
        if not isinstance(config, Mapping) or "class_name" not in config:
            raise UserCodeError(
                f"{self._place} does not say what its {part} is.", received=str(config)[:80]
            )
        given = {"module": None, "registered_name": name, **config}
        try:
            return keras.saving.deserialize_keras_object(
                given, custom_objects=dict(self.custom), safe_mode=not self.model.is_trusted
            )
        except (TypeError, ValueError) as e:
            known = list(vars(_module(part)))
            raise UserCodeError(
                f"The {part} {name!r} of {self._place} cannot be made.",
                received=str(e).partition("\n")[0][:200],
                cure=f"{did_you_mean(name, known)} If it is yours, give it as custom_objects (key,"
                " value, path); or write another among compile_model_options.",
            ) from e


def _read_option(part: str, option: Any) -> tuple[str, dict[str, Any], Path | None]:
    """The name, the arguments and the file of an option."""
    if isinstance(option, str):
        return option, {}, None
    if not isinstance(option, Mapping) or not isinstance(option.get("value"), str):
        raise UserCodeError(
            f"The compile option {part} must be a name, or an object with value, path and args.",
            received={part: option},
            cure=f"Write {part}: {{value: NAME, args: {{...}}}}.",
        )
    for key in option:
        if key not in _OPTION_KEYS:
            raise UserCodeError(
                f"The compile option {part} has an unknown key.",
                received={key: option[key]},
                cure=f"{did_you_mean(key, _OPTION_KEYS)} There are: {', '.join(_OPTION_KEYS)}.",
            )
    path = option.get("path")
    return option["value"], dict(option.get("args") or {}), Path(path) if path else None


def _each(value: Any, make: Any) -> Any:
    """What is made of each part, where there is one for each output, by place or by name."""
    if isinstance(value, list | tuple):
        return [_each(one, make) for one in value]
    is_part = isinstance(value, Mapping) and {"class_name", "value"} & value.keys()
    if isinstance(value, Mapping) and not is_part:
        return {key: _each(one, make) for key, one in value.items()}
    return make(value)


def _only_list(metrics: Any) -> Any:
    """Metrics of the only output; Keras 2 wrote a list for each of the outputs."""
    is_nested = isinstance(metrics, list) and len(metrics) == 1 and isinstance(metrics[0], list)
    return metrics[0] if is_nested else metrics


def _bare(name: str) -> str:
    """A name without the module of Keras before it: `tf.keras.losses.MeanSquaredError`."""
    return name.rpartition(".")[2] if name.startswith(("keras.", "tf.", "tensorflow.")) else name


def _module(part: str) -> Any:
    return {
        "loss": keras.losses,
        "metrics": keras.metrics,
        "optimizer": keras.optimizers,
    }[part]
