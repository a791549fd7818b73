"""Configurations of models that Keras 2 wrote, or Keras 3 into HDF5, as today's Keras writes them.

What Keras 3 computes otherwise is either said in its own terms or refused by name. The names of
layers stay, since weights are found by them.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from edl_horovod.errors import UserCodeError, did_you_mean
from edl_horovod.frameworks.keras.files.channels import CHANNELS_FIRST
from edl_horovod.frameworks.keras.files.nodes import as_todays_graph, input_of

__all__ = ["HARD_SIGMOID", "Older", "hard_sigmoid", "known_layers", "unknown_layer"]

HARD_SIGMOID = "edl_horovod>hard_sigmoid"
_MODELS = {"Model": "Functional", "Functional": "Functional", "Sequential": "Sequential"}
_RENAMED = {
    "BatchNormalizationV1": "BatchNormalization",
    "BatchNormalizationV2": "BatchNormalization",
    "SyncBatchNormalization": "BatchNormalization",
    "CuDNNGRU": "GRU",
    "CuDNNLSTM": "LSTM",
}
_RENAMED_SETTINGS = {
    ("InputLayer", "batch_input_shape"): "batch_shape",
    ("LeakyReLU", "alpha"): "negative_slope",
}
_WITHOUT_EFFECT = frozenset(
    {
        "batch_input_shape",
        "batch_shape",
        "dynamic",
        "fused",
        "implementation",
        "input_length",
        "input_dtype",
        "num_constants",
        "trainable",
    }
)
"""Settings of older layers that do not change what a layer computes, where it takes them no more.

`trainable` is among them for layers without weights alone: all others take it.
"""
_INHERITED = {
    "DepthwiseConv1D": ("filters", "kernel_initializer", "kernel_regularizer", "kernel_constraint"),
    "DepthwiseConv2D": ("filters", "kernel_initializer", "kernel_regularizer", "kernel_constraint"),
    "MultiHeadAttention": ("query_shape", "key_shape", "value_shape"),
    "SeparableConv1D": ("kernel_initializer", "kernel_regularizer", "kernel_constraint"),
    "SeparableConv2D": ("kernel_initializer", "kernel_regularizer", "kernel_constraint"),
}
"""Settings that older layers wrote and did not use."""
_NEUTRAL = {"groups": 1, "renorm_momentum": 0.99}
"""Values that change nothing, besides None, False and what is empty."""
_OBJECTS = {
    "_constraint": "keras.constraints",
    "_initializer": "keras.initializers",
    "_regularizer": "keras.regularizers",
}
_LAYERS_INSIDE = ("backward_layer", "cell", "forward_layer", "layer")
_ALIASES = ("hard_swish", "swish")
_ACTIVATIONS = ("activation", "recurrent_activation")


@keras.saving.register_keras_serializable(  # type: ignore[untyped-decorator]  # Keras ships no types.
    "edl_horovod", "hard_sigmoid"
)
def hard_sigmoid(x: Any) -> Any:
    """What Keras 2 calls `hard_sigmoid`; that of Keras 3 rises by a sixth, not by 0.2."""
    return keras.ops.clip(0.2 * x + 0.5, 0.0, 1.0)


def known_layers() -> dict[str, type]:
    """Keras' layers by name."""
    return {
        name: kind
        for name, kind in vars(keras.layers).items()
        if inspect.isclass(kind) and issubclass(kind, keras.Layer)
    }


def unknown_layer(kind: str, name: str, file: str) -> UserCodeError:
    """The error for a class that is no layer of Keras 3.

    Args:
        kind: The class.
        name: The layer's.
        file: Where it is.
    """
    return UserCodeError(
        f"Keras 3 has no layer {kind}, which {name!r} of {file} is.",
        received={"class_name": kind},
        cure=f"{did_you_mean(kind, known_layers())} If the class is yours, give it as"
        " custom_objects (key, value, path).",
    )


