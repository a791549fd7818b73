"""Put the weights of a file into a model: all of them, or none with a sentence that says why."""

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
    opened,
    text_attribute,
    weights_group,
)

__all__ = ["put_archive_weights", "put_arrays", "put_weights"]

_TODAYS_ENDING = ".weights.h5"
_TODAYS_GROUPS = frozenset({"_layer_checkpoint_dependencies", "layers", "vars"})
_TOP = "top_level_model_weights"


def put_weights(model: keras.Model, path: Path) -> None:
    """Give a model the weights of a file, of a whole model or of weights alone.

    Args:
        model: Built.
        path: HDF5, in Keras' layout of `.weights.h5` or in the one before.

    Raises:
        UserCodeError: They do not fit the model, or it is no such file.
    """
    with opened(path) as file:
        group = weights_group(file)
        if holds_named_layers(group):
            _require_same_axes(group, path)
            found = {name: [each[()] for each in sets] for name, sets in _sets(group, path)}
            put_arrays(model, found, path)
            return
        if not _TODAYS_GROUPS & set(file):
            raise UserCodeError(
                f"{path} holds no weights of a Keras model.",
                received=f"the groups {', '.join(file) or '(none)'}",
                cure="Write them with model.save_weights.",
            )
        _require_as_many(model, file, path)
    _put_todays(model, path, path)


def put_archive_weights(model: keras.Model, path: Path) -> None:
    """Give a model the weights in one of Keras' archives.

    Args:
        model: Built.
        path: The archive, which was looked through.

    Raises:
        UserCodeError: They do not fit the model.
    """
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as archive:
        unpacked = Path(archive.extract(ARCHIVE_WEIGHTS, folder))
        with opened(unpacked) as file:
            _require_as_many(model, file, path)
        _put_todays(model, unpacked, path)


def put_arrays(model: keras.Model, found: dict[str, list[np.ndarray]], path: Path) -> None:
    """Give a model the weights of its layers.

    Layers are found by their names; where no file and model agree on these, by their order.

    Args:
        model: Built.
        found: The arrays of each layer that has weights, trainable ones first.
        path: Where they are from, for messages.

    Raises:
        UserCodeError: They do not fit the model.
    """
    top = found.pop(_TOP, [])
    wanted = {layer.name: _variables(layer) for layer in model.layers}
    wanted = {name: variables for name, variables in wanted.items() if variables}
    if wanted.keys() == found.keys():
        pairs = [(name, wanted[name], found[name]) for name in wanted]
    elif len(wanted) == len(found):
        pairs = [
            (name, variables, arrays)
            for (name, variables), arrays in zip(wanted.items(), found.values(), strict=True)
        ]
    else:
        raise UserCodeError(
            f"The weights of {path} are of another model: it has {len(found)} layers with weights,"
            f" the model {len(wanted)}.",
            received=f"the layers {', '.join(found) or '(none)'}",
            cure=f"The model has {', '.join(wanted) or '(none)'}.",
        )
    if top:
        pairs.append((_TOP, _own_variables(model), top))
    # All are looked at before the first is changed.
    values = [(v, _fitting(name, v, arrays, path)) for name, v, arrays in pairs]
    for variables, arrays in values:
        for variable, array in zip(variables, arrays, strict=True):
            variable.assign(array)


def _sets(group: h5py.Group, path: Path) -> list[tuple[str, list[h5py.Dataset]]]:
    return list(layer_datasets(group, path).items())


def _variables(layer: keras.Layer) -> list[Any]:
    return [*layer.trainable_weights, *layer.non_trainable_weights]


def _own_variables(model: keras.Model) -> list[Any]:
    """Those of the model itself, which are in none of its layers."""
    inside = {id(each) for layer in model.layers for each in _variables(layer)}
    return [each for each in _variables(model) if id(each) not in inside]


