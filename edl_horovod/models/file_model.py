"""A model in files, as a model spec describes it: its parts, its custom code, its framework's API.

Custom classes and functions that the model's files refer to are imported from Python files, if
these may run.
"""

import hashlib
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from edl_horovod.config.model_spec import COMPILE_KEYS, MODEL_KINDS, map_paths
from edl_horovod.errors import UserCodeError, did_you_mean
from edl_horovod.models.calling import user_code
from edl_horovod.models.lookup import import_root
from edl_horovod.models.modules import load_module, zoo_in_use
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import ElasticDLSpec

__all__ = [
    "ColumnRoles",
    "CustomObject",
    "FileModel",
    "FileModelSummary",
    "FileModels",
    "LayerSummary",
    "WrittenModel",
    "column_roles",
    "file_model",
    "records_without_columns",
    "import_object",
    "load_custom_objects",
    "may_import",
]

_LABELS = re.compile(r"(?:y|label|labels|target|targets)(?:_\w+)?")

_MODULE_PREFIX = "_edl_custom_"


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
    """A model in files: either `definition` or `architecture` is set.

    The code that creates one has checked that its Python files may run: they lie in the user's
    model zoo, or the user trusts them.
    """

    name: str
    definition: Path | None = None
    """The whole model: `.h5`, `.keras`, the folder of a SavedModel, or `.pt`."""
    architecture: Path | None = None
    """The layers as Keras' JSON, or the Python file of a PyTorch class."""
    architecture_class: str = ""
    """The class in that Python file; empty for JSON."""
    weights: Path | None = None
    """Weights alone."""
    custom_objects: tuple[CustomObject, ...] = ()
    compile_options: Mapping[str, Any] = field(default_factory=dict)
    """`optimizer`, `loss` and `metrics` of the spec; the model's file provides the others."""
    is_trusted: bool = False
    """Whether code that the model's files hold (pickles, Lambda layers, SavedModels) may run."""


@dataclass(frozen=True, kw_only=True)
class LayerSummary:
    """A layer, as the files describe it."""

    name: str
    kind: str
    """Its class."""
    shape: str
    """The shape of its output, or of its parameters; empty where the files do not say."""
    num_parameters: int | None
    """None where the files do not say."""


@dataclass(frozen=True, kw_only=True)
class FileModelSummary:
    """A description of a model's files, made without running their code."""

    kind: str
    """The format of the files: `HDF5 of Keras 2.2.4`."""
    layers: tuple[LayerSummary, ...]
    optimizer: str
    loss: str
    unsafe: tuple[str, ...]
    """Parts that would run code, each with its place: `Lambda layer 'scale' of model.h5`."""


@dataclass(frozen=True)
class WrittenModel:
    """The files that a model of a zoo was written to."""

    spec: Mapping[str, Any]
    """The keys that name and complete them; paths are relative to their folder."""
    left_out: tuple[str, ...]
    """Parts of the model that the files do not hold, each as a clause."""


class FileModels(Protocol):
    """A framework's functions for models in files: its module `file_models`."""

    def summarize(self, model: FileModel) -> FileModelSummary:
        """Describe the files without running their code.

        Raises:
            UserCodeError: A file does not exist, or is not of the format that its name claims.
        """

    def write(self, loaded: LoadedSpec, folder: Path) -> WrittenModel:
        """Write a model of a zoo, with its initial weights, into an empty folder.

        Raises:
            UserCodeError: The model cannot be created, or files cannot hold it.
        """

    def spec_of(self, model: FileModel) -> type[ElasticDLSpec]:
        """A spec class whose `create_*` methods return what the files and the options describe.

        Raises:
            UserCodeError: The files hold code and are not trusted, lack something, or do not fit
                together, or an option has an unknown name.
        """


@dataclass(frozen=True)
class ColumnRoles:
    """Which columns of the records are features, and which is the label."""

    features: tuple[str, ...]
    """The names, in the order of the columns."""
    label: str
    """Empty where there is no label, as in a prediction."""


def file_model(section: Mapping[str, Any], folder: Path, *, is_trusted: bool) -> FileModel:
    """The model that a section describes.

    Args:
        section: The setting `model`; its `spec` is checked, and is a mapping.
        folder: The folder that relative paths start from.
        is_trusted: Whether code that the model's files hold may run.
    """
    spec = map_paths(section["spec"], lambda _, path: str(folder / path))
    architecture, _, symbol = spec.get("model_architecture", "").partition(".py:")
    objects = spec.get("custom_objects") or ()

    def path_of(key: str) -> Path | None:
        return Path(spec[key]) if spec.get(key) else None

    return FileModel(
        name=spec["model_name"],
        definition=path_of("model_definition"),
        architecture=Path(f"{architecture}.py") if symbol else path_of("model_architecture"),
        architecture_class=symbol,
        weights=path_of("model_weights"),
        custom_objects=tuple(
            CustomObject(key=entry["key"], value=entry["value"], path=Path(entry["path"]))
            for entry in objects
        ),
        compile_options=_compile_options(section["name"], spec),
        is_trusted=is_trusted,
    )


