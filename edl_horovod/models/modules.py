"""Import the files of a model zoo once each, with their siblings and apart from other zoos.

A file that was written for ElasticDL imports `Mode`, some classes, and layers of its preprocessing
library. Stand-ins for these names let it run unchanged; an installed ElasticDL takes precedence.
"""

import hashlib
import importlib
import importlib.util
import logging
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from edl_horovod.errors import UserCodeError, did_you_mean
from edl_horovod.models.calling import user_code
from edl_horovod.models.lookup import file_groups, import_root, require_zoo

_PREFIX = "_edl_zoo_"
_CUSTOM_PREFIX = "_edl_custom_"
_IMPORTS_ATTRIBUTE = "__edl_zoo__"
PACKAGE = "model_zoo"
"""The package name through which files of ElasticDL's own zoo import each other."""
_SPEC = "edl_horovod.spec"
_CALLBACKS = "edl_horovod.callbacks"
_COLUMNS = "edl_horovod.frameworks.keras.elasticdl.feature_columns"
_EMBEDDINGS = "edl_horovod.frameworks.keras.elasticdl.embeddings"
_PREPROCESSING = "edl_horovod.frameworks.keras.elasticdl.preprocessing"
_LAYERS = (
    "ConcatenateWithOffset",
    "Discretization",
    "Hashing",
    "IndexLookup",
    "LogRound",
    "Normalizer",
    "RoundIdentity",
    "ToNumber",
    "ToRagged",
    "ToSparse",
)
"""The preprocessing layers; each is in a module of its name, too: `to_sparse.ToSparse`."""


def _same(module: str, *names: str) -> dict[str, tuple[str, str]]:
    """Stand-ins with ElasticDL's own names."""
    return {name: (module, name) for name in names}


def _module_of(layer: str) -> str:
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", layer).lower()
    return f"elasticdl_preprocessing.layers.{name}"


_STAND_INS: dict[str, dict[str, tuple[str, str]]] = {
    "elastic.python.training": _same(_SPEC, "ElasticDLSpec", "Mode"),
    "elasticdl.python.common.constants": {
        **_same(_SPEC, "ElasticDLSpec", "Mode"),
        **_same(__name__, "MaxComputeConfig"),
    },
    "elasticdl.python.common.log_utils": _same(__name__, "default_logger"),
    "elasticdl.python.data.odps_io": _same(__name__, "ODPSWriter", "is_odps_configured"),
    "elasticdl.python.data.reader.recordio_reader": _same(__name__, "RecordIODataReader"),
    "elasticdl.python.elasticdl.callbacks": {
        **_same(_CALLBACKS, "LearningRateScheduler"),
        "MaxStepsStopping": (_CALLBACKS, "MaxSteps"),
    },
    "elasticdl.python.elasticdl.feature_column.feature_column": _same(_COLUMNS, "embedding_column"),
    "elasticdl.python.elasticdl.layers.embedding": _same(_EMBEDDINGS, "Embedding"),
    "elasticdl.python.worker.prediction_outputs_processor": _same(
        __name__, "BasePredictionOutputsProcessor"
    ),
    "elasticdl_preprocessing.feature_column.feature_column": _same(
        _COLUMNS, "concatenated_categorical_column"
    ),
    "elasticdl_preprocessing.layers": {
        **_same(_PREPROCESSING, *_LAYERS),
        **_same(_EMBEDDINGS, "SparseEmbedding"),
        "Embedding": (_EMBEDDINGS, "SparseEmbedding"),
    },
    "elasticdl_preprocessing.layers.sparse_embedding": _same(_EMBEDDINGS, "SparseEmbedding"),
    **{_module_of(name): _same(_PREPROCESSING, name) for name in _LAYERS},
    "elasticdl_preprocessing.utils.decorators": _same(__name__, "declare_model_inputs"),
}
"""Imported names by their ElasticDL module, each with our module and name."""


@dataclass
class _ZooImports:
    """The import state of a zoo; each of its modules has it as `_IMPORTS_ATTRIBUTE`."""

    root: Path
    added_paths: list[str]
    """Entries of `sys.path` that were added for this zoo."""
    foreign: frozenset[str]
    """Modules in the zoo's folder that were loaded before, such as our own package."""
    is_replaced: bool = False
    """Whether another zoo came into use since."""


def load_module(file: Path, *, zoo: Path) -> ModuleType:
    """Run a file of a zoo; a file that has been run before is not run again.

    The folders of the zoo and of the file come first on `sys.path`, so that the file can import its
    siblings at any time, also as `model_zoo.folder.file`. Modules of a zoo that was loaded before
    are removed. A zoo that is one file has no siblings, because other files beside it would not be
    copied into the trained model. Both paths are absolute.

    Raises:
        UserCodeError: The file raised an exception; the error names the line.
    """
    imports = _start_imports(zoo, file.parent)
    for module in list(sys.modules.values()):
        if _file_of(module) == str(file):
            return module
    digest = hashlib.sha256(str(zoo).encode()).hexdigest()[:8]
    dotted = ".".join(file.relative_to(import_root(zoo)).with_suffix("").parts)
    name = f"{_PREFIX}{digest}_{dotted.replace('.', '_')}"
    # A sibling that imports this file by its plain name must get this module.
    aliases = [alias for alias in _plain_names(file, zoo) if alias not in sys.modules]
    with user_code(f"Loading the model file {file}", root=zoo):
        return _run_file([name, *aliases], file, **{_IMPORTS_ATTRIBUTE: imports})


