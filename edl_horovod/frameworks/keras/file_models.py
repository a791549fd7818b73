"""Keras models in files that a model spec names (`models.spec_zoo.FileModels`).

The files are read and checked before any object is created from them. The configuration of a model
that Keras 2 wrote is translated to that of Keras 3.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import h5py
import keras
import tensorflow as tf
from keras.src.utils.naming import to_snake_case

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.files import hdf5
from edl_horovod.frameworks.keras.files.building import build_model
from edl_horovod.frameworks.keras.files.compiled import CompileArguments, missing_parts
from edl_horovod.frameworks.keras.files.config_upgrade import current_config
from edl_horovod.frameworks.keras.files.definition import Definition, open_weights, read_definition
from edl_horovod.frameworks.keras.files.saved_model import read_saved_model
from edl_horovod.frameworks.keras.files.unsafe import all_findings, reject_findings
from edl_horovod.models import spec_zoo
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.parts import METHODS
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import ElasticDLSpec, Mode

_FILE = "model.keras"


def spec_of(model: spec_zoo.FileModel) -> type[ElasticDLSpec]:
    """Build a spec class whose `create_model` returns the compiled model of the files.

    Each call of `create_model` reads the weights again. The optimizer's state in the file is
    ignored: a training starts with a new state.

    Raises:
        UserCodeError: The files contain untrusted code, are incomplete, do not match each other,
            or an option has an unknown value.
    """
    definition = read_definition(model)
    reject_findings(all_findings(definition), is_trusted=model.is_trusted)
    missing = missing_parts(definition)
    custom = spec_zoo.load_custom_objects(model)
    if not definition.is_program:
        current_config(definition, custom)
    arguments = CompileArguments(definition=definition, custom=custom)
    arguments.make()

    def create_model(self: ElasticDLSpec) -> keras.Model:
        built = build_model(definition, custom)
        built.compile(**arguments.make())
        return built

    def create_dataset(self: ElasticDLSpec, dataset: Any, mode: Mode) -> Any:
        return examples_of(dataset, mode, label=model.name)

    methods: dict[str, Any] = {
        "create_model": create_model,
        "create_dataset": create_dataset,
        "__module__": __name__,
    }
    # The job's settings may replace these parts, so they only raise when they are used.
    methods |= {METHODS[key]: _raising(error) for key, error in missing.items()}
    name = re.sub(r"\W", "_", model.name)
    return cast(type[ElasticDLSpec], type(name, (ElasticDLSpec,), methods))


def summarize(model: spec_zoo.FileModel) -> spec_zoo.FileModelSummary:
    """Describe the files without running code from them or creating any Keras object.

    Raises:
        UserCodeError: A file is missing or does not have the format that its name claims.
    """
    definition = read_definition(model)
    options = definition.source.compile_options
    loss = options.get("loss") or definition.compiled.get("loss")
    return spec_zoo.FileModelSummary(
        kind=definition.kind,
        layers=tuple(_layers(definition)),
        optimizer=_display_name(options.get("optimizer") or definition.optimizer),
        loss=_display_name(loss),
        unsafe=tuple(finding.description for finding in all_findings(definition)),
    )


def write(loaded: LoadedSpec, folder: Path) -> spec_zoo.WrittenModel:
    """Write the model with its weights and its optimizer.

    Raises:
        UserCodeError: The model cannot be created or saved, or needs classes that a file cannot
            contain.
    """
    with user_code(f"Building and saving the model of {loaded.label}", root=loaded.zoo):
        model = call_declared(loaded.spec.create_model, {})
        if not isinstance(model, keras.Model) or not model.built:
            raise UserCodeError(
                f"create_model of {loaded.label} must return a keras.Model whose weights are"
                " built.",
                received=type(model).__name__,
                hint="Start the model with keras.Input, or set input_shape in its first layer.",
            )
        if loaded.overrides_method("create_optimizer"):
            model.compile(optimizer=loaded.optimizer(None), loss=None)
        model.save(folder / _FILE)
    written = spec_zoo.FileModel(name=loaded.symbol, definition=folder / _FILE)
    if findings := all_findings(read_definition(written)):
        raise UserCodeError(
            f"The model of {loaded.label} contains parts that a model spec cannot describe without"
            " their code.",
            received="; ".join(finding.description for finding in findings),
            hint="Build it from layers of Keras.",
        )
    omitted = []
    if loaded.overrides_method("create_loss"):
        omitted.append("the loss, which is code: set loss=... when the model is trained")
    return spec_zoo.WrittenModel({"model_definition": _FILE}, tuple(omitted))


def examples_of(dataset: tf.data.Dataset, mode: Mode, *, label: str) -> tf.data.Dataset:
    """Split records into features and labels; tuples are already examples and stay unchanged.

    Args:
        dataset: Records of a step, each a dict of columns.
        mode: In `Mode.PREDICTION`, examples have no labels.
        label: Name of the model in messages.

    Raises:
        UserCodeError: The records have no numeric columns, or none of them is the label.
    """
    columns = dataset.element_spec
    if isinstance(columns, tuple):
        return dataset
    if not isinstance(columns, dict) or any(spec.dtype == tf.string for spec in columns.values()):
        specs = columns if isinstance(columns, dict) else {"record": columns}
        received = ", ".join(f"{name}: {spec.dtype.name}" for name, spec in specs.items())
        raise spec_zoo.records_without_columns(label, received)
    roles = spec_zoo.column_roles(
        list(columns), label=label, needs_label=mode is not Mode.PREDICTION
    )

    def example(row: dict[str, tf.Tensor]) -> Any:
        features: Any = {name: row[name] for name in roles.features}
        if len(roles.features) == 1:
            features = row[roles.features[0]]
        return features if mode is Mode.PREDICTION else (features, row[roles.label])

    return dataset.map(example)


def _raising(error: UserCodeError) -> Callable[..., Any]:
    def method(self: ElasticDLSpec) -> Any:
        raise error

    return method


def _layers(definition: Definition) -> Iterator[spec_zoo.LayerSummary]:
    shapes = _shapes(definition)
    for name, class_name, settings in _layer_configs(definition):
        shape = settings.get("batch_shape") or settings.get("batch_input_shape")
        layer_shapes = None if shapes is None else shapes.get(name, [])
        if layer_shapes:
            shape_text = ", ".join(map(str, layer_shapes))
        else:
            shape_text = str(tuple(shape)) if isinstance(shape, list | tuple) else ""
        count = None if layer_shapes is None else sum(map(math.prod, layer_shapes))
        yield spec_zoo.LayerSummary(
            name=name, kind=class_name, shape=shape_text, num_parameters=count
        )


def _layer_configs(definition: Definition) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the name, the class and the settings of each layer."""
    config = definition.config["config"]
    layers = config.get("layers") if isinstance(config, Mapping) else config
    for layer in layers if isinstance(layers, list) else []:
        if isinstance(layer, Mapping):
            settings = layer.get("config")
            settings = settings if isinstance(settings, Mapping) else {}
            name = str(layer.get("name") or settings.get("name") or "")
            yield name, str(layer.get("class_name", "")), settings


