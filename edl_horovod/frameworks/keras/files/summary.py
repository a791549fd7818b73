"""Describe a model's files: layers, numbers of parameters, how it was compiled, what is unsafe."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import h5py

from edl_horovod.frameworks.keras.files.definition import (
    ARCHIVE_WEIGHTS,
    Definition,
    is_archive,
    opened_archive,
)
from edl_horovod.frameworks.keras.files.hdf5 import (
    holds_named_layers,
    layer_datasets,
    opened,
    weights_group,
)
from edl_horovod.frameworks.keras.files.saved_model import read_saved_model
from edl_horovod.frameworks.keras.files.unsafe import all_findings
from edl_horovod.models.file_model import FileModel, FileModelSummary, LayerSummary

__all__ = ["summary_of"]


def summary_of(model: FileModel, definition: Definition) -> FileModelSummary:
    """What the files of a model say; Keras makes nothing of them.

    Args:
        model: Where the files are.
        definition: What was read of them.

    Raises:
        UserCodeError: The file of the weights is not what its name claims.
    """
    shapes = _shapes(model, definition)
    compiled = definition.compiled or {}
    options = model.compile_options
    optimizer = options.get("optimizer") or compiled.get("optimizer_config")
    found = all_findings(definition, model)
    layers = tuple(_layers(definition.config, shapes))
    return FileModelSummary(
        kind=definition.kind,
        layers=layers,
        optimizer=_named(optimizer or compiled.get("optimizer")),
        loss=_named(options.get("loss") or compiled.get("loss")),
        unsafe=tuple(each.what for each in found),
    )


def _layers(
    config: Mapping[str, Any], shapes: Mapping[str, list[tuple[int, ...]]] | None
) -> Iterator[LayerSummary]:
    for given in _inner(config):
        settings = given.get("config")
        settings = settings if isinstance(settings, Mapping) else {}
        name = str(given.get("name") or settings.get("name") or "")
        kind = str(given.get("class_name", ""))
        shape = settings.get("batch_shape") or settings.get("batch_input_shape")
        own = None if shapes is None else shapes.get(name, [])
        if own:
            shown = ", ".join(str(each) for each in own)
        else:
            shown = str(tuple(shape)) if isinstance(shape, list | tuple) else ""
        count = None if own is None else sum(math.prod(each) for each in own)
        yield LayerSummary(name=name, kind=kind, shape=shown, num_parameters=count)


def _inner(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    inside = config.get("config")
    layers = inside.get("layers") if isinstance(inside, Mapping) else inside
    if not isinstance(layers, list):
        return []
    return [each for each in layers if isinstance(each, Mapping)]


def _shapes(model: FileModel, definition: Definition) -> dict[str, list[tuple[int, ...]]] | None:
    """The shapes of each layer's weights; None where no file has them."""
    path = model.weights or model.definition
    if path is None:
        return None
    if path.is_dir():
        return read_saved_model(path).shapes()
    if is_archive(path):
        with opened_archive(path) as archive, archive.open(ARCHIVE_WEIGHTS) as content:
            return _shapes_in(path, definition, content)  # type: ignore[arg-type]  # As there.
    return _shapes_in(path, definition, None)


def _shapes_in(
    path: Any, definition: Definition, content: BinaryIO | None
) -> dict[str, list[tuple[int, ...]]]:
    with opened(path, content) as file:
        group = weights_group(file)
        if holds_named_layers(group):
            sets = layer_datasets(group, path)
            return {name: [each.shape for each in found] for name, found in sets.items()}
        return _todays_shapes(file, definition)


def _todays_shapes(file: h5py.File, definition: Definition) -> dict[str, list[tuple[int, ...]]]:
    """Groups are called after the layers' classes there, and numbered in their order."""
    found: dict[str, list[tuple[int, ...]]] = {}
    layers = file.get("layers", file.get("_layer_checkpoint_dependencies"))
    if not isinstance(layers, h5py.Group):
        return found
    used: dict[str, int] = {}
    for given in _inner(definition.config):
        kind = _snake_case(str(given.get("class_name", "")))
        number = used.get(kind, 0)
        used[kind] = number + 1
        group = layers.get(f"{kind}_{number}" if number else kind)
        settings = given.get("config")
        own = settings.get("name") if isinstance(settings, Mapping) else None
        shapes: list[tuple[int, ...]] = []
        if isinstance(group, h5py.Group):
            group.visititems(lambda name, each, shapes=shapes: _add(name, each, shapes))
        found[str(given.get("name") or own or "")] = shapes
    return found


def _add(name: str, found: Any, shapes: list[tuple[int, ...]]) -> None:
    if isinstance(found, h5py.Dataset) and "seed_generator" not in name:
        shapes.append(found.shape)


def _snake_case(name: str) -> str:
    """As Keras makes the names of groups of those of classes."""
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def _named(given: Any) -> str:
    """An optimizer or a loss in words; empty where there is none."""
    if isinstance(given, Mapping):
        if given.get("class_name") == "function":
            return str(given.get("config"))
        name = given.get("class_name") or given.get("value")
        if name is not None:
            return str(name).rpartition(">")[2]
        return ", ".join(f"{key}: {_named(each)}" for key, each in given.items())
    if isinstance(given, list | tuple):
        return ", ".join(_named(each) for each in given)
    return "" if given is None else str(given)
