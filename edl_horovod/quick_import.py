"""TensorFlow, Keras and Horovod imported with no more work than a worker needs.

Keras imports scikit-learn, SciPy and Matplotlib where they are installed, for wrappers and pictures
that hardly any training asks for; and Python searches its growing heap for garbage again and again.
The two were over a quarter of the processor time of a worker's start (docs/adr/0008).
"""

import gc
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType

__all__ = ["import_modules", "put_off_what_is_rarely_used"]

_LATE = frozenset({"keras.wrappers", "keras.visualization", "keras.src.visualization"})
"""Modules of Keras that nothing else of it uses: each is run when it is first used."""


class _LateLoader(importlib.abc.Loader):
    """Runs a module when a name in it is first asked for.

    `importlib.util.LazyLoader` does so at any access at all, and every process has its first: the
    standard library's `inspect` asks all modules for their file.
    """

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        def run_first(name: str) -> object:
            if name.startswith("__") and name != "__all__":
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            vars(module).pop("__getattr__", None)
            self._loader.exec_module(module)
            return getattr(module, name)

        vars(module)["__getattr__"] = run_first


class _LateFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of `_LATE` as all others are found, and puts off running them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _LATE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LateLoader(spec.loader)
        return spec


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
        for name in names:
            importlib.import_module(name)
        # It lives as long as the process: nobody need look through it for garbage ever again.
        gc.freeze()
    finally:
        gc.enable()
