"""A model that lies in files, as a model spec describes it, and what a framework makes of one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from edl_horovod.config.model_spec import COMPILE_KEYS, MODEL_KINDS, map_paths
from edl_horovod.errors import UserCodeError
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
]

_LABELS = re.compile(r"(?:y|label|labels|target|targets)(?:_\w+)?")


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
    """A model in files: one of `definition` and `architecture` is there.

    Who makes it has seen to it that its Python files may run: they lie in the user's model zoo, or
    the user trusts them.
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
    """`optimizer`, `loss` and `metrics` as the spec has them; what is missing is the file's."""
    is_trusted: bool = False
    """Whether code that the model's files hold (pickles, Lambda layers, SavedModels) may run."""


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


@dataclass(frozen=True)
class WrittenModel:
    """The files that a model of a zoo was written to."""

    spec: Mapping[str, Any]
    """The keys that name and complete them; paths are relative to their folder."""
    left_out: tuple[str, ...]
    """What of the model they do not hold, each as a clause."""


class FileModels(Protocol):
    """What a framework makes of models in files; the module `file_models` in its folder."""

    def summarize(self, model: FileModel) -> FileModelSummary:
        """Describe the files without running anything of them.

        Raises:
            UserCodeError: A file is not there, or is not what its name claims.
        """

    def write(self, loaded: LoadedSpec, folder: Path) -> WrittenModel:
        """Write a model of a zoo, with its first weights, into an empty folder.

        Raises:
            UserCodeError: The model cannot be made, or files cannot hold it.
        """

    def spec_of(self, model: FileModel) -> type[ElasticDLSpec]:
        """A spec class whose `create_*` methods give what the files and the options hold.

        Raises:
            UserCodeError: The files hold code and are not trusted, lack something, do not fit each
                other, or an option names nothing.
        """


@dataclass(frozen=True)
class ColumnRoles:
    """Which columns of the records are features, and which is the label."""

    features: tuple[str, ...]
    """The names, in the order of the columns."""
    label: str
    """Empty where there is none, as in a prediction."""


def file_model(section: Mapping[str, Any], folder: Path, *, is_trusted: bool) -> FileModel:
    """The model that a section describes.

    Args:
        section: Its `spec` is checked, and is a mapping.
        folder: What relative paths in it begin at.
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
            CustomObject(key=each["key"], value=each["value"], path=Path(each["path"]))
            for each in objects
        ),
        compile_options=_compile_options(section["name"], spec),
        is_trusted=is_trusted,
    )


def column_roles(columns: Sequence[str], *, label: str, needs_label: bool) -> ColumnRoles:
    """Find the label among the columns of records that no input_fn makes examples of.

    It is the column called y, label, labels, target or targets, also as in `y_train`; all others
    are features.

    Args:
        columns: The names of the columns.
        label: Names the model in messages.
        needs_label: Whether there must be one.

    Raises:
        UserCodeError: There is none or are several, or nothing else is there.
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
    """The error for records that no example can be made of without the user's function."""
    return UserCodeError(
        f"The model {label} is in files that say nothing of the data, and its records are not"
        " columns of numbers.",
        received=received,
        hint="Give data with columns (.npz, .parquet), or set input_fn=... to a function that makes"
        " features and labels of the records.",
    )


def _compile_options(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    if MODEL_KINDS[name].framework != "torch":
        return dict(next((spec[key] for key in COMPILE_KEYS if spec.get(key)), {}))
    given = {"optimizer": spec.get("optimizer"), "loss": spec.get("loss_criterion")}
    return {key: value for key, value in given.items() if value}
