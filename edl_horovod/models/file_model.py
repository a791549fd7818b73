"""A model that lies in files, as a model spec describes it, and what a framework makes of one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from edl_horovod.spec import ElasticDLSpec

__all__ = ["CustomObject", "FileModel", "FileModelSummary", "FileModels", "LayerSummary"]


@dataclass(frozen=True, kw_only=True)
class CustomObject:
    """A class or function that a model's files name and do not hold."""

    key: str
    """The name in the model's files."""
    value: str
    """The name in the Python file."""
    path: Path
    """The Python file that defines it."""


@dataclass(frozen=True, kw_only=True)
class FileModel:
    """A model in files: one of `definition` and `architecture` is there."""

    name: str
    definition: Path | None = None
    """The whole model: `.h5`, `.keras`, the folder of a SavedModel, or `.pt`."""
    architecture: Path | None = None
    """The layers as Keras' JSON, or the Python file of a PyTorch class."""
    weights: Path | None = None
    """Weights alone."""
    custom_objects: tuple[CustomObject, ...] = ()
    compile_options: Mapping[str, Any] = field(default_factory=dict)
    """`optimizer`, `loss` and `metrics` as the spec has them; what is missing is the file's."""
    is_trusted: bool = False
    """Whether code that the files hold may run."""


@dataclass(frozen=True, kw_only=True)
class LayerSummary:
    """A layer, as the files describe it."""

    name: str
    kind: str
    """Its class."""
    shape: str
    """Of its output, or of its parameters; empty where the files do not say."""
    num_parameters: int | None
    """None where the files do not say."""


@dataclass(frozen=True, kw_only=True)
class FileModelSummary:
    """What can be said of a model's files without running anything of them."""

    kind: str
    """What the files are: `HDF5 of Keras 2.2.4`."""
    layers: tuple[LayerSummary, ...]
    optimizer: str
    loss: str
    unsafe: tuple[str, ...]
    """What would run code, each with its place: `Lambda layer 'scale' of model.h5`."""


class FileModels(Protocol):
    """What a framework makes of models in files; the module `file_models` in its folder."""

    def summarize(self, model: FileModel) -> FileModelSummary:
        """Describe the files without running anything of them.

        Raises:
            UserCodeError: A file is not there, or is not what its name claims.
        """

    def spec_of(self, model: FileModel) -> type[ElasticDLSpec]:
        """A spec class whose `create_*` methods give what the files and the options hold.

        Raises:
            UserCodeError: The files hold code and are not trusted, lack something, do not fit each
                other, or an option names nothing.
        """
