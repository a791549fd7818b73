"""Build a Keras 3 model with its weights from a definition that was read from files.

Either all weights in a file are assigned, or none, and an error says why.
"""

import copy
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.files import hdf5
from edl_horovod.frameworks.keras.files.config_upgrade import current_config
from edl_horovod.frameworks.keras.files.definition import Definition, is_archive, open_weights
from edl_horovod.frameworks.keras.files.saved_model import read_saved_model
from edl_horovod.models.calling import user_code

_CURRENT_GROUPS = frozenset({"_layer_checkpoint_dependencies", "layers", "vars"})


def build_model(definition: Definition, custom: Mapping[str, Any]) -> keras.Model:
    """Build the model of the files without compiling it.

    Args:
        definition: The definition from the files, already checked for unsafe content.
        custom: The user's objects by the names that the files use.

    Raises:
        UserCodeError: Keras cannot create the model, the weights do not fit, or none is trainable.
    """
    path = definition.file
    with user_code(f"Building the model of {path}", root=path.parent):
        built = _create(definition, custom)
    if not isinstance(built, keras.Model):
        raise UserCodeError(
            f"{path} does not describe a model.",
            received=type(built).__name__,
            hint="Save the whole model.",
        )
    if not built.trainable_weights:
        raise UserCodeError(
            f"The model of {path} has no trainable weights.",
            received=f"{len(built.weights)} weights, none of them trainable",
            hint="Save it with layers whose `trainable` is true.",
        )
    return built


