"""Writing a model of a zoo as the file of a model spec."""

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
        UserCodeError: The model cannot be made or saved, or is of classes that a file cannot hold.
    """
    with user_code(f"Making and saving the model of {loaded.label}", root=loaded.zoo):
        model = call_declared(loaded.spec.create_model, {})
        if not isinstance(model, keras.Model) or not model.built:
            raise UserCodeError(
                f"create_model of {loaded.label} must return a keras.Model whose weights have their"
                " shapes.",
                received=type(model).__name__,
                cure="Begin it with keras.Input, or give its first layer an input_shape.",
            )
        if loaded.gives("create_optimizer"):
            model.compile(optimizer=loaded.optimizer(None), loss=None)
        model.save(folder / _FILE)
    written = FileModel(name=loaded.symbol, definition=folder / _FILE)
    if found := all_findings(read_definition(written), written):
        raise UserCodeError(
            f"The model of {loaded.label} holds what a model spec cannot name without its code.",
            received="; ".join(each.what for each in found),
            cure="Make it of layers of Keras.",
        )
    left_out = []
    if loaded.gives("create_loss"):
        left_out.append("the loss, which is code: set loss=... where the model is trained")
    return WrittenModel({"model_definition": _FILE}, tuple(left_out))
