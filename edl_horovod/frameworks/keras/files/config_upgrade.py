"""Translate model configurations of Keras 2, or of Keras 3 in HDF5, to the format of Keras 3.

Where Keras 3 computes differently, the setting is translated to an equivalent or rejected by name.
The names of layers stay the same, because weights are assigned by them. The layer calls of a
functional model are translated, too. Convolutions for channels-first models are replaced, because
TensorFlow's own do not support them on CPUs.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from edl_horovod.errors import UserCodeError, did_you_mean
from edl_horovod.frameworks.keras.files.definition import Definition, named_parts

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
_IGNORABLE = {
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
"""Settings that may be dropped if a layer of Keras 3 does not accept them.

They do not change the computation. Layers with weights all accept `trainable`.
"""
_UNUSED = {
    "DepthwiseConv1D": ("filters", "kernel_initializer", "kernel_regularizer", "kernel_constraint"),
    "DepthwiseConv2D": ("filters", "kernel_initializer", "kernel_regularizer", "kernel_constraint"),
    "Lambda": ("module", "function_type", "output_shape_type"),
    "MultiHeadAttention": ("query_shape", "key_shape", "value_shape"),
    "SeparableConv1D": ("kernel_initializer", "kernel_regularizer", "kernel_constraint"),
    "SeparableConv2D": ("kernel_initializer", "kernel_regularizer", "kernel_constraint"),
}
"""Settings that older layers saved but did not use."""
_NEUTRAL = {"groups": 1, "renorm_momentum": 0.99}
"""Values without effect, besides None, False and empty values."""
_OBJECTS = {
    "_constraint": "keras.constraints",
    "_initializer": "keras.initializers",
    "_regularizer": "keras.regularizers",
}
_INNER_LAYERS = ("backward_layer", "cell", "forward_layer", "layer")
_POLICIES = ("Policy", "PolicyV1")
_ALIASES = ("hard_swish", "swish")
_ACTIVATIONS = ("activation", "recurrent_activation")

_NESTED = ("Functional", "Sequential")

_CHANNELS_FIRST = {
    name: f"edl_horovod>ChannelsFirst{name}" for name in ("Conv1D", "Conv2D", "Conv3D")
}
"""The registered names of these layers by the Keras layers that they replace.

TensorFlow's convolutions for CPUs do not support channels first; Keras 2 transposed the tensors.
"""


@keras.saving.register_keras_serializable(  # type: ignore[untyped-decorator]  # Keras ships no types.
    "edl_horovod", "hard_sigmoid"
)
def hard_sigmoid(x: Any) -> Any:
    """Compute the `hard_sigmoid` of Keras 2, with slope 0.2; in Keras 3 the slope is 1/6."""
    return keras.ops.clip(0.2 * x + 0.5, 0.0, 1.0)


def current_config(definition: Definition, custom: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a model's configuration to the format of Keras 3.

    Raises:
        UserCodeError: Keras 3 lacks a layer or a layer's setting.
    """
    config = definition.config
    if "module" in config and not definition.is_keras_2:
        known = {*_known_layers(), *custom}
        for part, name in named_parts(config):
            class_name = part.get("class_name")
            if part.get("module") == "keras.layers" and class_name not in known:
                raise _unknown_layer(str(class_name), name, definition.file.name)
        return config
    return _ConfigUpgrade(definition.file.name, definition.is_keras_2, tuple(custom)).layer(config)


def _known_layers() -> dict[str, type]:
    """Map the names of Keras' layers to their classes."""
    return classes_in(keras.layers, keras.Layer)


