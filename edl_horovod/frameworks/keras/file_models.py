"""Specs of models that are stored in files of Keras or TensorFlow (`models.file_model.FileModels`).

The files are read and checked before any object is created from them. The configuration of a model
that Keras 2 wrote is translated to that of Keras 3.
"""

import re
import types
from collections.abc import Callable
from typing import Any, cast

import keras

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.files.building import build_model, current_config
from edl_horovod.frameworks.keras.files.compiled import CompileArguments, missing_parts
from edl_horovod.frameworks.keras.files.definition import read_definition
from edl_horovod.frameworks.keras.files.examples import examples_of
from edl_horovod.frameworks.keras.files.summary import summary_of
from edl_horovod.frameworks.keras.files.unsafe import all_findings, reject_findings
from edl_horovod.frameworks.keras.files.writing import write
from edl_horovod.models.file_model import FileModel, FileModelSummary, load_custom_objects
from edl_horovod.models.parts import METHODS
from edl_horovod.spec import ElasticDLSpec, Mode

__all__ = ["spec_of", "summarize", "write"]


def summarize(model: FileModel) -> FileModelSummary:
    """Describe the files without running code from them.

    Raises:
        UserCodeError: A file is missing or does not have the format that its name claims.
    """
    return summary_of(model, read_definition(model))


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


def _raising(error: UserCodeError) -> Callable[..., Any]:
    def method(self: ElasticDLSpec) -> Any:
        raise error

    return method
