"""Open the HDF5 files of models: one that points out of itself, or is no such file, is refused."""

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from edl_horovod.errors import UserCodeError

__all__ = [
    "MAX_EXPANSION",
    "SMALL_BYTES",
    "holds_named_layers",
    "json_attribute",
    "layer_datasets",
    "opened",
    "require_file",
    "text_attribute",
    "weights_group",
]

SMALL_BYTES = 64 << 20
"""What is declared up to here needs no other check: any machine has room for it."""
MAX_EXPANSION = 100
"""How often larger than its bytes in the file something may be; weights hardly compress at all."""


def require_file(path: Path) -> None:
    """Require that a file of a model is there.

    Raises:
        UserCodeError: It is not, or is a folder.
    """
    if not path.is_file():
        is_what = "is a folder" if path.is_dir() else "is not there"
        raise UserCodeError(
            f"The model's file {path} {is_what}.", cure="Give the path of the file."
        )


@contextlib.contextmanager
def opened(path: Path, content: BinaryIO | None = None) -> Iterator[h5py.File]:
    """A model's HDF5 file, after a look at all that it declares.

    Args:
        path: The file, for messages; and what is opened where there is no content.
        content: The bytes, as those of a member of an archive.

    Raises:
        UserCodeError: It is no HDF5 file, is damaged, refers to other files, or declares far more
            than it holds.
    """
    if content is None:
        require_file(path)
        if not h5py.is_hdf5(path):
            with path.open("rb") as file:
                begin = file.read(16)
            raise UserCodeError(
                f"{path} is no HDF5 file, whatever its name says.",
                received=f"a file that begins with {begin!r}",
                cure="Give the file that model.save or model.save_weights wrote.",
            )
    try:
        file = h5py.File(content or path, "r")
    except OSError as e:
        raise UserCodeError(
            f"The HDF5 file {path} is damaged: {e}.", cure="Copy or write it again."
        ) from e
    with file:
        _require_own_content(file, path)
        yield file


def text_attribute(group: h5py.Group, name: str) -> str:
    """An attribute as text, whether it was written as text or as bytes; empty where it is not."""
    return _text(group.attrs[name]) if name in group.attrs else ""


def json_attribute(group: h5py.Group, name: str, path: Path) -> Any:
    """What an attribute holds as JSON; None where it is not there.

    Raises:
        UserCodeError: It is not JSON.
    """
    text = text_attribute(group, name)
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise UserCodeError(f"The attribute {name} of {path} is not JSON: {e}.") from e


def weights_group(file: h5py.File) -> h5py.Group:
    """The group of the layers' weights, in the file of a whole model or of weights alone."""
    found = file.get("model_weights")
    return found if isinstance(found, h5py.Group) else file


def holds_named_layers(group: h5py.Group) -> bool:
    """Whether weights lie in groups by layer, as before Keras' `.weights.h5`."""
    return "layer_names" in group.attrs or "layer_names0" in group.attrs


def layer_datasets(group: h5py.Group, path: Path) -> dict[str, list[h5py.Dataset]]:
    """The weights of each layer that has some, in the order of the file.

    Raises:
        UserCodeError: The file names weights that it lacks, or that are not numbers.
    """
    names = _names(group, "layer_names")
    layers = {name: _datasets(group, name, path) for name in names}
    top = "top_level_model_weights"
    if top in group and (own := _datasets(group, top, path)):
        layers[top] = own
    return {name: datasets for name, datasets in layers.items() if datasets}


def _datasets(group: h5py.Group, name: str, path: Path) -> list[h5py.Dataset]:
    layer = group.get(name)
    found = []
    for weight in _names(layer, "weight_names") if isinstance(layer, h5py.Group) else [None]:
        dataset = layer.get(weight) if weight is not None else None
        if not isinstance(dataset, h5py.Dataset) or dataset.dtype.kind not in "fiub":
            raise UserCodeError(
                f"{path} names the weights {weight or ''!r} of the layer {name!r}, which it does"
                " not hold as numbers.",
                cure="Copy or write it again.",
            )
        found.append(dataset)
    return found


def _names(group: h5py.Group, attribute: str) -> list[str]:
    """A list of names; a long one is cut into numbered attributes."""
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


def _require_own_content(file: h5py.File, path: Path) -> None:
    """Require that all data lie in this file, and that it holds about what it declares."""

    # What is returned ends the visit; HDF5 does not let exceptions through.
    def look_at_link(name: str | bytes, link: Any) -> UserCodeError | None:
        if isinstance(link, h5py.HardLink):
            return None
        to = getattr(link, "filename", "") or getattr(link, "path", "")
        return _points_elsewhere(path, name, f"a link ({type(link).__name__}) to {to!r}")

    def look_at_object(name: str | bytes, found: Any) -> UserCodeError | None:
        if not isinstance(found, h5py.Dataset):
            return None
        if found.external:
            return _points_elsewhere(path, name, f"data in the file {found.external[0][0]!r}")
        if found.is_virtual:
            return _points_elsewhere(path, name, "a virtual dataset")
        declared = math.prod(found.shape or ()) * found.dtype.itemsize
        stored = found.id.get_storage_size()
        if declared <= SMALL_BYTES or declared <= MAX_EXPANSION * stored:
            return None
        return UserCodeError(
            f"{path} declares {declared:,} bytes in {name!r} and holds {stored:,} of them.",
            received=f"shape {found.shape}",
            cure="Such a file is made to fill the memory: do not use it.",
        )

    error = file.visititems_links(look_at_link) or file.visititems(look_at_object)
    if error is not None:
        raise error


def _points_elsewhere(path: Path, name: str | bytes, received: str) -> UserCodeError:
    return UserCodeError(
        f"{path} refers to what lies outside of it, at {name!r}.",
        received=received,
        cure="No model that Keras writes does that: do not use the file.",
    )
