"""A model zoo made of a model spec: the command writes it once, and the job uses it as any zoo.

Its folder in the cache has a digest of its content in its name, so it is written once and then only
read, and jobs of the same content have the same zoo (docs/adr/0025-models-in-files.md).
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
from edl_horovod.files.user_cache import user_cache
from edl_horovod.models import git_zoo, lookup, spec_function, zoo_files
from edl_horovod.models.file_model import FileModel, file_model
from edl_horovod.models.own_process import ask
from edl_horovod.models.parts import REQUIRED
from edl_horovod.records import user_dataset

__all__ = ["MODEL_DEF", "cache", "is_needed", "model_in", "with_zoo"]

_NAME = "model_of_spec"
"""With what everything begins that is written, beside files of the user's zoo perhaps."""
MODEL_DEF = f"{_NAME}.Model"
"""What is to be trained in such a zoo."""
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
    """Whether a job's model is in files of which no zoo has been written yet."""
    return bool(config.model) and not config.model_def


def cache() -> Path:
    """Where such zoos are kept; only running jobs need its content."""
    return user_cache() / "models"


def with_zoo(config: JobConfig) -> JobConfig:
    """The settings with a zoo of their model in files, which is written; others as they are.

    Raises:
        ConfigError: The section is wrong, a file is not there, or code is not trusted.
        UserCodeError: The function that returns the spec failed.
        OutputError: The cache cannot be written.
    """
    if not is_needed(config):
        return config
    trusts = config.trusts("model")
    needs_own = _needs_own_zoo(config)
    is_local = git_zoo.parse(config.model_zoo) is None or not needs_own
    zoo = Path(config.model_zoo) if is_local else git_zoo.ensure_local(config.model_zoo).path
    with _resolved(config.model, zoo, is_trusted=trusts) as section:
        _require_usable(section, zoo, is_trusted=trusts)
        try:
            own = lookup.require_zoo(str(zoo)) if needs_own else None
            written = _write(section, own, is_trusted=trusts)
        except OSError as e:
            raise OutputError(
                f"The model zoo of the model spec cannot be kept in the cache: {e}.",
                received={"model.name": section["name"]},
                hint=f"{hint_of(e)} XDG_CACHE_HOME names the folder that the cache is in.",
            ) from e
    return replace(config, model_zoo=str(written), model_def=MODEL_DEF)


def _needs_own_zoo(config: JobConfig) -> bool:
    """Whether a setting names a function or a data set, which the user's own zoo has perhaps."""
    names = [getattr(config, key) for key in REQUIRED]
    data = (config.data, config.validation_data)
    return any("." in name for name in names) or any(
        each.startswith(f"{user_dataset.SCHEME}:") for each in data
    )


def model_in(zoo: Path) -> FileModel:
    """The model of a zoo that was made of a model spec."""
    found = json.loads((zoo / _SPEC_FILE).read_text(encoding="utf-8"))
    return file_model(found, zoo, is_trusted=found["is_trusted"])


@contextlib.contextmanager
def _resolved(
    section: Mapping[str, Any], zoo: Path, *, is_trusted: bool
) -> Iterator[dict[str, Any]]:
    """A section with its spec as a mapping; a function that returns it runs in another process.

    What such a function writes into the folder that it is handed is removed with the block.

    Args:
        section: Checked.
        zoo: The user's model zoo, whose functions may run.
        is_trusted: Whether others may.

    Raises:
        ConfigError: The function may not run, or what it returned is no spec.
        UserCodeError: It failed.
    """
    spec = section["spec"]
    if isinstance(spec, Mapping):
        yield dict(section)
        return
    module, _, function = spec.partition(":")
    inside = zoo / f"{module.replace('.', '/')}.py"
    if not is_trusted and not inside.is_file():
        raise ConfigError(
            "A function that returns a model spec is a program, and it does not lie in the model"
            f" zoo ({zoo}).",
            received={"model.spec": spec},
            hint="If you know it, set trust=model.",
        )
    folders = [zoo] if inside.is_file() else [Path.cwd(), zoo]
    with tempfile.TemporaryDirectory(prefix="edl-spec-") as work:
        request = {
            "module": module,
            "function": function,
            "folders": [str(folder) for folder in folders],
            "work": work,
        }
        returned = ask(spec_function.__name__, request)
        check_spec(section["name"], returned)
        made = map_paths(returned, lambda _, path: os.path.abspath(os.path.expanduser(path)))
        yield {**section, "spec": made}


