"""Keras models in files that a model spec names (`models.file_model.FileModels`).

The files are read and checked before any object is created from them. The configuration of a model
that Keras 2 wrote is translated to that of Keras 3.
"""

import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.files.building import build_model, current_config
from edl_horovod.frameworks.keras.files.compiled import CompileArguments, missing_parts
from edl_horovod.frameworks.keras.files.definition import read_definition
from edl_horovod.frameworks.keras.files.summary import summary_of
from edl_horovod.frameworks.keras.files.unsafe import all_findings, reject_findings
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.file_model import (
    FileModel,
    FileModelSummary,
    WrittenModel,
    column_roles,
    load_custom_objects,
    records_without_columns,
)
from edl_horovod.models.parts import METHODS
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import ElasticDLSpec, Mode

__all__ = ["examples_of", "spec_of", "summarize", "write"]

_FILE = "model.keras"


def spec_of(model: FileModel) -> type[ElasticDLSpec]:
    """Build a spec class whose `create_model` returns the compiled model of the files.

    Each call of `create_model` reads the weights again. The optimizer's state in the file is
    ignored: a training starts with a new state.

    Raises:
        UserCodeError: The files contain untrusted code, are incomplete, do not match each other,
            or an option has an unknown value.
    """
    definition = read_definition(model)
    reject_findings(all_findings(definition, model), is_trusted=model.is_trusted)
    missing = missing_parts(definition, model)
    custom = load_custom_objects(model)
    if not definition.is_program:
        current_config(definition, custom)
    arguments = CompileArguments(definition=definition, model=model, custom=custom)
    arguments.make()

    def create_model(self: ElasticDLSpec) -> keras.Model:
        built = build_model(model, definition, custom)
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
    spec = types.new_class(
        name, (ElasticDLSpec,), exec_body=lambda namespace: namespace.update(methods)
    )
    return cast(type[ElasticDLSpec], spec)


def summarize(model: FileModel) -> FileModelSummary:
    """Describe the files without running code from them.

    Raises:
        UserCodeError: A file is missing or does not have the format that its name claims.
    """
    return summary_of(model, read_definition(model))


def write(loaded: LoadedSpec, folder: Path) -> WrittenModel:
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
    written = FileModel(name=loaded.symbol, definition=folder / _FILE)
    if findings := all_findings(read_definition(written), written):
        raise UserCodeError(
            f"The model of {loaded.label} contains parts that a model spec cannot describe without"
            " their code.",
            received="; ".join(finding.description for finding in findings),
            hint="Build it from layers of Keras.",
        )
    omitted = []
    if loaded.overrides_method("create_loss"):
        omitted.append("the loss, which is code: set loss=... when the model is trained")
    return WrittenModel({"model_definition": _FILE}, tuple(omitted))


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
        raise records_without_columns(label, received)
    roles = column_roles(list(columns), label=label, needs_label=mode is not Mode.PREDICTION)

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
