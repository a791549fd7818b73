"""A model zoo that is generated from a model spec, so that a job uses it as any other zoo.

The name of its folder in the cache has a digest of the content, so the folder is written once and
then only read, and jobs with the same content share it (docs/adr/0025-models-in-files.md).
"""

import contextlib
import importlib
import inspect
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from edl_horovod.config.frameworks import FRAMEWORKS, model_kinds
from edl_horovod.config.model_spec import COMPILE_KEYS, check_spec, map_paths
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError, UserCodeError
from edl_horovod.files.cache import unwritable, user_cache
from edl_horovod.models import git_zoo, lookup, zoo_files
from edl_horovod.models.calling import user_code
from edl_horovod.models.child_process import call_in_child
from edl_horovod.models.modules import CustomObject, import_object
from edl_horovod.models.parts import REQUIRED
from edl_horovod.models.zoo import LoadedSpec, Overrides, load_spec
from edl_horovod.records import user_dataset
from edl_horovod.spec import ElasticDLSpec

_NAME = "model_of_spec"
"""Start of the names of all generated files: files of the user's zoo may lie beside them."""
MODEL_DEF = f"{_NAME}.Model"
"""The model in a generated zoo."""
_SPEC_FILE = f"{_NAME}.json"
_LABELS = re.compile(r"(?:y|label|labels|target|targets)(?:_\w+)?")
_CODE = '''\
"""The model of a model spec. edl_horovod wrote this file and what lies beside it."""

from pathlib import Path

from {file_models} import spec_of
from edl_horovod.models.spec_zoo import model_in

FILES = {files}
"""A trained model has them, too."""

Model = spec_of(model_in(Path(__file__).parent))
'''


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


def load_custom_objects(model: FileModel) -> dict[str, Any]:
    """The classes and functions that a model spec lists, by the names in the model's files.

    Raises:
        UserCodeError: A file may not be imported, does not exist, raises, or lacks a name.
    """
    return {
        custom_object.key: import_object(custom_object, is_trusted=model.is_trusted)
        for custom_object in model.custom_objects
    }


def is_needed(config: JobConfig) -> bool:
    """Whether a job's model is in files, and its zoo has not been generated yet."""
    return bool(config.model) and not config.model_def


def cache() -> Path:
    """The user's cache of generated zoos; only running jobs need its content."""
    return user_cache() / "models"


def with_zoo(config: JobConfig) -> JobConfig:
    """The settings with the generated zoo of a model in files; other settings are unchanged.

    Raises:
        ConfigError: The section is wrong, a file does not exist, or code is not trusted.
        UserCodeError: The function that returns the spec failed.
        OutputError: The cache cannot be written.
    """
    if not is_needed(config):
        return config
    is_trusted = config.trusts("model")
    needs_user_zoo = _needs_user_zoo(config)
    is_local = git_zoo.parse(config.model_zoo) is None or not needs_user_zoo
    zoo = Path(config.model_zoo) if is_local else git_zoo.ensure_local(config.model_zoo).path
    with _with_spec_mapping(config.model, zoo, is_trusted=is_trusted) as section:
        _require_usable(section, zoo, is_trusted=is_trusted)
        try:
            user_zoo = lookup.require_zoo(str(zoo)) if needs_user_zoo else None
            written = _write_zoo(section, user_zoo, is_trusted=is_trusted)
        except OSError as e:
            received = {"model.name": section["name"]}
            raise unwritable("The model zoo of the model spec", e, received) from e
    return replace(config, model_zoo=str(written), model_def=MODEL_DEF)


def _needs_user_zoo(config: JobConfig) -> bool:
    """Whether a setting names a function or a data set that may be in the user's own zoo."""
    names = [getattr(config, key) for key in REQUIRED]
    data = (config.data, config.validation_data)
    return any("." in name for name in names) or any(
        setting.startswith(f"{user_dataset.SCHEME}:") for setting in data
    )


def model_in(zoo: Path) -> FileModel:
    """The model in files of a generated zoo."""
    section = json.loads((zoo / _SPEC_FILE).read_text(encoding="utf-8"))
    return file_model(section, zoo, is_trusted=section["is_trusted"])


