"""Translate the layer calls of a functional model from Keras 2 to Keras 3."""

from collections.abc import Mapping
from typing import Any

from edl_horovod.errors import UserCodeError

__all__ = ["to_current_graph", "input_settings"]

_NESTED = ("Functional", "Sequential")


def to_current_graph(config: Mapping[str, Any], *, file: str, is_keras_2: bool) -> dict[str, Any]:
    """Translate the calls of the layers, the inputs and the outputs of a functional model.

    Args:
        config: The model's configuration; its layers have the format of Keras 3 except for
            `inbound_nodes`.
        file: Name of the file in messages.
        is_keras_2: Whether Keras 2 wrote the file.

    Raises:
        UserCodeError: The configuration refers to a layer that it does not contain.
    """
    layers = config["layers"]
    class_names = {layer["name"]: layer["class_name"] for layer in layers}
    calls = _Calls(class_names, file, is_keras_2=is_keras_2)
    translated = [
        {**layer, "inbound_nodes": [calls.node(node) for node in layer["inbound_nodes"]]}
        for layer in layers
    ]
    return {
        "layers": translated,
        "input_layers": calls.endpoints(config["input_layers"]),
        "output_layers": calls.endpoints(config["output_layers"]),
    }


def input_settings(layer: Any) -> dict[str, Any] | None:
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
        return input_settings(config.get("layer"))
    inputs = config.get("input_layers")
    if inputs is None:
        return input_settings(layers[0])
    while isinstance(inputs, list) and len(inputs) == 1:
        inputs = inputs[0]
    name = inputs[0] if isinstance(inputs, list) and inputs and isinstance(inputs[0], str) else None
    return next((input_settings(inner) for inner in layers if inner.get("name") == name), None)


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
        """Translate the arguments of one call."""
        if isinstance(node, Mapping):
            return dict(node)
        if _is_reference(node, self._class_names):  # A call of an operator has a single reference.
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
        if _is_reference(references, self._class_names):
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
        if _is_reference(value, self._class_names):
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

    def _require_known(self, name: Any) -> None:
        if name not in self._class_names:
            raise UserCodeError(
                f"{self._file} calls a layer on the output of {name!r}, but has no such layer.",
                received=f"the layers {', '.join(self._class_names)}",
            )


def _is_reference(value: Any, class_names: Mapping[str, str]) -> bool:
    """Whether a value refers to a layer's output: name, call, output, and optional keywords."""
    return (
        isinstance(value, list | tuple)
        and len(value) in (3, 4)
        and isinstance(value[0], str)
        and value[0] in class_names
        and isinstance(value[1], int)
    )