class SavedProgram(keras.Model):  # type: ignore[misc]  # Keras ships no types.
    """Calls the program of a SavedModel and owns its trainable variables."""

    def __init__(self, path: Path, name: str) -> None:
        """Load the program.

        Args:
            path: The SavedModel's folder. Its program must be trusted.
            name: Name of the model.

        Raises:
            UserCodeError: The program cannot be called, or has variables that it changes itself.
        """
        super().__init__(name=name)
        self._program = tf.saved_model.load(str(path))
        if not callable(self._program):
            raise UserCodeError(
                f"The SavedModel {path} does not contain a callable model.",
                received=type(self._program).__name__,
                hint="Write it with model.save of Keras 2.",
            )
        trained = list(getattr(self._program, "trainable_variables", ()))
        untrained_names = {variable.name for variable in getattr(self._program, "variables", ())}
        untrained_names -= {variable.name for variable in trained}
        if untrained_names:
            # The program would change them within a step, even if that step fails and is repeated.
            raise UserCodeError(
                f"The program of the SavedModel {path} has variables that it changes itself.",
                received=", ".join(sorted(untrained_names)),
                hint="Rewrite the class as a Keras 3 model in the model zoo.",
            )
        for variable in trained:
            self._track_variable(
                keras.Variable(
                    initializer=variable,
                    dtype=variable.dtype,
                    shape=variable.shape,
                    name=variable.name.partition(":")[0].replace("/", "_"),
                )
            )
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Run the program on a batch, with `training` if the program accepts it."""
        inputs = self._cast_inputs(inputs)
        try:
            return self._program(inputs, training=training)
        except (TypeError, ValueError):
            # The program lacks `training` if the `call` of its class does.
            return self._program(inputs)

    def _cast_inputs(self, inputs: Any) -> Any:
        """Cast floats to the types of the program's signature, as TensorFlow requires.

        The signature often has float64, the default of NumPy.
        """
        for function in getattr(self._program.__call__, "concrete_functions", ()):
            (first, *_), _ = function.structured_input_signature
            try:
                tf.nest.assert_same_structure(inputs, first)
            except (TypeError, ValueError):
                continue
            return tf.nest.map_structure(_cast_float, inputs, first)
        return inputs


def _create(definition: Definition, custom: Mapping[str, Any]) -> Any:
    path, source = definition.file, definition.source
    if is_archive(path) and not definition.is_keras_2:
        # Only this call also loads the assets of layers, such as vocabularies.
        return keras.saving.load_model(
            path, custom_objects=dict(custom), compile=False, safe_mode=not source.is_trusted
        )
    if definition.is_program:
        return SavedProgram(path, definition.config["config"]["name"])
    config = current_config(definition, custom)
    built = keras.saving.deserialize_keras_object(
        copy.deepcopy(config),  # Keras changes it.
        custom_objects=dict(custom),
        safe_mode=not source.is_trusted,
    )
    weights = source.weights or source.definition
    if weights is None:
        return built
    if not built.built:
        raise UserCodeError(
            f"{path} does not contain the model's input shape, so the model has no weights yet.",
            received=f"the model {built.name!r}",
            hint="Call the model once before it is saved.",
        )
    if weights.is_dir():
        _assign_arrays(built, read_saved_model(weights).arrays(), weights)
    else:
        _assign_file_weights(built, weights)
    return built


def _cast_float(value: Any, spec: Any) -> Any:
    is_float = tf.is_tensor(value) and value.dtype.is_floating and spec.dtype.is_floating
    return tf.cast(value, spec.dtype) if is_float else value


def _assign_file_weights(model: keras.Model, path: Path) -> None:
    """Assign the weights in an archive, or in an HDF5 file of a whole model or of weights alone.

    Args:
        model: The built model.
        path: An archive, or an HDF5 file in the format `.weights.h5` or the earlier one.

    Raises:
        UserCodeError: The weights do not fit the model, or the file has another format.
    """
    with open_weights(path) as file:
        group = hdf5.weights_group(file)
        layers = hdf5.layer_datasets(group, path)
        if layers is not None:
            _require_compatible_writer(group, path)
            arrays = {name: [dataset[()] for dataset in layer] for name, layer in layers.items()}
            _assign_arrays(model, arrays, path)
            return
        if not _CURRENT_GROUPS & set(file):
            raise UserCodeError(
                f"{path} does not contain weights of a Keras model.",
                received=f"the groups {', '.join(file) or '(none)'}",
                hint="Write the file with model.save_weights.",
            )
        _reject_surplus(model, file, path)
    with tempfile.TemporaryDirectory() as folder:
        file_path = Path(folder) / "model.weights.h5"  # Keras determines the format by the name.
        if is_archive(path):
            # Unpacked as a whole it is checked; jumps within it skip that, and are slow.
            with zipfile.ZipFile(path) as archive:
                archive.extract(file_path.name, folder)
        else:
            file_path.symlink_to(path.resolve())
        try:
            model.load_weights(file_path)
        except (ValueError, KeyError) as e:
            raise UserCodeError(
                f"The weights of {path} do not fit the model: {e}",
                hint="Use the weights that belong to this model.",
            ) from e


def _assign_arrays(
    model: keras.Model, arrays_by_layer: dict[str, list[np.ndarray]], path: Path
) -> None:
    """Assign arrays to the weights of a model's layers.

    Layers are matched by name, or by order if the names in the file and the model differ.

    Args:
        model: The built model.
        arrays_by_layer: The arrays of each layer with weights, trainable ones first. Arrays of the
            model itself are removed from it.
        path: The file or folder of the arrays, for messages.

    Raises:
        UserCodeError: The arrays do not fit the model.
    """
    top_arrays = arrays_by_layer.pop(hdf5.TOP_LEVEL, [])
    variables_by_layer = {
        layer.name: variables for layer in model.layers if (variables := _variables(layer))
    }
    if variables_by_layer.keys() == arrays_by_layer.keys():
        arrays_by_layer = {name: arrays_by_layer[name] for name in variables_by_layer}
    elif len(variables_by_layer) != len(arrays_by_layer):
        raise UserCodeError(
            f"The weights of {path} do not fit the model: the file has {len(arrays_by_layer)}"
            f" layers with weights, the model has {len(variables_by_layer)}.",
            received=f"the layers {', '.join(arrays_by_layer) or '(none)'}",
            hint=f"Use weights of the model's layers: {', '.join(variables_by_layer) or '(none)'}.",
        )
    arrays_in_order = [*arrays_by_layer.values()]
    if top_arrays:
        in_layers = {id(v) for variables in variables_by_layer.values() for v in variables}
        variables_by_layer[hdf5.TOP_LEVEL] = [
            v for v in _variables(model) if id(v) not in in_layers
        ]
        arrays_in_order.append(top_arrays)
    # Check all arrays before the first assignment.
    pairs: list[tuple[Any, np.ndarray]] = []
    for (name, variables), arrays in zip(variables_by_layer.items(), arrays_in_order, strict=True):
        pairs += zip(variables, _fit_arrays(name, variables, arrays, path), strict=True)
    for variable, array in pairs:
        variable.assign(array)


def _variables(layer: keras.Layer) -> list[Any]:
    return [*layer.trainable_weights, *layer.non_trainable_weights]


def _fit_arrays(
    layer: str, variables: Sequence[Any], arrays: Sequence[np.ndarray], path: Path
) -> list[np.ndarray]:
    if len(variables) != len(arrays):
        raise UserCodeError(
            f"The weights of {path} do not fit the layer {layer!r}: it has {len(variables)}"
            f" weights, the file has {len(arrays)}.",
            received=f"shapes {_shapes(arrays)} for {_shapes(variables)}",
            hint="Use the weights that belong to this model.",
        )
    converted = _convert_cudnn(variables, list(arrays))
    for variable, array in zip(variables, converted, strict=True):
        if tuple(variable.shape) != array.shape:
            raise UserCodeError(
                f"The weights of {path} do not fit {variable.name!r} of the layer {layer!r}.",
                received=f"shape {array.shape} for {tuple(variable.shape)}",
                hint="Use the weights that belong to this model.",
            )
    return converted


def _shapes(values: Sequence[Any]) -> str:
    return ", ".join(str(tuple(value.shape)) for value in values) or "(none)"


def _convert_cudnn(variables: Sequence[Any], arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Convert arrays of Keras 2's CuDNN layers, recognized by their longer bias.

    CuDNN layers have transposed kernels for each gate and a second bias.
    """
    for i in range(2, len(arrays)):
        target_shape, shape = tuple(variables[i].shape), arrays[i].shape
        if len(shape) != 1 or not target_shape or arrays[i - 1].ndim != 2:
            continue
        units = arrays[i - 1].shape[0]
        is_lstm = target_shape == (4 * units,) and shape == (8 * units,)
        is_gru = target_shape == (2, 3 * units) and shape == (6 * units,)
        if not is_lstm and not is_gru:
            continue
        num_gates = 4 if is_lstm else 3
        arrays[i - 2] = _transpose_gates(arrays[i - 2], num_gates)
        arrays[i - 1] = _transpose_gates(arrays[i - 1], num_gates)
        biases = arrays[i].reshape(2, -1)
        arrays[i] = biases.sum(axis=0) if is_lstm else biases
    return arrays