@dataclass(frozen=True)
class Older:
    """Says an older configuration as today's."""

    file: str
    """Named in messages."""
    is_keras_2: bool
    """Whether Keras 2 wrote it; else Keras 3 did, in its layout for HDF5."""
    custom: Collection[str] = ()
    """Names that the user brings objects for."""

    def layer(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """A layer or a model, with all that is inside of it.

        Raises:
            UserCodeError: Keras 3 has no such layer, or lacks a setting of it.
        """
        if not isinstance(given, Mapping) or not isinstance(given.get("class_name"), str):
            raise UserCodeError(
                f"{self.file} holds no layer where one must be.", received=str(given)[:80]
            )
        if "module" in given and not self.is_keras_2:
            return dict(given)
        kind, config = given["class_name"], given.get("config") or {}
        if kind in self.custom or given.get("registered_name") in self.custom:
            name = kind if kind in self.custom else given["registered_name"]
            return _described(None, kind, dict(config), name)
        if kind in _MODELS:
            return self._model(_MODELS[kind], config)
        layers = known_layers()
        today = _RENAMED.get(kind, kind)
        if today not in layers:
            raise unknown_layer(kind, self._name(config), self.file)
        settings = self._settings(kind, today, layers[today], config)
        if settings.get("data_format") == "channels_first" and today in CHANNELS_FIRST:
            return _described(None, today, settings, CHANNELS_FIRST[today])
        return _described("keras.layers", today, settings)

    def _model(self, kind: str, config: Any) -> dict[str, Any]:
        if isinstance(config, list):  # As before Keras 2.2.3.
            config = {"name": "sequential", "layers": config}
        if not isinstance(config.get("layers"), list):
            raise UserCodeError(
                f"{self.file} holds a model of its own class: its layers are not in the file.",
                received={"class_name": kind, "name": config.get("name", "")},
                cure="Give the class as custom_objects (key, value, path).",
            )
        if kind == "Sequential":
            return _described("keras", kind, self._sequential(config))
        layers = [
            {
                **self.layer(each),
                "name": each.get("name") or self._name(each["config"]),
                "inbound_nodes": each.get("inbound_nodes", []),
            }
            for each in config["layers"]
        ]
        graph = as_todays_graph(
            {**config, "layers": layers}, file=self.file, is_keras_2=self.is_keras_2
        )
        kept = {key: config[key] for key in ("name", "trainable") if key in config}
        return _described("keras.src.models.functional", kind, {**kept, **graph})

    def _sequential(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Its first layer says what the input is, unless there is an input layer."""
        layers = [self.layer(each) for each in config["layers"]]
        first = config["layers"][0] if config["layers"] else {}
        given = input_of(first)
        if given is not None and first.get("class_name") != "InputLayer":
            settings = {**given, "name": f"{layers[0]['config'].get('name', 'first')}_input"}
            layers.insert(0, _described("keras.layers", "InputLayer", settings))
        made = {"name": config.get("name", "sequential"), "layers": layers}
        if config.get("build_input_shape"):
            made["build_input_shape"] = config["build_input_shape"]
        return made

    def _settings(
        self, kind: str, today: str, layer: type, config: Mapping[str, Any]
    ) -> dict[str, Any]:
        taken = _taken_by(layer)
        settings: dict[str, Any] = {}
        for given, value in config.items():
            key = _RENAMED_SETTINGS.get((today, given), given)
            if key in taken and not (key == "batch_shape" and today != "InputLayer"):
                settings[key] = self._value(today, key, value)
            elif not self._changes_nothing(today, given, value):
                raise UserCodeError(
                    f"Keras 3 lacks a setting of the layer {self._name(config)!r} of {self.file}.",
                    received={given: value},
                    cure=f"{did_you_mean(given, taken)} Write the model without it, or give a class"
                    f" of yours for {kind} as custom_objects (key, value, path).",
                )
        if self.is_keras_2 and today == "GRU":
            # Keras 2.1 and TensorFlow 1 knew but one, and CuDNN knows but the other.
            settings.setdefault("reset_after", kind == "CuDNNGRU")
        if today == "Lambda" and isinstance(settings.get("function"), list):
            code, defaults, closure = settings["function"]
            parts = {"code": code, "defaults": defaults, "closure": closure}
            settings["function"] = {"class_name": "__lambda__", "config": parts}
        return settings

    def _value(self, layer: str, key: str, value: Any) -> Any:
        if key in _LAYERS_INSIDE and isinstance(value, Mapping):
            return self.layer(value)
        if key in ("cells", "layers") and isinstance(value, list):
            return [self.layer(each) for each in value]
        if key in _ACTIVATIONS:
            return self._activation(value, layer)
        if key == "dtype":
            return _dtype(value)
        if key == "axis" and layer == "BatchNormalization" and isinstance(value, list):
            return self._only(value, layer)
        for ending, module in _OBJECTS.items():
            if key.endswith(ending) and isinstance(value, Mapping) and "module" not in value:
                return self._object(module, value)
        return value

    def _activation(self, value: Any, layer: str) -> Any:
        if isinstance(value, Mapping):
            if value.get("class_name") == "function":
                return self._activation(value.get("config"), layer)
            return self.layer(value)
        if value is None or value in self.custom:
            return value if value is None else _function(value)
        if self.is_keras_2 and value == "hard_sigmoid":
            return _function(HARD_SIGMOID)
        known = [*_ALIASES, *(name for name in vars(keras.activations) if name[0] != "_")]
        if value not in known:
            raise UserCodeError(
                f"Keras has no activation {value!r}, which a layer {layer} of {self.file} has.",
                received={"activation": value},
                cure=f"{did_you_mean(str(value), known)} If the function is yours, give it as"
                " custom_objects (key, value, path).",
            )
        return value

    def _object(self, module: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """An initializer, a regularizer or a constraint."""
        name, settings = value.get("class_name", ""), dict(value.get("config") or {})
        kind = getattr(_module(module), name, None)
        if name in self.custom:
            return _described(None, name, settings, name)
        if not inspect.isclass(kind):
            known = [
                key
                for key, each in vars(_module(module)).items()
                if inspect.isclass(each) and each.__name__ == key
            ]
            raise UserCodeError(
                f"{module} has no {name!r}, which {self.file} names.",
                received={"class_name": name},
                cure=f"{did_you_mean(name, known)} If the class is yours, give it as custom_objects"
                " (key, value, path).",
            )
        taken = inspect.signature(kind).parameters
        return _described(module, name, {k: v for k, v in settings.items() if k in taken})

    def _changes_nothing(self, layer: str, key: str, value: Any) -> bool:
        if key in _WITHOUT_EFFECT or key in _INHERITED.get(layer, ()):
            return True
        if layer == "Lambda" and key in ("module", "function_type", "output_shape_type"):
            return True
        return value in (None, False, [], {}, "") or _NEUTRAL.get(key) == value

    def _only(self, axes: list[Any], layer: str) -> int:
        if len(axes) == 1:
            return int(axes[0])
        raise UserCodeError(
            f"Keras 3 normalises over one axis, {layer} of {self.file} over several.",
            received={"axis": axes},
            cure="Write the model with one axis.",
        )

    def _name(self, config: Any) -> str:
        return str(config.get("name", "")) if isinstance(config, Mapping) else ""


def _described(
    module: str | None, kind: str, settings: dict[str, Any] | str, registered: str | None = None
) -> dict[str, Any]:
    return {
        "module": module,
        "class_name": kind,
        "config": settings,
        "registered_name": registered,
    }


def _function(name: str) -> dict[str, Any]:
    """A function that is registered, or among the custom objects."""
    return _described("builtins", "function", name, "function")


def _dtype(value: Any) -> Any:
    """A policy's name, where Keras 2 wrote an object."""
    if isinstance(value, Mapping) and value.get("class_name") in ("Policy", "PolicyV1"):
        return value["config"]["name"]
    return value


def _taken_by(layer: type) -> set[str]:
    """The settings that a layer's class takes, and those of the classes that it hands others to."""
    taken: set[str] = set()
    for kind in layer.__mro__:
        constructor: Callable[..., Any] | None = vars(kind).get("__init__")
        if constructor is None:
            continue
        parameters = inspect.signature(constructor).parameters.values()
        taken |= {each.name for each in parameters} - {"self", "args", "kwargs"}
        if kind is keras.Layer or not any(each.kind is each.VAR_KEYWORD for each in parameters):
            break
    return taken


def _module(name: str) -> Any:
    return getattr(keras, name.removeprefix("keras."))
