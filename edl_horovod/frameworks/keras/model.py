"""A user's Keras model: its named variables, its files, its evaluation and its predictions."""

import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl_horovod.errors import ConfigError, UserCodeError
from edl_horovod.frameworks.base import Evaluation, Prediction
from edl_horovod.frameworks.keras.functional import num_examples, running, traced
from edl_horovod.frameworks.keras.keras_2 import name_only_input, require_keras_3
from edl_horovod.frameworks.keras.metrics import MetricSums, random_examples, split_sums
from edl_horovod.frameworks.keras.objective import Objective, overrides
from edl_horovod.frameworks.values import Batch, EvaluationSums, Output, Variable, flatten_outputs
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

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
        # In a scope, as `fit` builds a model: what the call assigns has no effect.
        with user_code(doing, root=loaded.zoo), keras.StatelessScope():
            model(random_examples(features, 1, np.random.default_rng(0)), training=False)
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


class KerasEvaluation:
    """The traced evaluation of one batch."""

    def __init__(self, loaded: LoadedSpec, model: keras.Model, element_spec: Any) -> None:
        """Trace the evaluation.

        Args:
            loaded: The user's spec.
            model: The built model.
            element_spec: `tf.TypeSpec`s of a batch's features, labels, and weights if any.

        Raises:
            UserCodeError: The loss or a metric cannot be built for these examples, or its values
                cannot be added up.
        """
        self._loaded = loaded
        self._objective = Objective(loaded, model, element_spec, Mode.EVALUATION)
        self._metrics: list[MetricSums] = []
        with user_code(f"Building the evaluation of {loaded.label}", root=loaded.zoo):
            # This calls `_trace` once, which sets `_metrics`.
            self._sums = traced(self._trace, element_spec)
        size = sum(metric.size for metric in self._metrics)
        # Only computed values have names, so compute them from sums that are zero.
        self.names = ["loss", *self._values(np.zeros(size), 1.0)]
        self.zeros = EvaluationSums.zeros(size)

    def sums(self, batch: Batch) -> EvaluationSums:
        """Compute the sums of a batch."""
        self._objective.require_mean(batch.examples)
        with running("The evaluation", self._loaded, batch.examples):
            count, loss, weight, *metrics = self._sums(batch.examples).numpy()
        return EvaluationSums(count, loss, weight, np.array(metrics))

    def values(self, sums: EvaluationSums) -> dict[str, float]:
        """Compute the loss and the metrics by name from the sums of at least one example."""
        # Keras defines a fully masked loss as 0.
        loss = sums.mean_loss if sums.loss_weight else 0.0
        return {"loss": loss, **self._values(sums.metrics, sums.num_examples)}

    def _values(self, sums: NDArray[np.float64], count: float) -> dict[str, float]:
        return {
            name: float(value)
            for metric, part in split_sums(self._metrics, sums)
            for name, value in metric.values(metric.counted(part, count), count).items()
        }

    def _trace(self, examples: tuple[Any, ...]) -> tf.Tensor:
        """Compute the sums of a batch as one vector: examples, loss, loss weight, metrics."""
        count = tf.cast(num_examples(examples[0]), tf.float32)
        outcome = self._objective.of_batch(examples)
        self._metrics = outcome.metrics
        loss = tf.stack([outcome.loss.total, outcome.loss.weight])
        numbers = [[count], tf.cast(loss, tf.float32)]
        return tf.cast(tf.concat([*numbers, *(m.sums for m in outcome.metrics)], 0), tf.float64)


class KerasPrediction:
    """The traced prediction of one batch."""

    def __init__(self, loaded: LoadedSpec, model: keras.Model, element_spec: Any) -> None:
        """Trace the prediction.

        Args:
            loaded: The user's spec.
            model: The built model.
            element_spec: The `tf.TypeSpec`s of a batch's features, and None for the labels.

        Raises:
            UserCodeError: The model raised an exception.
        """
        with user_code(f"Running the model of {loaded.label}", root=loaded.zoo):
            self.outputs = traced(_predict_function(model), element_spec[0])
        """Computes the model's outputs for a batch's features."""

    def describe(self) -> tuple[Output, ...]:
        """Describe the outputs, sorted by name."""
        return describe_outputs(self.outputs.structured_outputs)

    def arrays(self, outputs: Any) -> dict[str, NDArray[Any]]:
        """Convert the outputs to arrays by name."""
        return {name: np.asarray(value) for name, value in flatten_outputs(outputs).items()}


def describe_outputs(outputs: Any) -> tuple[Output, ...]:
    """Describe tensors or `tf.TypeSpec`s in the structure that a model returns, sorted by name."""

    def describe(name: str, tensor: Any) -> Output:
        if not isinstance(tensor, tf.Tensor | tf.TensorSpec):
            problem = "it is not a dense tensor"
            return Output(name=name, dtype=type(tensor).__name__, batch_shape=None, problem=problem)
        shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
        return Output(name=name, dtype=tensor.dtype.name, batch_shape=shape)

    return tuple(describe(*item) for item in sorted(flatten_outputs(outputs).items()))


def _predict_function(model: keras.Model) -> Callable[[Any], Any]:
    """Return the function from a batch's features to the model's outputs."""
    if overrides(model, "predict_step"):
        # predict_step would unpack a tuple of features as (features, labels, weights).
        return lambda features: model.predict_step(
            (features,) if isinstance(features, tuple) else features
        )
    return lambda features: model(features, training=False)
