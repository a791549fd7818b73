"""Read a model's layers and compile arguments from its files without creating any object."""

import contextlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import h5py

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.files import hdf5
from edl_horovod.frameworks.keras.files.saved_model import read_saved_model
from edl_horovod.models.spec_zoo import FileModel

_WEIGHTS = "model.weights.h5"
_CONFIG = "config.json"
_METADATA = "metadata.json"
_ASSETS = "assets/"
_HDF5_ENDINGS = (".h5", ".hdf5")
_MAX_DEPTH = 200
_KERAS_1_SETTINGS = frozenset({"nb_filter", "nb_row", "output_dim", "border_mode"})


@dataclass(frozen=True, kw_only=True)
class Definition:
    """The layers and the compile arguments of a model, as its files contain them."""

    source: FileModel
    """The files, and the options that replace what they contain."""
    form: str
    """`HDF5`, `JSON`, `archive` or `SavedModel`."""
    version: str
    """Version of the Keras that wrote the file; empty if the file does not contain it."""
    config: dict[str, Any]
    compiled: Mapping[str, Any]
    """Empty if the model was not compiled, or the file does not contain the arguments."""
    is_program: bool = False
    """Whether the computation is only available as a program, not as Keras layers."""

    @property
    def file(self) -> Path:
        """The file or the folder with the layers."""
        path = self.source.definition or self.source.architecture
        assert path is not None
        return path

    @property
    def is_keras_2(self) -> bool:
        """Whether Keras 2 wrote the file; without a version, a key `module` means Keras 3."""
        return self.version.startswith("2") if self.version else "module" not in self.config

    @property
    def optimizer(self) -> Any:
        """The optimizer's name or configuration; empty or None if the file has none."""
        return self.compiled.get("optimizer_config") or self.compiled.get("optimizer")

    @property
    def kind(self) -> str:
        """The format and the version of Keras, for display."""
        return f"{self.form} of Keras {self.version or ('2' if self.is_keras_2 else '3')}"


def is_archive(path: Path) -> bool:
    """Whether a file's name is that of a Keras archive."""
    return path.suffix == ".keras"


def read_definition(model: FileModel) -> Definition:
    """Read the definition of a model from its files.

    Raises:
        UserCodeError: A file is missing or redundant, does not have the format that its name
            claims, or was written by Keras 1.
    """
    if model.definition is not None and model.architecture is not None:
        raise UserCodeError(
            "A model has either a definition, which is the whole model, or an architecture.",
            received={"definition": model.definition, "architecture": model.architecture},
            hint="Remove one of them.",
        )
    if model.definition is not None and model.weights is not None:
        raise UserCodeError(
            "A definition already contains the weights, so separate weights are ambiguous.",
            received={"definition": model.definition, "weights": model.weights},
            hint="Remove one of them, or set the layers alone as architecture.",
        )
    path = model.definition or model.architecture
    if path is None:
        raise UserCodeError(
            f"The model {model.name!r} has no files.",
            hint="Set model_definition, or model_architecture with model_weights.",
        )
    if model.architecture is not None:
        definition = _read_json(model, path)
    elif path.is_dir():
        definition = _read_saved_model(model, path)
    elif path.suffix in _HDF5_ENDINGS:
        definition = _read_hdf5(model, path)
    elif is_archive(path):
        definition = _read_archive(model, path)
    elif path.suffix in (".pkl", ".pickle", ".joblib"):
        raise UserCodeError(
            f"{path} is a pickle, which is a program, not a Keras file.",
            hint="Save the model with model.save('model.keras').",
        )
    elif not path.exists():
        raise UserCodeError(f"The model's file {path} does not exist.", hint="Check the path.")
    else:
        raise UserCodeError(
            f"{path} does not have a supported format for Keras models.",
            received={"model_definition": path},
            hint="Use a file .h5, .hdf5 or .keras, or the folder of a SavedModel.",
        )
    _reject_keras_1(definition)
    return definition