def _transpose_gates(kernels: np.ndarray, num_gates: int) -> np.ndarray:
    gates = np.split(kernels, num_gates, axis=1)
    return np.concatenate([gate.reshape(gate.shape[::-1]).T for gate in gates], axis=1)


def _require_compatible_writer(group: h5py.Group, path: Path) -> None:
    """Reject files of Theano and CNTK, whose kernels are mirrored, and of Keras 1."""
    backend = hdf5.text_attribute(group, "backend")
    if backend in ("theano", "cntk"):
        raise UserCodeError(
            f"The weights of {path} were written by a backend that mirrors its kernels.",
            received={"backend": backend},
            hint="Load them with Keras 2 on TensorFlow and save them again.",
        )
    version = hdf5.text_attribute(group, "keras_version")
    if not version or version.startswith("1."):
        raise UserCodeError(
            f"The weights of {path} were written by Keras 1.",
            received={"keras_version": version},
            hint="Load them with Keras 2.2 and save them again.",
        )


def _reject_surplus(model: keras.Model, file: h5py.File, path: Path) -> None:
    """Reject a file with more weights than the model, which Keras would silently ignore."""
    names = hdf5.all_datasets(file)
    num_stored = sum(not name.startswith(("optimizer/", "metrics/")) for name in names)
    num_variables = len(model.variables)
    if num_stored > num_variables:
        raise UserCodeError(
            f"The weights of {path} do not fit the model: the file has {num_stored} weights, the"
            f" model has {num_variables}.",
            received=f"shapes {_shapes(model.variables)} in the model",
            hint="Use the weights that belong to this model.",
        )
