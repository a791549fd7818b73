"""A user's Keras model: built, named, saved."""

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
    """See `base.Model`."""

    def __init__(self, loaded: LoadedSpec, features: Any) -> None:
        """Create the user's model and run it once for `features`, the `tf.TypeSpec`s of a batch.

        Raises:
            UserCodeError: `create_model` raised, returned no model, or the model refuses these
                features.
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
        doing = f"Running the model of {name} on what create_dataset gives ({features})"
        with user_code(doing, root=loaded.zoo):
            model(first_examples(features), training=False)
        self.keras = model

    @property
    def weights(self) -> dict[str, Variable]:
        """Its parameters, by the names that a trained model's files have for them."""
        return by_name(self.keras.weights)

    def evaluation(self, element_spec: Any) -> Evaluation:
        """Trace its evaluation."""
        return KerasEvaluation(self._loaded, self.keras, element_spec)

    def prediction(self, element_spec: Any) -> Prediction:
        """Trace its prediction."""
        return KerasPrediction(self._loaded, self.keras, element_spec)

    def load(self, file: Path, *, is_trusted: bool) -> None:
        """Refuse the file: Keras names weights in files by what a model makes of them."""
        raise ConfigError(
            "A model of Keras begins with the weights of a trained model, and init_from is a file.",
            received={"init_from": file},
            cure="Give the directory that a training wrote as its output, or load the file in"
            " create_model (model.load_weights), or describe it as a model spec"
            " (docs/how-to/model-specs.md).",
        )

    def save(self, folder: Path) -> None:
        """Write `model.keras`."""
        path = folder / "model.keras"
        try:
            self.keras.save(path)
        except (NotImplementedError, TypeError, ValueError) as e:  # What Keras raises for a config.
            path.unlink(missing_ok=True)
            log.warning(
                "The trained model has no model.keras, because Keras cannot save this model: %s."
                " Evaluate and predict work without it; get_config of the model's classes mends"
                " it.",
                e,
            )

    def export(self, folder: Path, *, saved_model: bool, onnx: bool) -> None:
        """Write `saved_model/`; the settings have refused ONNX."""
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
    """Variables by their paths, each once; a number tells several of one path apart."""
    named: dict[str, Variable] = {}
    seen: dict[str, int] = {}
    for variable in {id(variable.value): variable for variable in variables}.values():
        repeated = seen[variable.path] = seen.get(variable.path, -1) + 1
        named[f"{variable.path}:{repeated}" if repeated else variable.path] = variable.value
    return named