def classes_in(module: Any, base: type = object) -> dict[str, type]:
    """Map the names in a module to the subclasses of `base`."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, base)
    }


def _unknown_layer(class_name: str, name: str, file: str) -> UserCodeError:
    """Build the error for a class that is not a layer of Keras 3.

    Args:
        class_name: The unknown class.
        name: Name of the layer in the model.
        file: Name of the model's file.
    """
    return UserCodeError(
        f"Keras 3 has no layer {class_name}, the class of {name!r} in {file}.",
        received={"class_name": class_name},
        hint=f"{did_you_mean(class_name, _known_layers())} If the class is yours, provide it in"
        " custom_objects (key, value, path).",
    )


@dataclass(frozen=True)
class _ConfigUpgrade:
    """Translates an older configuration to the format of Keras 3."""

    file: str
    """Name of the file in messages."""
    is_keras_2: bool
    """Whether Keras 2 wrote the file; else Keras 3 wrote it in its format for HDF5."""
    custom: Collection[str] = ()
    """Names for which the user provides objects."""

    def layer(self, serialized: Mapping[str, Any]) -> dict[str, Any]:
        """Translate a layer or a model with all its inner layers.

        Raises:
            UserCodeError: Keras 3 lacks the layer or one of its settings.
        """
        if not isinstance(serialized, Mapping) or not isinstance(serialized.get("class_name"), str):
            raise UserCodeError(
                f"{self.file} contains a value that is not a layer where a layer is required.",
                received=str(serialized)[:80],
            )
        if "module" in serialized and not self.is_keras_2:
            return dict(serialized)
        class_name, config = serialized["class_name"], serialized.get("config") or {}
        if class_name in self.custom or serialized.get("registered_name") in self.custom:
            name = class_name if class_name in self.custom else serialized["registered_name"]
            return _serialized(None, class_name, dict(config), name)
        if class_name in _MODELS:
            return self._model(_MODELS[class_name], config)
        layers = _known_layers()
        current_name = _RENAMED.get(class_name, class_name)
        if current_name not in layers:
            raise _unknown_layer(class_name, self._name(config), self.file)
        settings = self._settings(class_name, current_name, layers[current_name], config)
        if settings.get("data_format") == "channels_first" and current_name in _CHANNELS_FIRST:
            return _serialized(None, current_name, settings, _CHANNELS_FIRST[current_name])
        return _serialized("keras.layers", current_name, settings)

    def _model(self, class_name: str, config: Any) -> dict[str, Any]:
        if isinstance(config, list):  # The format before Keras 2.2.3.
            config = {"name": "sequential", "layers": config}
        if not isinstance(config.get("layers"), list):
            raise UserCodeError(
                f"{self.file} contains a model of a custom class, but not its layers.",
                received={"class_name": class_name, "name": config.get("name", "")},
                hint="Provide the class in custom_objects (key, value, path).",
            )
        if class_name == "Sequential":
            return _serialized("keras", class_name, self._sequential(config))
        layers = [
            {
                **self.layer(layer),
                "name": layer.get("name") or self._name(layer["config"]),
                "inbound_nodes": layer.get("inbound_nodes", []),
            }
            for layer in config["layers"]
        ]
        class_names = {layer["name"]: layer["class_name"] for layer in layers}
        calls = _Calls(class_names, self.file, is_keras_2=self.is_keras_2)
        for layer in layers:
            layer["inbound_nodes"] = [calls.node(node) for node in layer["inbound_nodes"]]
        settings = {key: config[key] for key in ("name", "trainable") if key in config}
        settings |= {
            "layers": layers,
            "input_layers": calls.endpoints(config["input_layers"]),
            "output_layers": calls.endpoints(config["output_layers"]),
        }
        return _serialized("keras.src.models.functional", class_name, settings)

    def _sequential(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Translate a sequential model; add an input layer if the first layer defines the input."""
        layers = [self.layer(layer) for layer in config["layers"]]
        first = config["layers"][0] if config["layers"] else {}
        input_config = _input_settings(first)
        if input_config is not None and first.get("class_name") != "InputLayer":
            settings = {**input_config, "name": f"{layers[0]['config'].get('name', 'first')}_input"}
            layers.insert(0, _serialized("keras.layers", "InputLayer", settings))
        translated = {"name": config.get("name", "sequential"), "layers": layers}
        if config.get("build_input_shape"):
            translated["build_input_shape"] = config["build_input_shape"]
        return translated

    def _settings(
        self, class_name: str, current_name: str, layer_class: type, config: Mapping[str, Any]
    ) -> dict[str, Any]:
        accepted = _accepted_settings(layer_class)
        settings: dict[str, Any] = {}
        for old_key, value in config.items():
            key = _RENAMED_SETTINGS.get((current_name, old_key), old_key)
            if key in accepted and not (key == "batch_shape" and current_name != "InputLayer"):
                settings[key] = self._value(current_name, key, value)
            elif not self._has_no_effect(current_name, old_key, value):
                raise UserCodeError(
                    f"Keras 3 lacks a setting of the layer {self._name(config)!r} in {self.file}.",
                    received={old_key: value},
                    hint=f"{did_you_mean(old_key, accepted)} Save the model without it, or provide"
                    f" your own class for {class_name} in custom_objects (key, value, path).",
                )
        if self.is_keras_2 and current_name == "GRU":
            # Keras 2.1 and TensorFlow 1 had only reset_after=False, and CuDNN has only True.
            settings.setdefault("reset_after", class_name == "CuDNNGRU")
        if current_name == "Lambda" and isinstance(settings.get("function"), list):
            code, defaults, closure = settings["function"]
            parts = {"code": code, "defaults": defaults, "closure": closure}
            settings["function"] = {"class_name": "__lambda__", "config": parts}
        return settings

    def _value(self, layer: str, key: str, value: Any) -> Any:
        if key in _INNER_LAYERS and isinstance(value, Mapping):
            return self.layer(value)
        if key in ("cells", "layers") and isinstance(value, list):
            return [self.layer(inner) for inner in value]
        if key in _ACTIVATIONS:
            return self._activation(value, layer)
        if key == "dtype" and isinstance(value, Mapping):
            # A dtype policy as an object.
            return value["config"]["name"] if value.get("class_name") in _POLICIES else value
        if key == "axis" and layer == "BatchNormalization" and isinstance(value, list):
            if len(value) != 1:
                raise UserCodeError(
                    f"Keras 3 only normalizes over a single axis, but {layer} in {self.file} has"
                    " several.",
                    received={"axis": value},
                    hint="Save the model with a single axis.",
                )
            return int(value[0])
        for ending, module in _OBJECTS.items():
            if key.endswith(ending) and isinstance(value, Mapping) and "module" not in value:
                return self._keras_object(module, value)
        return value

    def _activation(self, value: Any, layer: str) -> Any:
        if isinstance(value, Mapping):
            if value.get("class_name") == "function":
                return self._activation(value.get("config"), layer)
            return self.layer(value)
        if value in self.custom:
            return _function(value)
        if self.is_keras_2 and value == "hard_sigmoid":
            return _function(HARD_SIGMOID)
        known = [*_ALIASES, *(name for name in vars(keras.activations) if name[0] != "_")]
        if value is not None and value not in known:
            raise UserCodeError(
                f"Keras has no activation {value!r}, which a layer {layer} in {self.file} uses.",
                received={"activation": value},
                hint=f"{did_you_mean(str(value), known)} If the function is yours, provide it in"
                " custom_objects (key, value, path).",
            )
        return value

    def _keras_object(self, module: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Translate an initializer, a regularizer or a constraint."""
        name, settings = value.get("class_name", ""), dict(value.get("config") or {})
        object_class = getattr(_module(module), name, None)
        if name in self.custom:
            return _serialized(None, name, settings, name)
        if not inspect.isclass(object_class):
            known = [
                key for key, value in classes_in(_module(module)).items() if value.__name__ == key
            ]
            raise UserCodeError(
                f"{module} has no {name!r}, which {self.file} uses.",
                received={"class_name": name},
                hint=f"{did_you_mean(name, known)} If the class is yours, provide it in"
                " custom_objects (key, value, path).",
            )
        accepted = inspect.signature(object_class).parameters
        return _serialized(module, name, {k: v for k, v in settings.items() if k in accepted})

    def _has_no_effect(self, layer: str, key: str, value: Any) -> bool:
        if key in _IGNORABLE or key in _UNUSED.get(layer, ()):
            return True
        return value in (None, False, [], {}, "") or _NEUTRAL.get(key) == value

    def _name(self, config: Any) -> str:
        return str(config.get("name", "")) if isinstance(config, Mapping) else ""


def _serialized(
    module: str | None,
    class_name: str,
    settings: dict[str, Any] | str,
    registered: str | None = None,
) -> dict[str, Any]:
    return {
        "module": module,
        "class_name": class_name,
        "config": settings,
        "registered_name": registered,
    }


def _function(name: str) -> dict[str, Any]:
    """Serialize a reference to a function that is registered or a custom object."""
    return _serialized("builtins", "function", name, "function")


def _accepted_settings(layer: type) -> set[str]:
    """Collect the settings that a layer's constructor accepts, or passes on to base classes."""
    accepted: set[str] = set()
    for base in layer.__mro__:
        constructor: Callable[..., Any] | None = vars(base).get("__init__")
        if constructor is None:
            continue
        parameters = inspect.signature(constructor).parameters.values()
        accepted |= {parameter.name for parameter in parameters} - {"self", "args", "kwargs"}
        if base is keras.Layer or not any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in parameters
        ):
            break
    return accepted


