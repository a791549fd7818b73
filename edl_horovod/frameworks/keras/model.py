"""Build, load and save a user's Keras model."""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from edl_horovod.errors import ConfigError, UserCodeError
from edl_horovod.frameworks.keras.evaluation import KerasEvaluation
from edl_horovod.frameworks.keras.keras_2 import name_only_input, require_keras_3
from edl_horovod.frameworks.keras.metrics import first_examples
from edl_horovod.frameworks.keras.prediction import KerasPrediction
from edl_horovod.frameworks.models import Evaluation, Prediction
from edl_horovod.frameworks.values import Variable
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.zoo import LoadedSpec

__all__ = ["KerasModel", "by_name"]

log = logging.getLogger(__name__)


class KerasModel:
    """A user's Keras model, built for batches of one kind."""

    def __init__(self, loaded: LoadedSpec, features: Any) -> None:
        """Create the user's model and call it once so that its weights get their shapes.

        Args:
            loaded: The user's spec.
            features: `tf.TypeSpec`s of a batch's features.

        Raises:
            UserCodeError: `create_model` raised or returned no model, or the model rejects
                these features.
        """
        self._loaded = loaded
        name = loaded.label
        with user_code(f"create_model of {name}", root=loaded.zoo):
            model = call_declared(loaded.spec.create_model, {})
        if not isinstance(model, keras.Model):
            raise UserCodeError(
                f"create_model of {name} must return a keras.Model.", received=type(model).__name__
            )
        require_keras_3(model, name)
        name_only_input(model, features)
        doing = f"Running the model of {name} on the features of create_dataset ({features})"
        with user_code(doing, root=loaded.zoo):
            model(first_examples(features), training=False)
        self.keras = model

    @property
    def weights(self) -> dict[str, Variable]:
        """The model's variables by the names that a trained model's files use."""
        return by_name(self.keras.weights)

    def evaluation(self, element_spec: Any) -> Evaluation:
        """Trace the evaluation of a batch."""
        return KerasEvaluation(self._loaded, self.keras, element_spec)

    def prediction(self, element_spec: Any) -> Prediction:
        """Trace the prediction of a batch."""
        return KerasPrediction(self._loaded, self.keras, element_spec)

    def load(self, file: Path, *, is_trusted: bool) -> None:
        """Reject the file: the weight names in a Keras file depend on how the model was built."""
        raise ConfigError(
            "A Keras model can only start from the output of a training, but init_from is a file.",
            received={"init_from": file},
            hint="Set init_from to the output directory of a training, load the file in"
            " create_model (model.load_weights), or describe it as a model spec"
            " (docs/how-to/model-specs.md).",
        )

    def save(self, folder: Path) -> None:
        """Write `model.keras`."""
        path = folder / "model.keras"
        try:
            self.keras.save(path)
        except (NotImplementedError, TypeError, ValueError) as e:  # Raised by user configs.
            path.unlink(missing_ok=True)
            log.warning(
                "The trained model has no model.keras, because Keras cannot save this model: %s."
                " Evaluation and prediction work without it. To get the file, implement get_config"
                " in the model's classes.",
                e,
            )

    def export(self, folder: Path, *, saved_model: bool, onnx: bool) -> None:
        """Write `saved_model/`. The settings reject ONNX for Keras."""
        assert saved_model
        assert not onnx
        path = folder / "saved_model"
        try:
            with user_code(
                "Exporting the model as a SavedModel (train.saved_model=true)", root=path
            ):
                self.keras.export(path, format="tf_saved_model", verbose=False)
        except UserCodeError:
            shutil.rmtree(path, ignore_errors=True)
            raise


def by_name(variables: Sequence[keras.Variable]) -> dict[str, Variable]:
    """Map each variable once by its path, with a numeric suffix where a path repeats."""
    named: dict[str, Variable] = {}
    seen: dict[str, int] = {}
    for variable in {id(variable.value): variable for variable in variables}.values():
        repeated = seen[variable.path] = seen.get(variable.path, -1) + 1
        named[f"{variable.path}:{repeated}" if repeated else variable.path] = variable.value
    return named
