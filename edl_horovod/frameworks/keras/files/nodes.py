"""How the layers of a functional model are called, from Keras 2's lists to today's arguments."""

from collections.abc import Mapping
from typing import Any

from edl_horovod.errors import UserCodeError

__all__ = ["as_todays_graph", "input_of"]

_NESTED = ("Functional", "Sequential")


def as_todays_graph(config: Mapping[str, Any], *, file: str, is_keras_2: bool) -> dict[str, Any]:
    """The layers with their calls, the inputs and the outputs of a functional model.

    Args:
        config: That of the model; its layers are today's but for their `inbound_nodes`.
        file: Named in messages.
        is_keras_2: Whether Keras 2 wrote it.

    Raises:
        UserCodeError: It names layers that it lacks.
    """
    layers = config["layers"]
    kinds = {each["name"]: each["class_name"] for each in layers}
    calls = _Calls(kinds, file, is_keras_2=is_keras_2)
    made = [
        {**each, "inbound_nodes": [calls.node(node) for node in each["inbound_nodes"]]}
        for each in layers
    ]
    return {
        "layers": made,
        "input_layers": calls.ends(config["input_layers"]),
        "output_layers": calls.ends(config["output_layers"]),
    }


def input_of(layer: Any) -> dict[str, Any] | None:
    """Shape and type of what a layer of Keras 2, or a model inside of a model, is called on.

    Returns:
        The settings `batch_shape` and `dtype` of an input layer; None where it does not say.
    """
    config = layer.get("config") if isinstance(layer, Mapping) else None
    if isinstance(config, list):
        config = {"layers": config}
    if not isinstance(config, Mapping):
        return None
    shape = config.get("batch_input_shape") or config.get("batch_shape")
    if shape is not None:
        # Keras 2 said float32 for ids, too, and rounded those from 2 ** 24 on.
        is_embedding = layer.get("class_name") == "Embedding"
        is_input = layer.get("class_name") == "InputLayer"
        dtype = config.get("dtype", "float32") if is_input else "float32"
        return {"batch_shape": list(shape), "dtype": "int32" if is_embedding else dtype}
    layers = config.get("layers")
    if not isinstance(layers, list) or not layers:
        return input_of(config.get("layer"))
    ends = config.get("input_layers")
    if ends is None:
        return input_of(layers[0])
    while isinstance(ends, list) and len(ends) == 1:
        ends = ends[0]
    name = ends[0] if isinstance(ends, list) and ends and isinstance(ends[0], str) else None
    return next((input_of(each) for each in layers if each.get("name") == name), None)


class _Calls:
    def __init__(self, kinds: Mapping[str, str], file: str, *, is_keras_2: bool) -> None:
        self._kinds = kinds
        self._file = file
        # Keras 2 counts the calls of a model inside of a model from 1 on; Keras 3 does so for
        # outputs alone, and for functional models alone.
        nested = {name for name, kind in kinds.items() if kind in _NESTED}
        self._counts_from_1 = nested if is_keras_2 else set()

    def node(self, node: Any) -> dict[str, Any]:
        """The arguments of one call."""
        if isinstance(node, Mapping):
            return dict(node)
        if _is_reference(node, self._kinds):  # The call of an operator has one.
            node = [node]
        keywords: dict[str, Any] = {}
        tensors = []
        for each in node:
            tensors.append(self._tensor(each))
            if len(each) > 3:
                keywords.update(each[3])
        arguments = tensors if len(tensors) == 1 else [tensors]
        return {
            "args": arguments,
            "kwargs": {key: self._keyword(value) for key, value in keywords.items()},
        }

    def ends(self, given: Any) -> Any:
        """Inputs or outputs; a single one stands for itself."""
        if isinstance(given, Mapping):
            return {key: self.ends(value) for key, value in given.items()}
        if _is_reference(given, self._kinds):
            name, call, tensor = given[:3]
            is_one_less = name in self._counts_from_1 and self._kinds[name] == "Sequential"
            return [name, call - 1 if is_one_less else call, tensor]
        if not isinstance(given, list | tuple):
            raise UserCodeError(
                f"{self._file} names an input or output that it lacks.", received=str(given)
            )
        if given and isinstance(given[0], str):
            self._require_known(given[0])
        found = [self.ends(each) for each in given]
        return found[0] if len(found) == 1 else found

    def _keyword(self, value: Any) -> Any:
        if _is_reference(value, self._kinds):
            return self._tensor(value)
        if isinstance(value, list):
            return [self._keyword(each) for each in value]
        return value

    def _tensor(self, reference: Any) -> dict[str, Any]:
        if not isinstance(reference, list | tuple) or len(reference) < 3:
            raise UserCodeError(
                f"{self._file} holds a call of a layer that is not one of Keras 2.",
                received=str(reference)[:80],
            )
        name, call, tensor = reference[:3]
        self._require_known(name)
        history = [name, call - 1 if name in self._counts_from_1 else call, tensor]
        # Its shape and type come from the layer that is named.
        config = {"shape": [1], "dtype": "float32", "keras_history": history}
        return {"class_name": "__keras_tensor__", "config": config}

    def _require_known(self, name: Any) -> None:
        if name not in self._kinds:
            raise UserCodeError(
                f"{self._file} calls a layer on the output of {name!r}, which it lacks.",
                received=f"the layers {', '.join(self._kinds)}",
            )


def _is_reference(value: Any, kinds: Mapping[str, str]) -> bool:
    """Whether it names an output of a layer: name, call and output, and perhaps keywords."""
    return (
        isinstance(value, list | tuple)
        and len(value) in (3, 4)
        and isinstance(value[0], str)
        and value[0] in kinds
        and isinstance(value[1], int)
    )