def loaded_files(zoo: Path) -> list[Path]:
    """The files of a zoo, an absolute path, that this process has run as modules; sorted."""
    return sorted({Path(str(vars(sys.modules[name])["__file__"])) for name in _names_inside(zoo)})


def make_importable(zoo: Path) -> None:
    """Make the files of a zoo, an absolute path, importable by their plain names."""
    _start_imports(zoo, zoo)


def zoo_in_use() -> Path | None:
    """The zoo whose files can be imported by their plain names; None for no zoo."""
    for module in list(sys.modules.values()):
        imports = _attributes_of(module).get(_IMPORTS_ATTRIBUTE)
        if imports is not None and not imports.is_replaced:
            return Path(imports.root)
    return None


def load_function(model_zoo: str, model_def: str, name: str) -> Callable[..., Any]:
    """Return a function of the file that a `model_def` means; the file need not hold a spec.

    Raises:
        ConfigError: The zoo does not exist.
        UserCodeError: The file or the function does not exist, or the file raised an exception.
    """
    zoo = require_zoo(model_zoo)
    files: list[Path] = []
    for group in file_groups(zoo, model_def):
        definitions = definitions_in(group.files, name, zoo=zoo)
        if len(definitions) > 1:
            listed = ", ".join(sorted(str(module.__file__) for _, module in definitions))
            raise UserCodeError(
                f"{model_def!r} may mean {len(definitions)} files with {name!r}: {listed}.",
                received={"model_def": model_def},
                hint="Write folder.file to name one.",
            )
        if definitions:
            function: Callable[..., Any] = definitions[0][0]
            return function
        files += group.files
    raise UserCodeError(
        f"{', '.join(map(str, files))} has no function {name!r}.",
        received={"model_def": model_def},
        hint="Write it there, at the top level.",
    )


def definitions_in(files: Iterable[Path], name: str, *, zoo: Path) -> list[tuple[Any, ModuleType]]:
    """The objects that files of a zoo bind to a name, each once, with a module that has it."""
    modules = [load_module(file, zoo=zoo) for file in files]
    objects = [(vars(module)[name], module) for module in modules if name in vars(module)]
    return list({id(value): (value, module) for value, module in objects}.values())


@dataclass(frozen=True, kw_only=True)
class CustomObject:
    """A class or function that a model's files name and do not hold."""

    key: str
    """The name in the model's files."""
    value: str
    """The name in the Python file."""
    path: Path
    """The Python file that defines it."""


def may_import(path: Path, *, is_trusted: bool) -> bool:
    """Whether a Python file of a model may run: a trusted one, or one of the zoo in use."""
    zoo = zoo_in_use()
    return is_trusted or (zoo is not None and path.resolve().is_relative_to(import_root(zoo)))


