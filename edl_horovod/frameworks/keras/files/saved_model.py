"""Read the layers and variables of a SavedModel as data, without running its graphs.

Keras 2 saved the configuration of each layer beside the graphs. The variables are in a checkpoint,
under keys that follow the attributes from the model to the variable.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2, trackable_object_graph_pb2
from tensorflow.python.keras.protobuf import saved_metadata_pb2

from edl_horovod.errors import UserCodeError

_MODEL = "saved_model.pb"
_METADATA = "keras_metadata.pb"
_CHECKPOINT = "variables/variables"
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_LISTS = ("trainable_variables", "variables")
"""Attributes of a layer that list its variables, in the required order; the second has all."""
_ROOT = 0


class SavedLayers:
    """The layers of a SavedModel, and their variables in its checkpoint."""

    def __init__(self, path: Path, metadata: Mapping[int, Mapping[str, Any]], graph: Any) -> None:
        """Store the parsed content.

        Args:
            path: The folder.
            metadata: Keras' metadata of each object, by the object's number.
            graph: The object graph, whose edges are attributes.
        """
        self._path = path
        self._metadata = metadata
        self._graph = graph

    @property
    def root(self) -> Mapping[str, Any]:
        """Keras' metadata of the model; empty if another program wrote the folder."""
        return self._metadata.get(_ROOT, {})

    def layers(self) -> list[dict[str, Any]]:
        """List the class and the name of each layer, as a configuration without settings."""
        layers = [self._metadata[number] for number in self._layers().values()]
        return [
            {"class_name": str(layer.get("class_name", "")), "config": {"name": layer["name"]}}
            for layer in layers
        ]

    def shapes(self) -> dict[str, list[tuple[int, ...]]]:
        """Map each layer's name to the shapes of its variables, trainable ones first."""
        return {
            name: [
                tuple(axis.size for axis in self._graph.nodes[number].variable.shape.dim)
                for _, number in variables
            ]
            for name, variables in self._variables()
        }

    def arrays(self) -> dict[str, list[np.ndarray]]:
        """Map the name of each layer with variables to their values, trainable ones first.

        Raises:
            UserCodeError: The checkpoint is missing or incomplete.
        """
        try:
            reader = tf.train.load_checkpoint(str(self._path / _CHECKPOINT))
            saved = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
                reader.get_tensor(_GRAPH)
            )
            arrays_by_layer = {
                name: [reader.get_tensor(_checkpoint_key(saved, path)) for path, _ in variables]
                for name, variables in self._variables()
            }
        except (tf.errors.OpError, ValueError, KeyError, DecodeError) as e:
            raise UserCodeError(
                f"The variables of the SavedModel {self._path} cannot be read: {e}",
                hint="Copy or write the whole folder again.",
            ) from e
        return {name: arrays for name, arrays in arrays_by_layer.items() if arrays}

    def _layers(self) -> dict[str, int]:
        """Map the first attribute of the model that refers to a layer to the layer's number."""
        layers: dict[str, int] = {}
        for attribute, number in _children(self._graph, _ROOT).items():
            is_layer = "name" in self._metadata.get(number, {}) and _LISTS[0] in _children(
                self._graph, number
            )
            if is_layer and number not in layers.values():
                layers[attribute] = number
        return layers

    def _variables(self) -> Iterator[tuple[str, list[tuple[tuple[str, ...], int]]]]:
        """Yield each layer's name with the attribute paths and the numbers of its variables."""
        for attribute, layer in self._layers().items():
            paths: dict[int, tuple[str, ...]] = {}
            for list_name in _LISTS:
                list_number = _children(self._graph, layer).get(list_name)
                children = {} if list_number is None else _children(self._graph, list_number)
                for index in sorted(filter(str.isdecimal, children), key=int):
                    paths.setdefault(children[index], (attribute, list_name, index))
            name = str(self._metadata[layer]["name"])
            yield name, [(path, number) for number, path in paths.items()]


def read_saved_model(path: Path) -> SavedLayers:
    """Read the layers of a SavedModel.

    Args:
        path: The folder.

    Raises:
        UserCodeError: The folder is not a SavedModel, or is damaged.
    """
    if not (path / _MODEL).is_file():
        raise UserCodeError(
            f"The folder {path} is not a SavedModel.",
            received=f"a folder without {_MODEL}",
            hint="Use the folder that model.save wrote, or a file .h5 or .keras.",
        )
    try:
        saved = saved_model_pb2.SavedModel.FromString((path / _MODEL).read_bytes())
        graph = saved.meta_graphs[0].object_graph_def
        file = path / _METADATA
        saved_metadata = saved_metadata_pb2.SavedMetadata()
        if file.is_file():
            saved_metadata.ParseFromString(file.read_bytes())
        metadata = {node.node_id: node.metadata for node in saved_metadata.nodes if node.metadata}
        if not metadata:  # The format before TensorFlow 2.5.
            metadata = {
                number: node.user_object.metadata
                for number, node in enumerate(graph.nodes)
                if node.user_object.metadata
            }
        parsed = {number: json.loads(text) for number, text in metadata.items()}
    except (DecodeError, IndexError, ValueError, RecursionError) as e:
        raise UserCodeError(
            f"The SavedModel {path} is damaged: {e}", hint="Copy or write the whole folder again."
        ) from e
    return SavedLayers(path, parsed, graph)


def _checkpoint_key(saved: Any, path: tuple[str, ...]) -> str:
    """Find the checkpoint key of the variable at a path of attributes."""
    number = _ROOT
    for name in path:
        number = _children(saved, number)[name]
    return str(saved.nodes[number].attributes[0].checkpoint_key)


def _children(graph: Any, number: int) -> dict[str, int]:
    return {child.local_name: child.node_id for child in graph.nodes[number].children}