def column_roles(columns: Sequence[str], *, label: str, needs_label: bool) -> ColumnRoles:
    """Find the label among the columns of records that no input_fn turns into examples.

    The label is the column called y, label, labels, target or targets, also as in `y_train`; all
    other columns are features.

    Args:
        columns: The names of the columns.
        label: The model's name in messages.
        needs_label: Whether there must be a label.

    Raises:
        UserCodeError: There is no label, there are several, or there are no other columns.
    """
    labels = [name for name in columns if _LABELS.fullmatch(name.lower())]
    features = tuple(name for name in columns if name not in labels)
    if len(labels) > 1 or not features or (needs_label and not labels):
        raise UserCodeError(
            f"The records of {label} must have one column called y, label or target (or y_train and"
            " the like), and others, which are the features.",
            received=f"columns {', '.join(columns)}",
            hint="Rename a column, leave some out by data_plan.columns=[...], or set input_fn=..."
            " to a function of the records.",
        )
    return ColumnRoles(features, labels[0] if labels else "")


def records_without_columns(label: str, received: str) -> UserCodeError:
    """The error for records that only a user's function could turn into examples."""
    return UserCodeError(
        f"The model {label} is in files that do not describe the data, and its records are not"
        " columns of numbers.",
        received=received,
        hint="Give data with columns (.npz, .parquet), or set input_fn=... to a function that makes"
        " features and labels of the records.",
    )


def may_import(path: Path, *, is_trusted: bool) -> bool:
    """Whether a Python file that a spec names may run: a trusted one, or one of the zoo in use."""
    zoo = zoo_in_use()
    return is_trusted or (zoo is not None and path.resolve().is_relative_to(import_root(zoo)))


def load_custom_objects(model: FileModel) -> dict[str, Any]:
    """The classes and functions that a model spec lists, by the names in the model's files.

    Raises:
        UserCodeError: A file may not be imported, does not exist, raises, or lacks a name.
    """
    return {
        custom_object.key: import_object(custom_object, is_trusted=model.is_trusted)
        for custom_object in model.custom_objects
    }


def import_object(custom_object: CustomObject, *, is_trusted: bool) -> Any:
    """Import a class or function from the Python file that a model spec names.

    Raises:
        UserCodeError: The file may not be imported, does not exist, raises, or lacks the name.
    """
    path = custom_object.path.resolve()
    if not path.is_file() or path.suffix != ".py":
        raise UserCodeError(
            f"{custom_object.key!r} is to come from {path}, which is not an existing Python file.",
            hint="Give the path of a .py file.",
        )
    if not may_import(path, is_trusted=is_trusted):
        raise UserCodeError(
            f"{custom_object.key!r} is to come from {path}, whose code would run here.",
            hint="Put the file into the model zoo, or set trust=model.",
        )
    names = vars(_custom_module(path))
    if custom_object.value not in names:
        public_names = [name for name in names if not name.startswith("_")]
        raise UserCodeError(
            f"{path} does not define {custom_object.value!r}.",
            received={"key": custom_object.key, "value": custom_object.value},
            hint=f"It defines: {', '.join(public_names) or 'nothing'}."
            f"{did_you_mean(custom_object.value, public_names)}",
        )
    return names[custom_object.value]


def _compile_options(kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a model spec gives for compiling a model of this kind."""
    if MODEL_KINDS[kind].framework != "torch":
        # Two spellings of one key; a spec with both has been refused.
        return dict(next((spec[key] for key in COMPILE_KEYS if spec.get(key)), {}))
    options = {"optimizer": spec.get("optimizer"), "loss": spec.get("loss_criterion")}
    return {key: value for key, value in options.items() if value}


def _custom_module(path: Path) -> ModuleType:
    zoo = zoo_in_use()
    if zoo is not None and path.is_relative_to(zoo):
        return load_module(path, zoo=zoo)
    # `load_module` would make this folder the zoo in use, whose files must stay importable.
    name = f"{_MODULE_PREFIX}{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with user_code(f"Loading {path}", root=path.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
