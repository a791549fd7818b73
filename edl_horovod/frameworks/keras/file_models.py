"""Models of Keras and TensorFlow that lie in files, as specs; see `models.file_model.FileModels`.

What the files hold is read and looked through before anything of it is made. A model that Keras 2
wrote is said as today's Keras says it, and then made by Keras 3.
"""

import re
import types
from collections.abc import Callable
from typing import Any, cast

import keras

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.files.building import built, todays_config
from edl_horovod.frameworks.keras.files.compiled import CompileArguments, missing_parts
from edl_horovod.frameworks.keras.files.definition import read_definition
from edl_horovod.frameworks.keras.files.examples import examples_of
from edl_horovod.frameworks.keras.files.summary import summary_of
from edl_horovod.frameworks.keras.files.unsafe import all_findings, refuse
from edl_horovod.frameworks.keras.files.writing import write
from edl_horovod.models.custom_objects import load_custom_objects
from edl_horovod.models.file_model import FileModel, FileModelSummary
from edl_horovod.models.parts import METHODS
from edl_horovod.spec import ElasticDLSpec, Mode

__all__ = ["spec_of", "summarize", "write"]


def summarize(model: FileModel) -> FileModelSummary:
    """Describe the files without running anything of them.

    Raises:
        UserCodeError: A file is not there, or is not what its name claims.
    """
    return summary_of(model, read_definition(model))


def spec_of(model: FileModel) -> type[ElasticDLSpec]:
    """A spec class whose `create_model` gives the model of the files, compiled.

    Each call of `create_model` reads the weights anew. The state of the optimizer stays in the
    file: a training begins with a new one.

    Raises:
        UserCodeError: The files hold code and are not trusted, lack something, do not fit each
            other, or an option names nothing.
    """
    definition = read_definition(model)
    refuse(all_findings(definition, model), is_trusted=model.is_trusted)
    missing = missing_parts(definition, model)
    custom = load_custom_objects(model)
    if not definition.is_program:
        todays_config(definition, custom)
    arguments = CompileArguments(definition=definition, model=model, custom=custom)
    arguments.make()

    def create_model(self: ElasticDLSpec) -> keras.Model:
        made = built(model, definition, custom)
        made.compile(**arguments.make())
        return made

    def create_dataset(self: ElasticDLSpec, dataset: Any, mode: Mode) -> Any:
        return examples_of(dataset, mode, label=model.name)

    methods: dict[str, Any] = {
        "create_model": create_model,
        "create_dataset": create_dataset,
        "__module__": __name__,
    }
    # Settings of the job may take their place.
    methods |= {METHODS[key]: _raising(error) for key, error in missing.items()}
    name = re.sub(r"\W", "_", model.name)
    made = types.new_class(
        name, (ElasticDLSpec,), exec_body=lambda namespace: namespace.update(methods)
    )
    return cast(type[ElasticDLSpec], made)


def _raising(error: UserCodeError) -> Callable[..., Any]:
    def method(self: ElasticDLSpec) -> Any:
        raise error

    return method