def _module(name: str) -> Any:
    return getattr(keras, name.removeprefix("keras."))


def _input_settings(layer: Any) -> dict[str, Any] | None:
    """Determine the input shape and type of a layer of Keras 2 or of a nested model.

    Returns:
        The settings `batch_shape` and `dtype` of an input layer; None if they are not specified.
    """
    config = layer.get("config") if isinstance(layer, Mapping) else None
    if isinstance(config, list):
        config = {"layers": config}
    if not isinstance(config, Mapping):
        return None
    shape = config.get("batch_input_shape") or config.get("batch_shape")
    if shape is not None:
        # Keras 2 used float32 for ids, too, which rounds ids above 2 ** 24.
        is_embedding = layer.get("class_name") == "Embedding"
        is_input = layer.get("class_name") == "InputLayer"
        dtype = config.get("dtype", "float32") if is_input else "float32"
        return {"batch_shape": list(shape), "dtype": "int32" if is_embedding else dtype}
    layers = config.get("layers")
    if not isinstance(layers, list) or not layers:
        return _input_settings(config.get("layer"))
    inputs = config.get("input_layers")
    if inputs is None:
        return _input_settings(layers[0])
    while isinstance(inputs, list) and len(inputs) == 1:
        inputs = inputs[0]
    name = inputs[0] if isinstance(inputs, list) and inputs and isinstance(inputs[0], str) else None
    return next((_input_settings(inner) for inner in layers if inner.get("name") == name), None)