def import_object(custom_object: CustomObject, *, is_trusted: bool) -> Any:
    """Import a class or function from the Python file that goes with a model's files.

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
    names = vars(_load_custom(path))
    if custom_object.value not in names:
        public_names = [name for name in names if not name.startswith("_")]
        raise UserCodeError(
            f"{path} does not define {custom_object.value!r}.",
            received={"key": custom_object.key, "value": custom_object.value},
            hint=f"It defines: {', '.join(public_names) or 'nothing'}."
            f"{did_you_mean(custom_object.value, public_names)}",
        )
    return names[custom_object.value]


def _load_custom(path: Path) -> ModuleType:
    zoo = zoo_in_use()
    if zoo is not None and path.is_relative_to(zoo):
        return load_module(path, zoo=zoo)
    # `load_module` would make this folder the zoo in use, whose files must stay importable.
    name = f"{_CUSTOM_PREFIX}{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    with user_code(f"Loading {path}", root=path.parent):
        return _run_file([name], path)


def _run_file(names: Sequence[str], file: Path, **attributes: Any) -> ModuleType:
    """Run a file as a module with several names, and with attributes that it has from the start."""
    spec = importlib.util.spec_from_file_location(names[0], file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module).update(attributes)
    sys.modules.update(dict.fromkeys(names, module))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        for alias in names:
            sys.modules.pop(alias, None)
        raise
    return module


def _plain_names(file: Path, zoo: Path) -> list[str]:
    """The names under which siblings import a file."""
    if zoo == file:
        return []
    dotted = ".".join(file.relative_to(zoo).with_suffix("").parts)
    is_hidden_by_folder = zoo.joinpath(file.stem).is_dir()
    return [dotted] if is_hidden_by_folder else [dotted, file.stem]


def _start_imports(zoo: Path, folder: Path) -> _ZooImports:
    """Make the files of this zoo, and of no other one, importable by plain names."""
    current = None
    for module in list(sys.modules.values()):
        imports = _attributes_of(module).get(_IMPORTS_ATTRIBUTE)
        if imports is not None and imports.root == zoo:
            current = imports
        elif imports is not None and not imports.is_replaced:
            _stop_imports(imports)
    if current is None:
        current = _ZooImports(zoo, added_paths=[], foreign=frozenset(_names_inside(zoo)))
        install()
    current.is_replaced = False
    for path in (str(zoo), str(folder)) if zoo.is_dir() else ():
        if path not in sys.path:
            sys.path.insert(0, path)
            current.added_paths.append(path)
    if zoo.is_dir() and PACKAGE not in sys.modules:
        package = ModuleType(PACKAGE)
        package.__path__ = [str(zoo)]
        vars(package)[_IMPORTS_ATTRIBUTE] = current
        sys.modules[PACKAGE] = package
    importlib.invalidate_caches()
    return current


def _stop_imports(imports: _ZooImports) -> None:
    for name in _names_inside(imports.root):
        if name not in imports.foreign and not name.startswith(_PREFIX):
            del sys.modules[name]
    package = sys.modules.get(PACKAGE)
    if package is not None and vars(package).get(_IMPORTS_ATTRIBUTE) is imports:
        del sys.modules[PACKAGE]
    for path in imports.added_paths:
        if path in sys.path:
            sys.path.remove(path)
    imports.added_paths.clear()
    imports.is_replaced = True


def _names_inside(zoo: Path) -> list[str]:
    """Modules that were loaded from a folder, except from an environment inside it."""
    inside = []
    for name, module in list(sys.modules.items()):
        file = _file_of(module)
        # Compare texts first: there are thousands of modules, and parsing paths is slow.
        if file is None or zoo.name not in file or "site-packages" in file:
            continue
        if Path(file).is_relative_to(zoo):
            inside.append(name)
    return inside


def _file_of(module: ModuleType) -> str | None:
    file: str | None = _attributes_of(module).get("__file__")
    return file


def _attributes_of(module: ModuleType | None) -> dict[str, Any]:
    """What a module holds; nothing for None, by which a program forbids the import of a name."""
    # Not getattr, which would trigger modules that load lazily.
    return vars(module) if module is not None else {}


class BasePredictionOutputsProcessor(ABC):
    """Base of a class that processes the predictions of a model."""

    @abstractmethod
    def process(self, predictions: Any, worker_id: str) -> None:
        """Process the predictions of a batch."""


class MaxComputeConfig:
    """Environment variables of a connection to MaxCompute tables."""

    PROJECT_NAME = "MAXCOMPUTE_PROJECT"
    ACCESS_ID = "MAXCOMPUTE_AK"
    ACCESS_KEY = "MAXCOMPUTE_SK"
    ENDPOINT = "MAXCOMPUTE_ENDPOINT"


def is_odps_configured() -> bool:
    """Whether the environment names a MaxCompute project and who may use it."""
    config = MaxComputeConfig
    return {config.PROJECT_NAME, config.ACCESS_ID, config.ACCESS_KEY} <= os.environ.keys()


class ODPSWriter:
    """Would write to a MaxCompute table."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Refuse to work; the hint says what to do instead.

        Raises:
            UserCodeError: Always.
        """
        raise UserCodeError(
            "Predictions are not written to MaxCompute tables here.",
            hint=f"Unset {MaxComputeConfig.ACCESS_ID}, and take the predictions from `output`.",
        )


class RecordIODataReader:
    """Would read records in the model's file."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Refuse to work; the hint says what to do instead.

        Raises:
            UserCodeError: Always.
        """
        raise UserCodeError(
            "A model's file does not read its records here: the job does.",
            hint="Give the files in `data`.",
        )


def declare_model_inputs(*names: str) -> Any:
    """Create a decorator that records the names of a model class's inputs."""

    def named(kind: type) -> type:
        kind._model_inputs = list(names)  # type: ignore[attr-defined]  # ElasticDL's name for it.
        return kind

    return named


default_logger = logging.getLogger("elasticdl")


class _Finder(MetaPathFinder, Loader):
    """Imports the modules listed above and their packages."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_package = any(module.startswith(f"{name}.") for module in _STAND_INS)
        if is_package or name in _STAND_INS:
            return ModuleSpec(name, self, is_package=is_package)
        return None

    def exec_module(self, module: ModuleType) -> None:
        for name, (our_module, our_name) in _STAND_INS.get(module.__name__, {}).items():
            setattr(module, name, getattr(importlib.import_module(our_module), our_name))


def install() -> None:
    """Provide the names to all later imports; further calls do nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
