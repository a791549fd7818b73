"""A model zoo that is generated from a model spec, so that a job uses it as any other zoo.

The name of its folder in the cache has a digest of the content, so the folder is written once and
then only read, and jobs with the same content share it (docs/adr/0025-models-in-files.md).
"""

import ast
import contextlib
import itertools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edl_horovod.config.frameworks import FRAMEWORKS
from edl_horovod.config.model_spec import MODEL_KINDS, check_spec, map_paths
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import (
    ConfigError,
    OutputError,
    hint_of,
)
from edl_horovod.files.cache import user_cache
from edl_horovod.models import git_zoo, lookup, spec_function, zoo_files
from edl_horovod.models.child_process import call_in_child
from edl_horovod.models.file_model import FileModel, file_model
from edl_horovod.models.parts import REQUIRED
from edl_horovod.records import user_dataset

__all__ = ["MODEL_DEF", "cache", "is_needed", "model_in", "with_zoo"]

_NAME = "model_of_spec"
"""Start of the names of all generated files: files of the user's zoo may lie beside them."""
MODEL_DEF = f"{_NAME}.Model"
"""The model in a generated zoo."""
_SPEC_FILE = f"{_NAME}.json"
_CODE = '''\
"""The model of a model spec. edl_horovod wrote this file and what lies beside it."""

from pathlib import Path

from {file_models} import spec_of
from edl_horovod.models.spec_zoo import model_in

FILES = {files}
"""A trained model has them, too."""

Model = spec_of(model_in(Path(__file__).parent))
'''


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
            raise OutputError(
                f"The model zoo of the model spec cannot be kept in the cache: {e}.",
                received={"model.name": section["name"]},
                hint=f"{hint_of(e)} XDG_CACHE_HOME names the folder that the cache is in.",
            ) from e
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
        request = {
            "module": module,
            "function": function,
            "folders": [str(folder) for folder in folders],
            "work": work,
        }
        returned = call_in_child(spec_function.__name__, request)
        check_spec(section["name"], returned)
        absolute_spec = map_paths(
            returned, lambda _, path: os.path.abspath(os.path.expanduser(path))
        )
        yield {**section, "spec": absolute_spec}


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
        entry = FRAMEWORKS[MODEL_KINDS[section["name"]].framework]
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
    sources = [path, *_imported_files(path)] if path.suffix == ".py" else [path]
    # Files of two custom objects may have the same name.
    folders = itertools.chain([base], (base / str(number) for number in itertools.count(1)))
    folder = next(
        candidate for candidate in folders if all(_can_hold(candidate, file) for file in sources)
    )
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


def _imported_files(code: Path) -> list[Path]:
    """The files in a code file's folder that it imports, directly or through each other."""
    files: dict[Path, None] = {code: None}
    pending = [code]
    while pending:
        for name in _names_imported(pending.pop()):
            file = code.with_name(f"{name}.py")
            if file.is_file() and file not in files:
                files[file] = None
                pending.append(file)
    return list(files)[1:]


def _names_imported(code: Path) -> list[str]:
    try:
        nodes = list(ast.walk(ast.parse(code.read_bytes())))
    except (SyntaxError, ValueError):  # Importing the file reports the error.
        return []
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return [name.partition(".")[0] for name in names]