class _Calls:
    """Translates references to the outputs of layers, and calls on them."""

    def __init__(self, class_names: Mapping[str, str], file: str, *, is_keras_2: bool) -> None:
        self._class_names = class_names
        self._file = file
        # Keras 2 counts the calls of a nested model from 1. Keras 3 does so only in the outputs,
        # and only for functional models.
        nested = {name for name, class_name in class_names.items() if class_name in _NESTED}
        self._counted_from_1 = nested if is_keras_2 else set()

    def node(self, node: Any) -> dict[str, Any]:
        """Translate the arguments of one call of a layer, which Keras calls a node.

        Keras 2 lists a reference for each tensor: [layer, call, output], and the keyword
        arguments as a fourth item. Keras 3 has a mapping, which is returned as it is.
        """
        if isinstance(node, Mapping):
            return dict(node)
        if self._is_reference(node):  # A call of an operator has a single reference.
            node = [node]
        keywords: dict[str, Any] = {}
        tensors = []
        for reference in node:
            tensors.append(self._tensor(reference))
            if len(reference) > 3:
                keywords.update(reference[3])
        arguments = tensors if len(tensors) == 1 else [tensors]
        return {
            "args": arguments,
            "kwargs": {key: self._keyword(value) for key, value in keywords.items()},
        }

    def endpoints(self, references: Any) -> Any:
        """Translate the model's inputs or outputs; a single one is returned without a list."""
        if isinstance(references, Mapping):
            return {key: self.endpoints(value) for key, value in references.items()}
        if self._is_reference(references):
            name, call, tensor = references[:3]
            is_offset = name in self._counted_from_1 and self._class_names[name] == "Sequential"
            return [name, call - 1 if is_offset else call, tensor]
        if not isinstance(references, list | tuple):
            raise UserCodeError(
                f"{self._file} refers to an unknown input or output.", received=str(references)
            )
        if references and isinstance(references[0], str):
            self._require_known(references[0])
        translated = [self.endpoints(reference) for reference in references]
        return translated[0] if len(translated) == 1 else translated

    def _keyword(self, value: Any) -> Any:
        if self._is_reference(value):
            return self._tensor(value)
        if isinstance(value, list):
            return [self._keyword(item) for item in value]
        return value

    def _tensor(self, reference: Any) -> dict[str, Any]:
        if not isinstance(reference, list | tuple) or len(reference) < 3:
            raise UserCodeError(
                f"{self._file} contains a layer call that does not have the format of Keras 2.",
                received=str(reference)[:80],
            )
        name, call, tensor = reference[:3]
        self._require_known(name)
        history = [name, call - 1 if name in self._counted_from_1 else call, tensor]
        # Keras ignores this shape and type and uses those of the layer's output.
        config = {"shape": [1], "dtype": "float32", "keras_history": history}
        return {"class_name": "__keras_tensor__", "config": config}

    def _is_reference(self, value: Any) -> bool:
        """Whether a value refers to a layer's output: name, call, output, optional keywords."""
        return (
            isinstance(value, list | tuple)
            and len(value) in (3, 4)
            and isinstance(value[0], str)
            and value[0] in self._class_names
            and isinstance(value[1], int)
        )

    def _require_known(self, name: Any) -> None:
        if name not in self._class_names:
            raise UserCodeError(
                f"{self._file} calls a layer on the output of {name!r}, but has no such layer.",
                received=f"the layers {', '.join(self._class_names)}",
            )


class _ChannelsLastConvolution:
    """Transposes inputs to channels last for the convolution, and its outputs back."""

    def convolution_op(self, inputs: Any, kernel: Any) -> Any:
        """Convolve channels-first inputs; the kernel has the same layout in both formats."""
        num_axes = len(inputs.shape)
        channels_last = keras.ops.transpose(inputs, (0, *range(2, num_axes), 1))
        outputs = keras.ops.conv(
            channels_last,
            kernel,
            strides=list(self.strides),  # type: ignore[attr-defined]  # An attribute of Keras' convolutions.
            padding=self.padding,  # type: ignore[attr-defined]  # As above.
            dilation_rate=self.dilation_rate,  # type: ignore[attr-defined]  # As above.
            data_format="channels_last",
        )
        return keras.ops.transpose(outputs, (0, num_axes - 1, *range(1, num_axes - 1)))


for _name in _CHANNELS_FIRST:
    keras.saving.register_keras_serializable("edl_horovod", f"ChannelsFirst{_name}")(
        type(f"_{_name}", (_ChannelsLastConvolution, getattr(keras.layers, _name)), {})
    )
