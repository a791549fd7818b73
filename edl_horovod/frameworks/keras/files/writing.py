"""Write a model of a zoo as the file of a model spec."""

from pathlib import Path

import keras

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.files.definition import read_definition
from edl_horovod.frameworks.keras.files.unsafe import all_findings
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.file_model import FileModel, WrittenModel
from edl_horovod.models.zoo import LoadedSpec

__all__ = ["write"]

_FILE = "model.keras"


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
