"""Open the HDF5 files of models; damaged files and references to other files are rejected."""

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from edl_horovod.errors import UserCodeError

SMALL_BYTES = 64 << 20
"""Declared sizes up to this limit are accepted, because they fit in any machine's memory."""
TOP_LEVEL = "top_level_model_weights"
"""The name under which the weights of the model itself are among those of the layers."""
MAX_EXPANSION = 100
"""Maximum ratio of a declared size to the bytes in the file; weights hardly compress."""


def require_file(path: Path) -> None:
    """Require that a model's file exists.

    Raises:
        UserCodeError: The file does not exist, or is a folder.
    """
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise UserCodeError(
            f"The model's file {path} {problem}.", hint="Give the path of the file."
        )


@contextlib.contextmanager
def open_hdf5(path: Path, content: BinaryIO | None = None) -> Iterator[h5py.File]:
    """Open a model's HDF5 file after checking all its objects.

    Args:
        path: The file to open if there is no `content`; else its name in messages.
        content: The file's content, such as a member of an archive.

    Raises:
        UserCodeError: The file is not HDF5, is damaged, refers to other files, or declares far
            more bytes than it contains.
    """
    if content is None:
        require_file(path)
        if not h5py.is_hdf5(path):
            with path.open("rb") as file:
                first_bytes = file.read(16)
            raise UserCodeError(
                f"{path} is not an HDF5 file.",
                received=f"a file that starts with {first_bytes!r}",
                hint="Use the file that model.save or model.save_weights wrote.",
            )
    try:
        file = h5py.File(content or path, "r")
    except OSError as e:
        raise UserCodeError(
            f"The HDF5 file {path} is damaged: {e}.", hint="Copy or write the file again."
        ) from e
    with file:
        _require_self_contained(file, path)
        yield file


def text_attribute(group: h5py.Group, name: str) -> str:
    """Read an attribute that was written as text or bytes; empty if it is missing."""
    return _text(group.attrs[name]) if name in group.attrs else ""


def json_attribute(group: h5py.Group, name: str, path: Path) -> Any:
    """Parse an attribute as JSON; None if it is missing.

    Raises:
        UserCodeError: The attribute is not JSON.
    """
    text = text_attribute(group, name)
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise UserCodeError(f"The attribute {name} of {path} is not JSON: {e}.") from e


def weights_group(file: h5py.File) -> h5py.Group:
    """Return the group of the layers' weights in a file of a whole model or of weights alone."""
    group = file.get("model_weights")
    return group if isinstance(group, h5py.Group) else file


def all_datasets(group: h5py.Group) -> dict[str, h5py.Dataset]:
    """Return the datasets of a group and its subgroups by their paths in the group."""
    datasets: dict[str, h5py.Dataset] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, h5py.Dataset):
            datasets[name] = value

    group.visititems(add)
    return datasets


def layer_datasets(group: h5py.Group, path: Path) -> dict[str, list[h5py.Dataset]] | None:
    """Return the weights of each layer with weights, in the order of the file.

    The format `.weights.h5` does not group them by the layers' names; then the result is None.

    Raises:
        UserCodeError: Weights that the file lists are missing or not numeric.
    """
    if "layer_names" not in group.attrs and "layer_names0" not in group.attrs:
        return None
    names = _names(group, "layer_names")
    if TOP_LEVEL in group:
        names.append(TOP_LEVEL)
    return {name: datasets for name in names if (datasets := _datasets(group, name, path))}


def _datasets(group: h5py.Group, name: str, path: Path) -> list[h5py.Dataset]:
    layer = group.get(name)
    datasets = []
    for weight in _names(layer, "weight_names") if isinstance(layer, h5py.Group) else [None]:
        dataset = layer.get(weight) if weight is not None else None
        if not isinstance(dataset, h5py.Dataset) or dataset.dtype.kind not in "fiub":
            raise UserCodeError(
                f"{path} lists the weights {weight or ''!r} of the layer {name!r}, but does not"
                " contain them as numbers.",
                hint="Copy or write the file again.",
            )
        datasets.append(dataset)
    return datasets


def _names(group: h5py.Group, attribute: str) -> list[str]:
    """Read a list of names; Keras splits a long list into numbered attributes."""
    if attribute in group.attrs:
        return [_text(name) for name in group.attrs[attribute]]
    names: list[str] = []
    while f"{attribute}{len(names)}" in group.attrs:
        names.append(f"{attribute}{len(names)}")
    return [_text(name) for part in names for name in group.attrs[part]]


def _text(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _require_self_contained(file: h5py.File, path: Path) -> None:
    """Require that all data are in this file and that declared sizes are plausible."""

    # A returned value ends the visit; HDF5 does not propagate exceptions.
    def check_link(name: str | bytes, link: Any) -> UserCodeError | None:
        if isinstance(link, h5py.HardLink):
            return None
        target = getattr(link, "filename", "") or getattr(link, "path", "")
        return _external_reference(path, name, f"a link ({type(link).__name__}) to {target!r}")

    def check_object(name: str | bytes, value: Any) -> UserCodeError | None:
        if not isinstance(value, h5py.Dataset):
            return None
        if value.external:
            return _external_reference(path, name, f"data in the file {value.external[0][0]!r}")
        if value.is_virtual:
            return _external_reference(path, name, "a virtual dataset")
        declared = math.prod(value.shape or ()) * value.dtype.itemsize
        stored = value.id.get_storage_size()
        if declared <= SMALL_BYTES or declared <= MAX_EXPANSION * stored:
            return None
        return UserCodeError(
            f"{path} declares {declared:,} bytes in {name!r} but contains only {stored:,} of them.",
            received=f"shape {value.shape}",
            hint="Do not use the file: it was probably made to exhaust the memory.",
        )

    error = file.visititems_links(check_link) or file.visititems(check_object)
    if error is not None:
        raise error


def _external_reference(path: Path, name: str | bytes, received: str) -> UserCodeError:
    return UserCodeError(
        f"{path} refers to data outside of the file, at {name!r}.",
        received=received,
        hint="Do not use the file: Keras does not write such references.",
    )
