"""Assign the weights in a file to a model: all of them, or none and an error that says why."""

import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.files.definition import ARCHIVE_WEIGHTS
from edl_horovod.frameworks.keras.files.hdf5 import (
    holds_named_layers,
    layer_datasets,
    open_hdf5,
    text_attribute,
    weights_group,
)

__all__ = ["assign_archive_weights", "assign_arrays", "assign_file_weights"]

_CURRENT_SUFFIX = ".weights.h5"
_CURRENT_GROUPS = frozenset({"_layer_checkpoint_dependencies", "layers", "vars"})
_TOP = "top_level_model_weights"


def assign_file_weights(model: keras.Model, path: Path) -> None:
    """Assign the weights in an HDF5 file of a whole model or of weights alone.

    Args:
        model: The built model.
        path: An HDF5 file in the format `.weights.h5` or the earlier one.

    Raises:
        UserCodeError: The weights do not fit the model, or the file has another format.
    """
    with open_hdf5(path) as file:
        group = weights_group(file)
        if holds_named_layers(group):
            _require_compatible_writer(group, path)
            arrays = {
                name: [dataset[()] for dataset in datasets]
                for name, datasets in layer_datasets(group, path).items()
            }
            assign_arrays(model, arrays, path)
            return
        if not _CURRENT_GROUPS & set(file):
            raise UserCodeError(
                f"{path} does not contain weights of a Keras model.",
                received=f"the groups {', '.join(file) or '(none)'}",
                hint="Write the file with model.save_weights.",
            )
        _reject_surplus(model, file, path)
    _load_current(model, path, path)


def assign_archive_weights(model: keras.Model, path: Path) -> None:
    """Assign the weights in a Keras archive.

    Args:
        model: The built model.
        path: The archive, already checked.

    Raises:
        UserCodeError: The weights do not fit the model.
    """
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as archive:
        unpacked = Path(archive.extract(ARCHIVE_WEIGHTS, folder))
        with open_hdf5(unpacked) as file:
            _reject_surplus(model, file, path)
        _load_current(model, unpacked, path)


def assign_arrays(
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
    top_arrays = arrays_by_layer.pop(_TOP, [])
    variables_by_layer = {layer.name: _variables(layer) for layer in model.layers}
    variables_by_layer = {
        name: variables for name, variables in variables_by_layer.items() if variables
    }
    if variables_by_layer.keys() == arrays_by_layer.keys():
        pairs = [
            (name, variables_by_layer[name], arrays_by_layer[name]) for name in variables_by_layer
        ]
    elif len(variables_by_layer) == len(arrays_by_layer):
        pairs = [
            (name, variables, arrays)
            for (name, variables), arrays in zip(
                variables_by_layer.items(), arrays_by_layer.values(), strict=True
            )
        ]
    else:
        raise UserCodeError(
            f"The weights of {path} do not fit the model: the file has {len(arrays_by_layer)}"
            f" layers with weights, the model has {len(variables_by_layer)}.",
            received=f"the layers {', '.join(arrays_by_layer) or '(none)'}",
            hint=f"Use weights of the model's layers: {', '.join(variables_by_layer) or '(none)'}.",
        )
    if top_arrays:
        pairs.append((_TOP, _top_level_variables(model), top_arrays))
    # Check all arrays before the first assignment.
    values = [(v, _fit_arrays(name, v, arrays, path)) for name, v, arrays in pairs]
    for variables, arrays in values:
        for variable, array in zip(variables, arrays, strict=True):
            variable.assign(array)


def _variables(layer: keras.Layer) -> list[Any]:
    return [*layer.trainable_weights, *layer.non_trainable_weights]


def _top_level_variables(model: keras.Model) -> list[Any]:
    """List the variables of the model that do not belong to a layer."""
    layer_variable_ids = {id(variable) for layer in model.layers for variable in _variables(layer)}
    return [variable for variable in _variables(model) if id(variable) not in layer_variable_ids]


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
    backend = text_attribute(group, "backend")
    if backend in ("theano", "cntk"):
        raise UserCodeError(
            f"The weights of {path} were written by a backend that mirrors its kernels.",
            received={"backend": backend},
            hint="Load them with Keras 2 on TensorFlow and save them again.",
        )
    version = text_attribute(group, "keras_version")
    if not version or version.startswith("1."):
        raise UserCodeError(
            f"The weights of {path} were written by Keras 1.",
            received={"keras_version": version},
            hint="Load them with Keras 2.2 and save them again.",
        )


def _reject_surplus(model: keras.Model, file: h5py.File, path: Path) -> None:
    """Reject a file with more weights than the model, which Keras would silently ignore."""
    num_stored = 0

    def count(name: str, value: Any) -> None:
        nonlocal num_stored
        if isinstance(value, h5py.Dataset) and not name.startswith(("optimizer/", "metrics/")):
            num_stored += 1

    file.visititems(count)
    num_variables = len(model.variables)
    if num_stored > num_variables:
        raise UserCodeError(
            f"The weights of {path} do not fit the model: the file has {num_stored} weights, the"
            f" model has {num_variables}.",
            received=f"shapes {_shapes(model.variables)} in the model",
            hint="Use the weights that belong to this model.",
        )


def _load_current(model: keras.Model, path: Path, label: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # Keras determines the format by the name.
        link = Path(folder) / f"model{_CURRENT_SUFFIX}"
        link.symlink_to(path.resolve())
        try:
            model.load_weights(link)
        except (ValueError, KeyError) as e:
            raise UserCodeError(
                f"The weights of {label} do not fit the model: {e}",
                hint="Use the weights that belong to this model.",
            ) from e