def _read_hdf5(model: FileModel, path: Path) -> Definition:
    with hdf5.open_hdf5(path) as file:
        config = hdf5.json_attribute(file, "model_config", path)
        version = hdf5.text_attribute(file, "keras_version")
        compiled = hdf5.json_attribute(file, "training_config", path)
    if config is None:
        raise UserCodeError(
            f"{path} only contains weights, not the layers of a model.",
            hint="Set it as model_weights together with model_architecture, or use the file that"
            " model.save wrote.",
        )
    return _make_definition(model, "HDF5", config, version, compiled)


def _read_json(model: FileModel, path: Path) -> Definition:
    hdf5.require_file(path)
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as e:
        raise UserCodeError(
            f"{path} is not JSON: {e}.", hint="Write it with model.to_json()."
        ) from e
    is_object = isinstance(config, dict)
    version = config.get("keras_version", "") if is_object else ""
    compiled = config.pop("compile_config", None) if is_object else None
    return _make_definition(model, "JSON", config, str(version), compiled)


def _read_archive(model: FileModel, path: Path) -> Definition:
    with _open_archive(path) as archive:
        config = _json_member(archive, _CONFIG, path)
        metadata = _json_member(archive, _METADATA, path)
    with open_weights(path):
        pass  # Checked because Keras reads the weights from it; it must not refer to other files.
    version = str(metadata.get("keras_version", ""))
    compiled = config.pop("compile_config", None)
    return _make_definition(model, "archive", config, version, compiled)


def _read_saved_model(model: FileModel, path: Path) -> Definition:
    saved = read_saved_model(path)
    root = saved.root
    config = root.get("model_config") or {key: root.get(key) for key in ("class_name", "config")}
    if not isinstance(config.get("class_name"), str):
        raise UserCodeError(
            f"The SavedModel {path} does not contain a Keras model.",
            hint="Write it with model.save of Keras 2, or use a .keras file.",
        )
    version = str(root.get("keras_version") or "2")
    compiled = root.get("training_config")
    settings = config.get("config")
    is_program = not (isinstance(settings, dict) and isinstance(settings.get("layers"), list))
    if is_program:
        name = str(root.get("name") or config["class_name"])
        config = {**config, "config": {"name": name, "layers": saved.layers()}}
    return _make_definition(model, "SavedModel", config, version, compiled, is_program=is_program)


def _make_definition(
    model: FileModel,
    form: str,
    config: Any,
    version: str,
    compiled: Any,
    *,
    is_program: bool = False,
) -> Definition:
    path = model.definition or model.architecture
    assert path is not None
    if not isinstance(config, dict) or "class_name" not in config or "config" not in config:
        raise UserCodeError(
            f"{path} does not describe a Keras model.",
            received=str(config)[:80],
            hint="Write it with model.save or model.to_json().",
        )
    return Definition(
        source=model,
        form=form,
        version=version,
        config=_tuples_to_lists(config, path),
        compiled=_tuples_to_lists(compiled or {}, path),
        is_program=is_program,
    )


