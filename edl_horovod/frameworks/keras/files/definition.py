"""Read what a model's files say of its layers and of how it was compiled; nothing is made."""

import contextlib
import dataclasses
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.files.hdf5 import (
    MAX_EXPANSION,
    SMALL_BYTES,
    json_attribute,
    opened,
    require_file,
    text_attribute,
)
from edl_horovod.frameworks.keras.files.saved_model import read_saved_model
from edl_horovod.models.file_model import FileModel

__all__ = ["ARCHIVE_WEIGHTS", "Definition", "is_archive", "opened_archive", "read_definition"]

ARCHIVE_WEIGHTS = "model.weights.h5"
_CONFIG = "config.json"
_METADATA = "metadata.json"
_ASSETS = "assets/"
_HDF5_ENDINGS = (".h5", ".hdf5")
_MAX_DEPTH = 200
_KERAS_1_SETTINGS = frozenset({"nb_filter", "nb_row", "output_dim", "border_mode"})


@dataclass(frozen=True, kw_only=True)
class Definition:
    """The layers of a model, and how it was compiled, as its files say it."""

    file: Path
    form: str
    """`HDF5`, `JSON`, `archive` or `SavedModel`."""
    version: str
    """Of the Keras that wrote it; empty where the file does not say."""
    config: dict[str, Any]
    compiled: dict[str, Any] | None
    """None where the model was not compiled, or the file does not say how."""
    is_program: bool = False
    """Whether what the layers compute is there as a program alone."""

    @property
    def is_keras_2(self) -> bool:
        """Whether Keras 2 wrote it; JSON that names modules and no version is of Keras 3."""
        return self.version.startswith("2") if self.version else "module" not in self.config

    @property
    def kind(self) -> str:
        """What it is, for people."""
        return f"{self.form} of Keras {self.version or ('2' if self.is_keras_2 else '3')}"


def is_archive(path: Path) -> bool:
    """Whether a file's name says that it is one of Keras' archives."""
    return path.suffix == ".keras"


def read_definition(model: FileModel) -> Definition:
    """What the files of a model say.

    Raises:
        UserCodeError: There is no file, or one too many, or it is not what its name claims, or a
            Keras before 2 wrote it.
    """
    if model.definition is not None and model.architecture is not None:
        raise UserCodeError(
            "A model has either a definition, which is all of it, or an architecture.",
            received={"definition": model.definition, "architecture": model.architecture},
            cure="Leave out one of them.",
        )
    if model.definition is not None and model.weights is not None:
        raise UserCodeError(
            "A definition holds the weights; others beside it would take their place.",
            received={"definition": model.definition, "weights": model.weights},
            cure="Leave out one, or give the layers alone as architecture.",
        )
    path = model.definition or model.architecture
    if path is None:
        raise UserCodeError(
            f"The model {model.name!r} has no files.",
            cure="Give model_definition, or model_architecture with model_weights.",
        )
    if model.architecture is not None:
        found = _of_json(path)
    elif path.is_dir():
        found = _of_saved_model(path)
    elif path.suffix in _HDF5_ENDINGS:
        found = _of_hdf5(path)
    elif is_archive(path):
        found = _of_archive(path)
    else:
        raise _other_file(path)
    _require_keras_2(found)
    return found


def _of_hdf5(path: Path) -> Definition:
    with opened(path) as file:
        config = json_attribute(file, "model_config", path)
        version = text_attribute(file, "keras_version")
        compiled = json_attribute(file, "training_config", path)
    if config is None:
        raise UserCodeError(
            f"{path} holds weights alone, no layers.",
            cure="Give it as model_weights, beside model_architecture; or the file that model.save"
            " wrote.",
        )
    return _definition(path, "HDF5", config, version, compiled)


def _of_json(path: Path) -> Definition:
    require_file(path)
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as e:
        raise UserCodeError(
            f"{path} is not JSON: {e}.", cure="Write it with model.to_json()."
        ) from e
    is_object = isinstance(config, dict)
    version = config.get("keras_version", "") if is_object else ""
    compiled = config.pop("compile_config", None) if is_object else None
    return _definition(path, "JSON", config, str(version), compiled)


def _of_archive(path: Path) -> Definition:
    with opened_archive(path) as archive:
        config = _json_of(archive, _CONFIG, path)
        metadata = _json_of(archive, _METADATA, path)
        # Keras looks into it for each weight, and must not be led elsewhere.
        with archive.open(ARCHIVE_WEIGHTS) as content, opened(path, content):  # type: ignore[arg-type]  # It can be read and sought, which is all that h5py needs.
            pass
    version = str(metadata.get("keras_version", ""))
    compiled = config.pop("compile_config", None)
    return _definition(path, "archive", config, version, compiled)