@contextlib.contextmanager
def _with_spec_mapping(
    section: Mapping[str, Any], zoo: Path, *, is_trusted: bool
) -> Iterator[dict[str, Any]]:
    """A section with its spec as a mapping; a function that returns the spec runs in a child.

    The folder into which such a function may write is removed when the block ends.

    Args:
        section: The setting `model`, checked.
        zoo: The user's model zoo, whose functions may run.
        is_trusted: Whether functions from elsewhere may run.

    Raises:
        ConfigError: The function may not run, or did not return a valid spec.
        UserCodeError: The function failed.
    """
    spec = section["spec"]
    if isinstance(spec, Mapping):
        yield dict(section)
        return
    module, _, function = spec.partition(":")
    inside = zoo / f"{module.replace('.', '/')}.py"
    if not is_trusted and not inside.is_file():
        raise ConfigError(
            "The function that returns the model spec is code, and it is not in the model zoo"
            f" ({zoo}).",
            received={"model.spec": spec},
            hint="If you trust its author, set trust=model.",
        )
    folders = [zoo] if inside.is_file() else [Path.cwd(), zoo]
    with tempfile.TemporaryDirectory(prefix="edl-spec-") as work:
        request = {"module": module, "function": function, "folders": [*map(str, folders)]}
        returned = call_in_child(call_for_spec, {**request, "work": work})
        check_spec(section["name"], returned)
        spec = map_paths(returned, lambda _, path: os.path.abspath(os.path.expanduser(path)))
        yield {**section, "spec": spec}


def _require_usable(section: Mapping[str, Any], zoo: Path, *, is_trusted: bool) -> None:
    """Refuse a section whose files do not exist, or whose Python files may not run.

    Args:
        section: The setting `model`; its `spec` is a mapping, with absolute paths.
        zoo: The user's model zoo, whose files may run.
        is_trusted: Whether files from elsewhere may run.

    Raises:
        ConfigError: A file does not exist or may not run.
    """

    def check_path(key: str, path: str) -> str:
        file = Path(path)
        if not file.exists():
            raise ConfigError(
                f"The file of model.spec.{key} does not exist.",
                received={f"model.spec.{key}": path},
                hint="Paths in a file of settings are relative to that file.",
            )
        is_in_zoo = zoo.is_dir() and file.resolve().is_relative_to(zoo.resolve())
        if file.suffix == ".py" and not is_trusted and not is_in_zoo:
            raise ConfigError(
                f"model.spec.{key} names Python code that is not in the model zoo ({zoo}).",
                received={f"model.spec.{key}": path},
                hint="If you trust its author, set trust=model, or put the file into the zoo.",
            )
        return path

    map_paths(section["spec"], check_path)


def _write_zoo(section: Mapping[str, Any], user_zoo: Path | None, *, is_trusted: bool) -> Path:
    """Write the zoo unless the cache has it; returns its folder.

    Args:
        section: The setting `model`; its `spec` is a mapping, with absolute paths.
        user_zoo: The user's zoo, whose sources are copied, too; None for no zoo.
        is_trusted: Whether code that the model's files hold may run.
    """
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=cache()) as partial:
        tree = Path(partial, "zoo")
        tree.mkdir()
        spec = map_paths(section["spec"], lambda key, path: _copy_into_zoo(tree, key, Path(path)))
        files = _files_in(tree)
        if user_zoo is not None:
            zoo_files.copy(user_zoo, zoo_files.sources(user_zoo), to=tree)
        content = {"name": section["name"], "spec": spec, "is_trusted": is_trusted}
        (tree / _SPEC_FILE).write_text(json.dumps(content, indent=2), encoding="utf-8")
        # An image of a zoo needs this file; the framework itself is in the base image.
        (tree / "requirements.txt").touch()
        entry = FRAMEWORKS[model_kinds()[section["name"]].framework]
        # Of the spec only the names of files get into this code, as literals.
        code = _CODE.format(file_models=entry.file_models, files=tuple(files))
        (tree / f"{_NAME}.py").write_text(code, encoding="utf-8")
        name = re.sub(r"[^a-z0-9]+", "-", spec["model_name"].lower()).strip("-")[:40] or "model"
        target = cache() / f"{name}-{zoo_files.digest(tree, [*map(Path, _files_in(tree))])[:16]}"
        with contextlib.suppress(OSError):  # Another job may have been faster; it is the same.
            tree.rename(target)
        if not target.is_dir():
            raise OSError(f"{target} could not be made")
        return target