def _shapes(definition: Definition) -> dict[str, list[tuple[int, ...]]] | None:
    """Map each layer's name to the shapes of its weights; None if no file contains weights."""
    path = definition.source.weights or definition.source.definition
    if path is None:
        return None
    if path.is_dir():
        return read_saved_model(path).shapes()
    with open_weights(path) as file:
        layers = hdf5.layer_datasets(hdf5.weights_group(file), path)
        if layers is None:
            return _weights_h5_shapes(file, definition)
        return {name: [dataset.shape for dataset in layer] for name, layer in layers.items()}


def _weights_h5_shapes(file: h5py.File, definition: Definition) -> dict[str, list[tuple[int, ...]]]:
    """Read shapes from the format `.weights.h5`, which numbers groups by the layers' classes."""
    shapes_by_layer: dict[str, list[tuple[int, ...]]] = {}
    layers = file.get("layers", file.get("_layer_checkpoint_dependencies"))
    if not isinstance(layers, h5py.Group):
        return shapes_by_layer
    used: dict[str, int] = {}
    for layer_name, class_name, _ in _layer_configs(definition):
        group_name = to_snake_case(class_name)
        number = used.get(group_name, 0)
        used[group_name] = number + 1
        group = layers.get(f"{group_name}_{number}" if number else group_name)
        datasets = hdf5.all_datasets(group) if isinstance(group, h5py.Group) else {}
        shapes_by_layer[layer_name] = [
            dataset.shape for name, dataset in datasets.items() if "seed_generator" not in name
        ]
    return shapes_by_layer


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