def _fitting(
    layer: str, variables: Sequence[Any], arrays: Sequence[np.ndarray], path: Path
) -> list[np.ndarray]:
    if len(variables) != len(arrays):
        raise UserCodeError(
            f"The weights of {path} do not fit the layer {layer!r}: it has {len(variables)}, the"
            f" file {len(arrays)}.",
            received=f"shapes {_shapes(arrays)} for {_shapes(variables)}",
            cure="Give the weights that belong to this model.",
        )
    fitting = _of_cudnn(variables, list(arrays))
    for variable, array in zip(variables, fitting, strict=True):
        if tuple(variable.shape) != array.shape:
            raise UserCodeError(
                f"The weights of {path} do not fit {variable.name!r} of the layer {layer!r}.",
                received=f"shape {array.shape} for {tuple(variable.shape)}",
                cure="Give the weights that belong to this model.",
            )
    return fitting


def _shapes(values: Sequence[Any]) -> str:
    return ", ".join(str(tuple(each.shape)) for each in values) or "(none)"


def _of_cudnn(variables: Sequence[Any], arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Turn what Keras 2's CuDNN layers kept, known by their long bias, into what others keep.

    Each gate's kernels were kept transposed, and there was a second bias.
    """
    for i in range(2, len(arrays)):
        wanted, found = tuple(variables[i].shape), arrays[i].shape
        if len(found) != 1 or not wanted or arrays[i - 1].ndim != 2:
            continue
        units = arrays[i - 1].shape[0]
        is_lstm = wanted == (4 * units,) and found == (8 * units,)
        is_gru = wanted == (2, 3 * units) and found == (6 * units,)
        if not is_lstm and not is_gru:
            continue
        num_gates = 4 if is_lstm else 3
        arrays[i - 2] = _gates_transposed(arrays[i - 2], num_gates)
        arrays[i - 1] = _gates_transposed(arrays[i - 1], num_gates)
        biases = arrays[i].reshape(2, -1)
        arrays[i] = biases.sum(axis=0) if is_lstm else biases
    return arrays


def _gates_transposed(kernels: np.ndarray, num_gates: int) -> np.ndarray:
    gates = np.split(kernels, num_gates, axis=1)
    return np.concatenate([gate.reshape(gate.shape[::-1]).T for gate in gates], axis=1)


def _require_same_axes(group: h5py.Group, path: Path) -> None:
    """Theano's and CNTK's kernels are mirrored, and Keras 1 had others."""
    backend = text_attribute(group, "backend")
    if backend in ("theano", "cntk"):
        raise UserCodeError(
            f"The weights of {path} are those of another backend, which mirrors its kernels.",
            received={"backend": backend},
            cure="Load them with Keras 2 on TensorFlow, and save them there.",
        )
    version = text_attribute(group, "keras_version")
    if not version or version.startswith("1."):
        raise UserCodeError(
            f"The weights of {path} are those of Keras 1.",
            received={"keras_version": version},
            cure="Load them with Keras 2.2, and save them there.",
        )


def _require_as_many(model: keras.Model, file: h5py.File, path: Path) -> None:
    """Keras says nothing of weights in a file that a model has no place for."""
    num_found = 0

    def count(name: str, found: Any) -> None:
        nonlocal num_found
        if isinstance(found, h5py.Dataset) and not name.startswith(("optimizer/", "metrics/")):
            num_found += 1

    file.visititems(count)
    num_wanted = len(model.variables)
    if num_found > num_wanted:
        raise UserCodeError(
            f"The weights of {path} are of a larger model: it holds {num_found}, the model has"
            f" {num_wanted}.",
            received=f"shapes {_shapes(model.variables)} in the model",
            cure="Give the weights that belong to this model.",
        )


def _put_todays(model: keras.Model, path: Path, label: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # Keras knows the layout by the name.
        named = Path(folder) / f"model{_TODAYS_ENDING}"
        named.symlink_to(path.resolve())
        try:
            model.load_weights(named)
        except (ValueError, KeyError) as e:
            raise UserCodeError(
                f"The weights of {label} do not fit the model: {e}",
                cure="Give the weights that belong to this model.",
            ) from e
