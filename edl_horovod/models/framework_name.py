"""Which framework a job's model is written in: what the user, the trained model or the file says.

The file says it by what it imports, which is found by parsing it and the files of the zoo that it
imports. Nothing of the user's is run, and no framework is imported.
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from edl_horovod.config.frameworks import DEFAULT, FRAMEWORKS
from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import TASKS
from edl_horovod.errors import ConfigError, DataError, UserCodeError
from edl_horovod.models.lookup import file_groups, import_root, imported_names, require_zoo
from edl_horovod.models.modules import PACKAGE

__all__ = ["framework_name", "other_framework", "imported_framework", "with_framework"]


def with_framework(config: JobConfig) -> JobConfig:
    """The settings with the framework of the model, unless what says it is not on this machine.

    Raises:
        ConfigError: The model's file imports several frameworks, or a setting does not fit the one
            that it imports.
    """
    if not TASKS[config.task].takes_zoo:
        name = _of_trained_model(config) or config.framework
    else:
        name = config.framework or imported_framework(config.model_zoo, config.model_def)
    return config if name == config.framework else replace(config, framework=name)


def framework_name(config: JobConfig) -> str:
    """What a worker of a job imports.

    What is wrong with a trained model or a model zoo is told where the task opens it.

    Raises:
        ConfigError: See `with_framework`.
    """
    return with_framework(config).framework or DEFAULT


def imported_framework(model_zoo: str, model_def: str) -> str:
    """The framework that the file of a model imports; empty where there is no such file.

    A file that imports none when it is loaded has perhaps one that its functions import. A model
    for which they choose among several is written in the default one, unless the user says another.

    Raises:
        ConfigError: The file imports several.
    """
    files = _files(model_zoo, model_def)
    if not files:
        return ""
    zoo = require_zoo(model_zoo)
    found = _imported(zoo, files, in_functions=False)
    if len(found) > 1:
        places = [f"{name} ({file})" for name, file in found.items()]
        raise ConfigError(
            "The setting framework must say which framework the model is written in, because its"
            f" file imports several: {', '.join(places)}.",
            received={"model_def": model_def, "framework": ""},
            hint=f"Set {' or '.join(f'framework={name}' for name in found)}.",
        )
    found = found or _imported(zoo, files, in_functions=True)
    return next(iter(found)) if len(found) == 1 else DEFAULT


def other_framework(config: JobConfig) -> str:
    """The framework that the model's file imports, where the settings name another; else empty."""
    if not config.framework or not TASKS[config.task].takes_zoo:
        return ""
    files = _files(config.model_zoo, config.model_def)
    found = _imported(Path(config.model_zoo).resolve(), files, in_functions=True)
    return "" if config.framework in found or len(found) != 1 else next(iter(found))


def _of_trained_model(config: JobConfig) -> str:
    """What a trained model records; empty where that cannot be read."""
    # Here, because nothing else needs protocol buffers before a job starts.
    from edl_horovod.models.trained_model_file import read_message

    name = ""
    with contextlib.suppress(OSError, DataError):
        name = read_message(Path(config.trained_model)).framework
    return name if name in FRAMEWORKS else ""


def _files(model_zoo: str, model_def: str) -> tuple[Path, ...]:
    """The files that define the model; none where the zoo has no such model, or is not here."""
    with contextlib.suppress(ConfigError, UserCodeError):
        return file_groups(require_zoo(model_zoo), model_def)[0].files
    return ()


def _imported(zoo: Path, files: Iterable[Path], *, in_functions: bool) -> dict[str, Path]:
    """The frameworks that files import, and what they import of the zoo, each with one such file.

    Args:
        zoo: Absolute path of the zoo.
        files: Of the zoo.
        in_functions: Whether imports count that only a call of a function runs.
    """
    found: dict[str, Path] = {}
    waiting, seen = list(files), set(files)
    while waiting:
        file = waiting.pop(0)
        names = imported_names(file, in_functions=in_functions)
        packages = {name.partition(".")[0] for name in names}
        for framework, entry in FRAMEWORKS.items():
            if not packages.isdisjoint(entry.imports):
                found.setdefault(framework, file)
        new = [each for name in names for each in _in_zoo(zoo, file, name) if each not in seen]
        waiting += new
        seen.update(new)
    return {name: found[name] for name in FRAMEWORKS if name in found}


def _in_zoo(zoo: Path, importer: Path, name: str) -> Iterator[Path]:
    """The files of a zoo that a dotted name may mean in one of its files."""
    if zoo.is_file():
        return
    parts = name.removeprefix(f"{PACKAGE}.").split(".")
    for folder in (import_root(zoo), importer.parent):
        path = folder.joinpath(*parts)
        for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
            if file.is_file():
                yield file
