"""Read the folder of a SavedModel as data: layers and variables. Its graphs, programs, do not run.

Keras 2 wrote the configuration of each layer into it, beside graphs of what they compute. The
variables lie in a checkpoint, by the names of the attributes that lead to them.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2, trackable_object_graph_pb2

from edl_horovod.errors import UserCodeError

__all__ = ["SavedLayers", "is_saved_model", "read_saved_model"]

_MODEL = "saved_model.pb"
_METADATA = "keras_metadata.pb"
_CHECKPOINT = "variables/variables"
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_LISTS = ("trainable_variables", "variables")
"""Attributes of a layer, in whose order its variables are wanted; the second holds all."""
_ROOT = 0
_FIELDS = {"node_id": (2, "INT32"), "identifier": (4, "STRING"), "metadata": (5, "STRING")}
"""Those of an object in Keras' metadata that are read here, with their numbers and types."""


class SavedLayers:
    """The layers of a SavedModel, and their variables in its checkpoint."""

    def __init__(self, path: Path, metadata: Mapping[int, Mapping[str, Any]], graph: Any) -> None:
        """Keep what was read.

        Args:
            path: The folder.
            metadata: What Keras wrote of each object, by its number.
            graph: All objects with the attributes that lead from one to the other.
        """
        self._path = path
        self._metadata = metadata
        self._graph = graph

    @property
    def root(self) -> Mapping[str, Any]:
        """What Keras wrote of the model itself; empty where another program wrote the folder."""
        return self._metadata.get(_ROOT, {})

    def layers(self) -> list[dict[str, Any]]:
        """The class and the name of each layer, as a configuration without settings."""
        found = [self._metadata[number] for number in self._layers().values()]
        return [
            {"class_name": str(each.get("class_name", "")), "config": {"name": each["name"]}}
            for each in found
        ]

    def shapes(self) -> dict[str, list[tuple[int, ...]]]:
        """The shapes of each layer's variables, trainable ones first."""
        return {
            name: [
                tuple(axis.size for axis in self._graph.nodes[number].variable.shape.dim)
                for _, number in found
            ]
            for name, found in self._variables()
        }

    def arrays(self) -> dict[str, list[np.ndarray]]:
        """The variables of each layer that has some, trainable ones first.

        Raises:
            UserCodeError: The checkpoint is not there, or lacks one of them.
        """
        try:
            reader = tf.train.load_checkpoint(str(self._path / _CHECKPOINT))
            saved = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
                reader.get_tensor(_GRAPH)
            )
            found = {
                name: [reader.get_tensor(_key_of(saved, names)) for names, _ in variables]
                for name, variables in self._variables()
            }
        except (tf.errors.OpError, ValueError, KeyError, DecodeError) as e:
            raise UserCodeError(
                f"The variables of the SavedModel {self._path} cannot be read: {e}",
                cure="Copy or write the whole folder again.",
            ) from e
        return {name: arrays for name, arrays in found.items() if arrays}

    def _layers(self) -> dict[str, int]:
        """The number of each layer, by the first attribute of the model that leads to it."""
        found: dict[str, int] = {}
        for attribute, number in self._children(_ROOT).items():
            is_layer = "name" in self._metadata.get(number, {}) and _LISTS[0] in self._children(
                number
            )
            if is_layer and number not in found.values():
                found[attribute] = number
        return found

    def _variables(self) -> Iterator[tuple[str, list[tuple[tuple[str, ...], int]]]]:
        """Each layer's name, with the attributes that lead to its variables, and their numbers."""
        for attribute, layer in self._layers().items():
            found: dict[int, tuple[str, ...]] = {}
            for kind in _LISTS:
                inside = self._children(layer).get(kind)
                places = {} if inside is None else self._children(inside)
                for place in sorted(filter(str.isdecimal, places), key=int):
                    found.setdefault(places[place], (attribute, kind, place))
            name = str(self._metadata[layer]["name"])
            yield name, [(names, number) for number, names in found.items()]

    def _children(self, number: int) -> dict[str, int]:
        return {each.local_name: each.node_id for each in self._graph.nodes[number].children}


def is_saved_model(path: Path) -> bool:
    """Whether a path is the folder of a SavedModel, by the name of the file that it must hold."""
    return (path / _MODEL).is_file()


def read_saved_model(path: Path) -> SavedLayers:
    """What a SavedModel says of its layers.

    Args:
        path: The folder.

    Raises:
        UserCodeError: It is not a SavedModel, or is damaged.
    """
    if not is_saved_model(path):
        raise UserCodeError(
            f"The folder {path} is no SavedModel.",
            received=f"a folder without {_MODEL}",
            cure="Give the folder that model.save wrote, or a file .h5 or .keras.",
        )
    try:
        saved = saved_model_pb2.SavedModel.FromString((path / _MODEL).read_bytes())
        graph = saved.meta_graphs[0].object_graph_def
        metadata = _metadata_in(path / _METADATA)
        if not metadata:  # As before TensorFlow 2.5.
            metadata = {
                number: node.user_object.metadata
                for number, node in enumerate(graph.nodes)
                if node.user_object.metadata
            }
        found = {number: json.loads(text) for number, text in metadata.items()}
    except (DecodeError, IndexError, ValueError, RecursionError) as e:
        raise UserCodeError(
            f"The SavedModel {path} is damaged: {e}", cure="Copy or write the whole folder again."
        ) from e
    return SavedLayers(path, found, graph)


def _key_of(saved: Any, names: tuple[str, ...]) -> str:
    """The name in the checkpoint of the variable that some attributes lead to."""
    node = saved.nodes[_ROOT]
    for name in names:
        children = {each.local_name: each.node_id for each in node.children}
        node = saved.nodes[children[name]]
    return str(node.attributes[0].checkpoint_key)


def _metadata_in(path: Path) -> dict[int, str]:
    if not path.is_file():
        return {}
    read = _message_type().FromString(path.read_bytes())
    return {each.node_id: each.metadata for each in read.nodes if each.metadata}


def _message_type() -> Any:
    """Keras' message of that file, as far as it is read here; TensorFlow brings none for it."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="edl_horovod/keras_metadata.proto", package="edl_horovod", syntax="proto3"
    )
    inner = file.message_type.add(name="SavedObject")
    for name, (number, kind) in _FIELDS.items():
        kinds_type = getattr(kinds, f"TYPE_{kind}")
        inner.field.add(name=name, number=number, type=kinds_type, label=kinds.LABEL_OPTIONAL)
    outer = file.message_type.add(name="SavedMetadata")
    outer.field.add(
        name="nodes",
        number=1,
        type=kinds.TYPE_MESSAGE,
        type_name=".edl_horovod.SavedObject",
        label=kinds.LABEL_REPEATED,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName("edl_horovod.SavedMetadata")
    return message_factory.GetMessageClass(found)
