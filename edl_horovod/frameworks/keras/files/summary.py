"""Summarize a model's files: layers, parameter counts, compile arguments, unsafe parts."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import h5py

from edl_horovod.frameworks.keras.files.definition import (
    ARCHIVE_WEIGHTS,
    Definition,
    is_archive,
    open_archive,
)
from edl_horovod.frameworks.keras.files.hdf5 import (
    holds_named_layers,
    layer_datasets,
    open_hdf5,
    weights_group,
)
from edl_horovod.frameworks.keras.files.saved_model import read_saved_model
from edl_horovod.frameworks.keras.files.unsafe import all_findings
from edl_horovod.models.file_model import FileModel, FileModelSummary, LayerSummary

__all__ = ["summary_of"]


def summary_of(model: FileModel, definition: Definition) -> FileModelSummary:
    """Summarize the files of a model without creating any Keras object.

    Args:
        model: The files.
        definition: The definition that was read from the files.

    Raises:
        UserCodeError: The file of the weights does not have the format that its name claims.
    """
    shapes = _shapes(model, definition)
    compiled = definition.compiled or {}
    options = model.compile_options
    optimizer = options.get("optimizer") or compiled.get("optimizer_config")
    findings = all_findings(definition, model)
    layers = tuple(_layers(definition.config, shapes))
    return FileModelSummary(
        kind=definition.kind,
        layers=layers,
        optimizer=_display_name(optimizer or compiled.get("optimizer")),
        loss=_display_name(options.get("loss") or compiled.get("loss")),
        unsafe=tuple(finding.description for finding in findings),
    )


def _layers(
    config: Mapping[str, Any], shapes: Mapping[str, list[tuple[int, ...]]] | None
) -> Iterator[LayerSummary]:
    for layer in _layer_configs(config):
        settings = layer.get("config")
        settings = settings if isinstance(settings, Mapping) else {}
        name = str(layer.get("name") or settings.get("name") or "")
        class_name = str(layer.get("class_name", ""))
        shape = settings.get("batch_shape") or settings.get("batch_input_shape")
        layer_shapes = None if shapes is None else shapes.get(name, [])
        if layer_shapes:
            shape_text = ", ".join(map(str, layer_shapes))
        else:
            shape_text = str(tuple(shape)) if isinstance(shape, list | tuple) else ""
        count = None if layer_shapes is None else sum(map(math.prod, layer_shapes))
        yield LayerSummary(name=name, kind=class_name, shape=shape_text, num_parameters=count)


def _layer_configs(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    settings = config.get("config")
    layers = settings.get("layers") if isinstance(settings, Mapping) else settings
    if not isinstance(layers, list):
        return []
    return [layer for layer in layers if isinstance(layer, Mapping)]


def _shapes(model: FileModel, definition: Definition) -> dict[str, list[tuple[int, ...]]] | None:
    """Map each layer's name to the shapes of its weights; None if no file contains weights."""
    path = model.weights or model.definition
    if path is None:
        return None
    if path.is_dir():
        return read_saved_model(path).shapes()
    if is_archive(path):
        with open_archive(path) as archive, archive.open(ARCHIVE_WEIGHTS) as content:
            return _shapes_in(path, definition, content)  # type: ignore[arg-type]  # A readable and seekable stream, as h5py requires.
    return _shapes_in(path, definition, None)


def _shapes_in(
    path: Any, definition: Definition, content: BinaryIO | None
) -> dict[str, list[tuple[int, ...]]]:
    with open_hdf5(path, content) as file:
        group = weights_group(file)
        if holds_named_layers(group):
            return {
                name: [dataset.shape for dataset in datasets]
                for name, datasets in layer_datasets(group, path).items()
            }
        return _weights_h5_shapes(file, definition)


def _weights_h5_shapes(file: h5py.File, definition: Definition) -> dict[str, list[tuple[int, ...]]]:
    """Read shapes from the format `.weights.h5`, which numbers groups by the layers' classes."""
    shapes_by_layer: dict[str, list[tuple[int, ...]]] = {}
    layers = file.get("layers", file.get("_layer_checkpoint_dependencies"))
    if not isinstance(layers, h5py.Group):
        return shapes_by_layer
    used: dict[str, int] = {}
    for layer in _layer_configs(definition.config):
        group_name = _snake_case(str(layer.get("class_name", "")))
        number = used.get(group_name, 0)
        used[group_name] = number + 1
        group = layers.get(f"{group_name}_{number}" if number else group_name)
        settings = layer.get("config")
        config_name = settings.get("name") if isinstance(settings, Mapping) else None
        shapes: list[tuple[int, ...]] = []
        if isinstance(group, h5py.Group):
            group.visititems(lambda name, value, shapes=shapes: _append_shape(name, value, shapes))
        shapes_by_layer[str(layer.get("name") or config_name or "")] = shapes
    return shapes_by_layer


def _append_shape(name: str, value: Any, shapes: list[tuple[int, ...]]) -> None:
    if isinstance(value, h5py.Dataset) and "seed_generator" not in name:
        shapes.append(value.shape)


def _snake_case(name: str) -> str:
    """Convert a class name to a group name as Keras does."""
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def _display_name(part: Any) -> str:
    """Format an optimizer or a loss for display; empty if there is none."""
    if isinstance(part, Mapping):
        if part.get("class_name") == "function":
            return str(part.get("config"))
        name = part.get("class_name") or part.get("value")
        if name is not None:
            return str(name).rpartition(">")[2]
        return ", ".join(f"{key}: {_display_name(value)}" for key, value in part.items())
    if isinstance(part, list | tuple):
        return ", ".join(map(_display_name, part))
    return "" if part is None else str(part)