def _of_saved_model(path: Path) -> Definition:
    found = read_saved_model(path)
    root = found.root
    config = root.get("model_config") or {key: root.get(key) for key in ("class_name", "config")}
    if not isinstance(config.get("class_name"), str):
        raise UserCodeError(
            f"The SavedModel {path} holds no Keras model.",
            cure="Write it with model.save of Keras 2, or give a file .keras.",
        )
    version = str(root.get("keras_version") or "2")
    compiled = root.get("training_config")
    inside = config.get("config")
    if isinstance(inside, dict) and isinstance(inside.get("layers"), list):
        return _definition(path, "SavedModel", config, version, compiled)
    name = str(root.get("name") or config["class_name"])
    inside = {"name": name, "layers": found.layers()}
    made = _definition(path, "SavedModel", {**config, "config": inside}, version, compiled)
    return dataclasses.replace(made, is_program=True)


def _definition(
    path: Path, form: str, config: Any, version: str, compiled: dict[str, Any] | None
) -> Definition:
    if not isinstance(config, dict) or "class_name" not in config or "config" not in config:
        raise UserCodeError(
            f"{path} does not describe a Keras model.",
            received=str(config)[:80],
            cure="Write it with model.save or model.to_json().",
        )
    return Definition(
        file=path,
        form=form,
        version=version,
        config=_plain(config, path),
        compiled=_plain(compiled, path),
    )


def _plain(value: Any, path: Path, depth: int = 0) -> Any:
    """Lists for what Keras 2 wrote as tuples and shapes."""
    if depth > _MAX_DEPTH:
        raise UserCodeError(
            f"{path} nests its layers deeper than any model does.",
            received=f"more than {_MAX_DEPTH} levels",
            cure="Such a file is made to do harm: do not use it.",
        )
    if isinstance(value, dict):
        if value.get("class_name") in ("__tuple__", "TensorShape") and "items" in value:
            return [_plain(each, path, depth + 1) for each in value["items"]]
        return {key: _plain(each, path, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each, path, depth + 1) for each in value]
    return value


@contextlib.contextmanager
def opened_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """One of Keras' archives, after a look at what it holds.

    Raises:
        UserCodeError: It is no archive, or its members are not those that Keras writes.
    """
    require_file(path)
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as e:
        raise UserCodeError(
            f"{path} is no archive of Keras: {e}.", cure="Write it with model.save."
        ) from e
    with archive:
        members = {info.filename: info for info in archive.infolist()}
        for name, info in members.items():
            _require_harmless(name, info, path)
        for name in (_CONFIG, _METADATA, ARCHIVE_WEIGHTS):
            if name not in members:
                raise UserCodeError(
                    f"The archive {path} lacks {name}.",
                    received=f"the members {', '.join(members) or '(none)'}",
                    cure="Write it with model.save.",
                )
        yield archive


def _require_harmless(name: str, info: zipfile.ZipInfo, path: Path) -> None:
    parts = PurePosixPath(name)
    is_known = name in (_CONFIG, _METADATA, ARCHIVE_WEIGHTS) or name.startswith(_ASSETS)
    if parts.is_absolute() or ".." in parts.parts or "\\" in name or not is_known:
        raise UserCodeError(
            f"The archive {path} holds a member that Keras does not write.",
            received={"member": name},
            cure="Do not use it, or save the model anew with model.save.",
        )
    if info.file_size > SMALL_BYTES and info.file_size > MAX_EXPANSION * info.compress_size:
        raise UserCodeError(
            f"The archive {path} holds {info.compress_size:,} bytes that would become"
            f" {info.file_size:,}.",
            received={"member": name},
            cure="Such a file is made to fill the memory: do not use it.",
        )


def _json_of(archive: zipfile.ZipFile, name: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(archive.read(name))
    except (ValueError, RecursionError, zipfile.BadZipFile) as e:
        raise UserCodeError(f"{name} of the archive {path} is not JSON: {e}.") from e
    if not isinstance(found, dict):
        raise UserCodeError(
            f"{name} of the archive {path} holds no object.", received=str(found)[:80]
        )
    return found


def _other_file(path: Path) -> UserCodeError:
    if path.suffix in (".pkl", ".pickle", ".joblib"):
        return UserCodeError(
            f"{path} is a pickle, which is a program, and no file of Keras.",
            cure="Save the model with model.save('model.keras').",
        )
    if not path.exists():
        return UserCodeError(f"The model's file {path} is not there.", cure="Give its path.")
    return UserCodeError(
        f"{path} is no kind of file that Keras models are read from.",
        received={"model_definition": path},
        cure="Give a file .h5, .hdf5 or .keras, or the folder of a SavedModel.",
    )


def _require_keras_2(found: Definition) -> None:
    """Refuse Keras 1, whose settings have other names; only some of its files say a version."""
    is_old = found.version.startswith("1.")
    if not found.version and found.is_keras_2:
        layers = found.config["config"]
        layers = layers.get("layers", []) if isinstance(layers, dict) else layers
        given = [each.get("config") for each in layers if isinstance(each, dict)]
        settings = {key for each in given if isinstance(each, dict) for key in each}
        embeds = {"input_dim", "embeddings_initializer"} <= settings
        is_old = bool(settings & _KERAS_1_SETTINGS) and not embeds
        is_old = is_old or found.form == "HDF5"
    if is_old:
        raise UserCodeError(
            f"{found.file} is of Keras 1.",
            received={"keras_version": found.version},
            cure="Load it with Keras 2.2, and save it there.",
        )