def _files_in(tree: Path) -> list[str]:
    return sorted(file.relative_to(tree).as_posix() for file in tree.rglob("*") if file.is_file())


def _copy_into_zoo(tree: Path, key: str, path: Path) -> str:
    """Copy a file or a folder into the zoo, with what code imports; returns its path in the zoo."""
    base = tree / f"{_NAME}_files" / re.sub(r"\W+", "_", key)
    sources = _with_imported_files(path) if path.suffix == ".py" else [path]
    # Files of two custom objects may have the same name.
    folders = itertools.chain([base], (base / str(number) for number in itertools.count(1)))
    folder = next(path for path in folders if all(_can_hold(path, file) for file in sources))
    folder.mkdir(parents=True, exist_ok=True)
    for file in sources:
        if file.is_dir():
            shutil.copytree(file, folder / file.name)
        else:
            shutil.copyfile(file, folder / file.name)
    return (folder / path.name).relative_to(tree).as_posix()


def _can_hold(folder: Path, file: Path) -> bool:
    """Whether a folder has no other file with this file's name."""
    existing = folder / file.name
    if not existing.exists():
        return True
    return existing.is_file() and file.is_file() and existing.read_bytes() == file.read_bytes()


def _with_imported_files(code: Path) -> list[Path]:
    """A code file, and those in its folder that it imports, directly or through each other."""
    files = [code]
    for file in files:
        for name in lookup.imported_names(file, in_functions=True):
            imported = code.with_name(f"{name.partition('.')[0]}.py")
            if imported.is_file() and imported not in files:
                files.append(imported)
    return files


def _compile_options(kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a model spec gives for compiling a model of this kind."""
    # Two spellings of one key; a spec with both has been refused.
    options = dict(next((spec[key] for key in COMPILE_KEYS if spec.get(key)), {}))
    keys = model_kinds()[kind].options.items()
    return options | {option: spec[key] for key, option in keys if spec.get(key)}


def summarize(request: Mapping[str, Any]) -> dict[str, Any]:
    """A `FileModelSummary` of the section in the request; nothing of the files runs.

    This and the functions below are called in a child process: they import a framework.
    """
    section = request["section"]
    files = _file_models(model_kinds()[section["name"]].framework)
    return asdict(files.summarize(file_model(section, Path(), is_trusted=False)))


def write_model(request: Mapping[str, Any]) -> dict[str, Any]:
    """A `WrittenModel` of the model of a zoo in the request."""
    framework = importlib.import_module(FRAMEWORKS[request["framework"]].module).FRAMEWORK
    loaded = load_spec(
        request["model_zoo"],
        request["model_def"],
        params=request["params"],
        # The data are no part of a spec, so nothing need read them.
        overrides=Overrides(has_own_dataset=True),
        plain_models=framework.plain_models,
    )
    return asdict(_file_models(request["framework"]).write(loaded, Path(request["folder"])))


def call_for_spec(request: Mapping[str, Any]) -> dict[str, Any]:
    """The spec that a user's function returns; it may build the model for that."""
    sys.path[:0] = request["folders"]
    name = f"{request['module']}:{request['function']}"
    with user_code(f"Calling {name}", root=Path.cwd()):
        function = getattr(importlib.import_module(request["module"]), request["function"])
        parameters = inspect.signature(function).parameters.values()
        required = [p.name for p in parameters if p.default is inspect.Parameter.empty]
        if len(required) > 1:
            raise UserCodeError(
                f"{name} must take one argument, a folder in which it may save the model, or none.",
                received=", ".join(required),
            )
        spec = function(*([request["work"]] if required else []))
        if not isinstance(spec, dict):
            raise UserCodeError(f"{name} must return a dict.", received=type(spec).__name__)
        try:
            json.dumps(spec)
        except (TypeError, ValueError) as e:
            raise UserCodeError(
                f"{name} must return a dict of text, numbers, lists and dicts: {e}."
            ) from e
    return spec


def _file_models(framework: str) -> FileModels:
    files: FileModels = importlib.import_module(FRAMEWORKS[framework].file_models)
    return files
