"""A user's own records: `dataset:module.name` is an object with a length and records by number."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edl_horovod.errors import DataError, UserCodeError
from edl_horovod.records.source import DataSettings, RecordSource, SourceKind

__all__ = ["KIND", "SCHEME"]

SCHEME = "dataset"
_METHODS = ("__len__", "__getitem__")


class _OwnDataset(SourceKind):
    """An object of the user's with `__len__` and `__getitem__`, or a function that returns one."""

    runs_user_code = True

    def open(
        self,
        data: str,
        settings: DataSettings,
        *,
        folder: Path | None,
        cache_bytes: int,
        tell: Callable[[str], None] | None,
    ) -> RecordSource:
        """Import the module, and ask for the first records."""
        records = _records(data)
        # Imported here: NumPy is for those who read.
        from edl_horovod.records.sources.own_records import OwnRecords

        return OwnRecords(records, data, wanted=settings.columns)

    def check(self, given: Sequence[str]) -> None:
        """Look whether a module and a name in it are given; user code runs on the ranks alone."""
        for data in given:
            _names(data)


def _names(data: str) -> tuple[str, str]:
    module, _, name = data.removeprefix(f"{SCHEME}:").rpartition(".")
    if not module or not all(part.isidentifier() for part in f"{module}.{name}".split(".")):
        raise DataError(
            "After dataset: stand the names of a module and of an object or a function in it.",
            received={"data": data},
            cure="Write data=dataset:my_data.train for train in my_data.py beside the model.",
        )
    return module, name


def _records(data: str) -> Any:
    """The user's object; a function is called."""
    module, name = _names(data)
    try:
        found = getattr(importlib.import_module(module), name, None)
        if isinstance(found, type) or (callable(found) and not _is_random_access(found)):
            found = found()
    except Exception as e:
        raise UserCodeError(
            f"{data} cannot be made: {type(e).__name__}: {e}.",
            received={"data": data},
            cure="The module must lie beside the model, or be installed.",
        ) from e
    if found is None:
        raise UserCodeError(f"The module {module} has no {name!r}.", received={"data": data})
    if not _is_random_access(found):
        missing = " and no ".join(method for method in _METHODS if not hasattr(found, method))
        raise UserCodeError(
            f"{data} has no random access: {type(found).__name__} has no {missing}.",
            received={"data": data},
            cure="Each record must be read by its number, on any rank. Return an object with both"
            " methods, as a list is, or write the records to files once by edl prepare.",
        )
    return found


def _is_random_access(found: object) -> bool:
    return all(hasattr(found, method) for method in _METHODS)


KIND = _OwnDataset()
"""Objects of the user's."""