def _tuples_to_lists(value: Any, path: Path, depth: int = 0) -> Any:
    """Convert the tuples and shapes of Keras 2 to lists."""
    if depth > _MAX_DEPTH:
        raise UserCodeError(
            f"{path} nests its layers deeper than any real model.",
            received=f"more than {_MAX_DEPTH} levels",
            hint="Do not use the file: it was probably made to cause harm.",
        )
    if isinstance(value, dict):
        if value.get("class_name") in ("__tuple__", "TensorShape") and "items" in value:
            return [_tuples_to_lists(item, path, depth + 1) for item in value["items"]]
        return {key: _tuples_to_lists(item, path, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_tuples_to_lists(item, path, depth + 1) for item in value]
    return value


def named_parts(config: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each object in a configuration, at any depth, with the name of the nearest layer."""
    pending: list[tuple[Any, str]] = [(config, "")]
    while pending:
        value, name = pending.pop()
        if isinstance(value, dict):
            settings = value.get("config")
            settings_name = settings.get("name") if isinstance(settings, dict) else None
            name = str(settings_name or value.get("name") or name)
            yield value, name
            pending += [(item, name) for item in value.values()]
        elif isinstance(value, list | tuple):
            pending += [(item, name) for item in value]


@contextlib.contextmanager
def open_weights(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file with the weights of a model, which may be in a Keras archive.

    Raises:
        UserCodeError: The file or the archive is damaged or unsafe.
    """
    if not is_archive(path):
        with hdf5.open_hdf5(path) as file:
            yield file
        return
    with (
        _open_archive(path) as archive,
        archive.open(_WEIGHTS) as content,
        hdf5.open_hdf5(path, content) as file,  # type: ignore[arg-type]  # Readable and seekable, as h5py requires.
    ):
        yield file


@contextlib.contextmanager
def _open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a Keras archive after checking its members.

    Raises:
        UserCodeError: The file is not an archive, or Keras does not write such members.
    """
    hdf5.require_file(path)
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as e:
        raise UserCodeError(
            f"{path} is not a Keras archive: {e}.", hint="Write it with model.save."
        ) from e
    with archive:
        members = {info.filename: info for info in archive.infolist()}
        for name, info in members.items():
            _require_safe_member(name, info, path)
        for name in (_CONFIG, _METADATA, _WEIGHTS):
            if name not in members:
                raise UserCodeError(
                    f"The archive {path} does not contain {name}.",
                    received=f"the members {', '.join(members) or '(none)'}",
                    hint="Write it with model.save.",
                )
        yield archive


def _require_safe_member(name: str, info: zipfile.ZipInfo, path: Path) -> None:
    parts = PurePosixPath(name)
    is_known = name in (_CONFIG, _METADATA, _WEIGHTS) or name.startswith(_ASSETS)
    if parts.is_absolute() or ".." in parts.parts or "\\" in name or not is_known:
        raise UserCodeError(
            f"The archive {path} contains a member that Keras does not write.",
            received={"member": name},
            hint="Do not use the file, or save the model again with model.save.",
        )
    is_large = info.file_size > hdf5.SMALL_BYTES
    if is_large and info.file_size > hdf5.MAX_EXPANSION * info.compress_size:
        raise UserCodeError(
            f"The archive {path} contains {info.compress_size:,} bytes that would expand to"
            f" {info.file_size:,}.",
            received={"member": name},
            hint="Do not use the file: it was probably made to exhaust the memory.",
        )


def _json_member(archive: zipfile.ZipFile, name: str, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(archive.read(name))
    except (ValueError, RecursionError, zipfile.BadZipFile) as e:
        raise UserCodeError(f"{name} of the archive {path} is not JSON: {e}.") from e
    if not isinstance(value, dict):
        raise UserCodeError(
            f"{name} of the archive {path} is not a JSON object.", received=str(value)[:80]
        )
    return value


def _reject_keras_1(definition: Definition) -> None:
    """Reject files of Keras 1, whose settings have other names; some lack a version."""
    is_old = definition.version.startswith("1.")
    if not definition.version and definition.is_keras_2:
        layers = definition.config["config"]
        layers = layers.get("layers", []) if isinstance(layers, dict) else layers
        configs = [layer.get("config") for layer in layers if isinstance(layer, dict)]
        settings = {key for config in configs if isinstance(config, dict) for key in config}
        is_embedding = {"input_dim", "embeddings_initializer"} <= settings
        is_old = bool(settings & _KERAS_1_SETTINGS) and not is_embedding
        is_old = is_old or definition.form == "HDF5"
    if is_old:
        raise UserCodeError(
            f"{definition.file} was written by Keras 1.",
            received={"keras_version": definition.version},
            hint="Load the model with Keras 2.2 and save it again.",
        )
