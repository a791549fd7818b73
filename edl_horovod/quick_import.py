"""TensorFlow, Keras and Horovod imported with no more work than a worker needs.

Keras and TensorFlow import scikit-learn, SciPy, Matplotlib, IPython and requests where they are
installed, for what hardly any training asks for; Python searches its growing heap for garbage again
and again; and the constraints of TensorFlow's type variables are texts, some two hundred in
eighteen thousand places, each compiled by `typing` in each place. Together they were two fifths of
the processor time of a worker's imports (docs/adr/0008).
"""

import contextlib
import functools
import gc
import importlib
import importlib.abc
import importlib.machinery
import sys
import threading
import typing
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType

__all__ = ["import_modules", "put_off_what_is_rarely_used"]

_LATE = frozenset(
    {
        "IPython",  # By Keras, to draw in a notebook what is in a file.
        "keras.src.visualization",
        "keras.visualization",
        "keras.wrappers",
        "requests",  # For a callback that sends metrics to a server.
        "tensorflow._api.v2.compat.v1.lite",
        "tensorflow._api.v2.compat.v2.lite",
        "tensorflow._api.v2.lite",
        "tensorflow.python.keras.engine.training_v1",  # A training of TensorFlow 1, with SciPy.
    }
)
"""Modules that hardly any training uses: each is run when it is first used."""


class _LateLoader(importlib.abc.Loader):
    """Runs a module when a name in it is first asked for.

    `importlib.util.LazyLoader` does so at any access at all, and every process has its first: the
    standard library's `inspect` asks all modules for their file.
    """

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader
        self._lock = threading.RLock()
        self._state: typing.Literal["put off", "running", "run"] = "put off"

    def __getattr__(self, name: str) -> typing.Any:
        # Its source, its data: whatever else a loader may be asked for.
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        def run_first(name: str) -> object:
            missing = AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            if name.startswith("__") and name not in ("__all__", "__version__"):
                raise missing
            if not self.run(module):
                raise missing  # The module asks for it itself.
            return getattr(module, name)

        vars(module)["__getattr__"] = run_first

    def run(self, module: ModuleType) -> bool:
        """Run the module if it has not been; False where it is just being run by this thread."""
        with self._lock:
            if self._state == "running":
                return False
            if self._state == "put off":
                self._state = "running"
                own_getattr = vars(module)["__getattr__"]
                try:
                    self._loader.exec_module(module)
                except BaseException:
                    self._state = "put off"
                    raise
                self._state = "run"
                if vars(module).get("__getattr__") is own_getattr:
                    del vars(module)["__getattr__"]
            return True


class _LateFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of `_LATE` as all others are found, and puts off running them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        self._run_parent(fullname)
        if fullname not in _LATE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LateLoader(spec.loader)
        return spec

    def _run_parent(self, fullname: str) -> None:
        """A package is run before what is in it, as everywhere."""
        name = fullname.rpartition(".")[0]
        if name in _LATE and name in sys.modules:
            module = sys.modules[name]
            loader = module.__spec__.loader if module.__spec__ is not None else None
            if isinstance(loader, _LateLoader):
                loader.run(module)


def put_off_what_is_rarely_used() -> None:
    """Let every later import of Keras in this process leave out what hardly anything uses."""
    if not any(isinstance(finder, _LateFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LateFinder())


def import_modules(names: Iterable[str]) -> None:
    """Import modules and all that they import, none of them the user's.

    Args:
        names: Modules, with their dots.

    Raises:
        ImportError: One of them cannot be imported.
    """
    put_off_what_is_rarely_used()
    gc.disable()
    try:
        with _same_text_compiled_once():
            for name in names:
                importlib.import_module(name)
        # It lives as long as the process: nobody need look through it for garbage ever again.
        gc.freeze()
    finally:
        gc.enable()


@contextlib.contextmanager
def _same_text_compiled_once() -> Iterator[None]:
    """Let `typing` compile each text that stands for a type once."""
    # A name of the module comes before the built-in function of that name.
    vars(typing)["compile"] = functools.cache(compile)
    try:
        yield
    finally:
        del vars(typing)["compile"]