def _require_usable(section: Mapping[str, Any], zoo: Path, *, is_trusted: bool) -> None:
    """Refuse a section whose files are not there, or whose Python files may not run.

    Args:
        section: Its `spec` is a mapping, with absolute paths.
        zoo: The user's model zoo, whose files may run.
        is_trusted: Whether others may.

    Raises:
        ConfigError: One is not.
    """

    def look(key: str, path: str) -> str:
        file = Path(path)
        if not file.exists():
            raise ConfigError(
                f"The file of model.spec.{key} is not there.",
                received={f"model.spec.{key}": path},
                hint="Paths in a file of settings are relative to that file.",
            )
        is_ours = zoo.is_dir() and file.resolve().is_relative_to(zoo.resolve())
        if file.suffix == ".py" and not is_trusted and not is_ours:
            raise ConfigError(
                f"model.spec.{key} names Python code, which does not lie in the model zoo ({zoo}).",
                received={f"model.spec.{key}": path},
                hint="If you know it, set trust=model, or put the file into the model zoo.",
            )
        return path

    map_paths(section["spec"], look)


def _write(section: Mapping[str, Any], own: Path | None, *, is_trusted: bool) -> Path:
    """The folder of the zoo, written unless it is there.

    Args:
        section: Its `spec` is a mapping, with absolute paths.
        own: The user's zoo, whose sources come along; None for none.
        is_trusted: Whether code that the model's files hold may run.
    """
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=cache()) as partial:
        tree = Path(partial, "zoo")
        tree.mkdir()
        spec = map_paths(section["spec"], lambda key, path: _copied(tree, key, Path(path)))
        files = _files_in(tree)
        if own is not None:
            zoo_files.copy(own, zoo_files.sources(own), to=tree)
        content = {"name": section["name"], "spec": spec, "is_trusted": is_trusted}
        (tree / _SPEC_FILE).write_text(json.dumps(content, indent=2), encoding="utf-8")
        # An image of a zoo needs one; what the framework needs is in the base image.
        (tree / "requirements.txt").touch()
        entry = FRAMEWORKS[MODEL_KINDS[section["name"]].framework]
        # Nothing that the spec says stands in it but the names of files, as literals.
        code = _CODE.format(file_models=entry.file_models, files=tuple(files))
        (tree / f"{_NAME}.py").write_text(code, encoding="utf-8")
        name = re.sub(r"[^a-z0-9]+", "-", spec["model_name"].lower()).strip("-")[:40] or "model"
        place = cache() / f"{name}-{zoo_files.digest(tree, [*map(Path, _files_in(tree))])[:16]}"
        with contextlib.suppress(OSError):  # Another job may have been faster; it is the same.
            tree.rename(place)
        if not place.is_dir():
            raise OSError(f"{place} could not be made")
        return place


def _files_in(tree: Path) -> list[str]:
    return sorted(file.relative_to(tree).as_posix() for file in tree.rglob("*") if file.is_file())


def _copied(tree: Path, key: str, path: Path) -> str:
    """Copy a file or a folder into the zoo, code with what it imports; returns its path there."""
    base = tree / f"{_NAME}_files" / re.sub(r"\W+", "_", key)
    sources = [path, *_imported(path)] if path.suffix == ".py" else [path]
    # Files of two custom objects may have the same name.
    folders = itertools.chain([base], (base / str(number) for number in itertools.count(1)))
    folder = next(each for each in folders if all(_has_room(each, file) for file in sources))
    folder.mkdir(parents=True, exist_ok=True)
    for file in sources:
        if file.is_dir():
            shutil.copytree(file, folder / file.name)
        else:
            shutil.copyfile(file, folder / file.name)
    return (folder / path.name).relative_to(tree).as_posix()


def _has_room(folder: Path, file: Path) -> bool:
    """Whether a folder has nothing else of a file's name."""
    there = folder / file.name
    if not there.exists():
        return True
    return there.is_file() and file.is_file() and there.read_bytes() == file.read_bytes()


def _imported(code: Path) -> list[Path]:
    """The files beside some code that it imports by their names, and that those import."""
    found: dict[Path, None] = {code: None}
    waiting = [code]
    while waiting:
        for name in _names_imported(waiting.pop()):
            file = code.with_name(f"{name}.py")
            if file.is_file() and file not in found:
                found[file] = None
                waiting.append(file)
    return list(found)[1:]


def _names_imported(code: Path) -> list[str]:
    try:
        nodes = list(ast.walk(ast.parse(code.read_bytes())))
    except (SyntaxError, ValueError):  # Told where it is imported.
        return []
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return [name.partition(".")[0] for name in names]
