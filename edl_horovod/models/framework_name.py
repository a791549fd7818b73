"""Which framework a job's model is written in: the user, the trained model or the file says so.

The file says so by its imports, which are found by parsing the file and the files of the zoo that
it imports. No code of the user runs, and no framework is imported.
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


def with_framework(config: JobConfig) -> JobConfig:
    """The settings with the model's framework, unless the model is not on this machine.

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
    """The framework that a worker of a job imports.

    Problems of a trained model or a model zoo are reported later, when the task opens it.

    Raises:
        ConfigError: See `with_framework`.
    """
    return with_framework(config).framework or DEFAULT


def imported_framework(model_zoo: str, model_def: str) -> str:
    """The framework that the file of a model imports; empty where there is no such file.

    Imports inside functions count only where the top level imports no framework. If functions
    import several, the default framework is meant unless the user sets another.

    Raises:
        ConfigError: The file imports several.
    """
    files = _model_files(model_zoo, model_def)
    if not files:
        return ""
    zoo = require_zoo(model_zoo)
    frameworks = _imported_frameworks(zoo, files, in_functions=False)
    if len(frameworks) > 1:
        places = [f"{name} ({file})" for name, file in frameworks.items()]
        raise ConfigError(
            "The setting framework must say which framework the model is written in, because its"
            f" file imports several: {', '.join(places)}.",
            received={"model_def": model_def, "framework": ""},
            hint=f"Set {' or '.join(f'framework={name}' for name in frameworks)}.",
        )
    frameworks = frameworks or _imported_frameworks(zoo, files, in_functions=True)
    return next(iter(frameworks)) if len(frameworks) == 1 else DEFAULT


def other_framework(config: JobConfig) -> str:
    """The framework that the model's file imports if the settings name another; else empty."""
    if not config.framework or not TASKS[config.task].takes_zoo:
        return ""
    files = _model_files(config.model_zoo, config.model_def)
    frameworks = _imported_frameworks(Path(config.model_zoo).resolve(), files, in_functions=True)
    return "" if config.framework in frameworks or len(frameworks) != 1 else next(iter(frameworks))


def _of_trained_model(config: JobConfig) -> str:
    """The framework that a trained model records; empty where that cannot be read."""
    # Imported here, because nothing else needs protocol buffers before a job starts.
    from edl_horovod.models.trained_model_file import read_message

    name = ""
    with contextlib.suppress(OSError, DataError):
        name = read_message(Path(config.trained_model)).framework
    return name if name in FRAMEWORKS else ""


def _model_files(model_zoo: str, model_def: str) -> tuple[Path, ...]:
    """The files that define the model; none where the zoo or the model does not exist here."""
    with contextlib.suppress(ConfigError, UserCodeError):
        return file_groups(require_zoo(model_zoo), model_def)[0].files
    return ()


def _imported_frameworks(
    zoo: Path, files: Iterable[Path], *, in_functions: bool
) -> dict[str, Path]:
    """The frameworks that files and their imports from the zoo import, each with one such file.

    Args:
        zoo: Absolute path of the zoo.
        files: Files of the zoo.
        in_functions: Whether imports inside functions count.
    """
    files_by_framework: dict[str, Path] = {}
    entries = FRAMEWORKS.loaded()
    waiting, seen = list(files), set(files)
    while waiting:
        file = waiting.pop(0)
        names = imported_names(file, in_functions=in_functions)
        packages = {name.partition(".")[0] for name in names}
        for framework, entry in entries.items():
            if not packages.isdisjoint(entry.imports):
                files_by_framework.setdefault(framework, file)
        imported = {other for name in names for other in _zoo_files_named(zoo, file, name)}
        waiting += sorted(imported - seen)
        seen |= imported
    return {name: files_by_framework[name] for name in entries if name in files_by_framework}


def _zoo_files_named(zoo: Path, importer: Path, name: str) -> Iterator[Path]:
    """The files of a zoo that an imported dotted name may mean in the file that imports it."""
    if zoo.is_file():
        return
    parts = name.removeprefix(f"{PACKAGE}.").split(".")
    for folder in (import_root(zoo), importer.parent):
        path = folder.joinpath(*parts)
        for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
            if file.is_file():
                yield file
