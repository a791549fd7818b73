"""A user's own records: `dataset:module.name` is an object with records by number, or a stream."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from edl_horovod.errors import ConfigError, DataError, EdlError, UserCodeError
from edl_horovod.records.source import (
    DataSettings,
    JobFolders,
    RecordSource,
    SourceKind,
    refuse_skipping,
)

__all__ = ["KIND", "SCHEME"]

SCHEME = "dataset"
_METHODS = ("__len__", "__getitem__")
_GIVE_BATCHES = ("DataLoader", "PyDataset")
"""Classes of PyTorch and Keras whose elements are batches."""
_SAME_ELEMENTS = ("Prefetch", "Options", "Cache", "Shuffle", "Take", "Skip", "Repeat", "Shard")
"""Parts of tf.data's names of data sets that leave elements as they are."""
_INFINITE = -1


class _OwnDataset(SourceKind):
    """An object of the user's, or a function that returns one.

    It has `__len__` and `__getitem__`, or can be iterated as a `tf.data.Dataset` or a generator.
    """

    runs_user_code = True

    def open(
        self,
        data: str,
        settings: DataSettings,
        *,
        folders: JobFolders | None,
        cache_bytes: int,
        tell: Callable[[str], None] | None,
    ) -> RecordSource:
        """Import the module, and ask for the first records; a stream is read to its end."""
        self._check_settings(data, settings)
        module, found = _made(data)
        if _gives_batches(found):
            raise UserCodeError(
                f"{data} gives batches, and a record must be one example.",
                received=type(found).__name__,
                cure="Leave batch out, or end a tf.data.Dataset with .unbatch(): train.batch_size"
                " says how many examples a step has.",
            )
        # Imported here: NumPy is for those who read.
        if _is_random_access(found):
            from edl_horovod.records.sources.own_records import OwnRecords

            return OwnRecords(found, data, wanted=settings.columns)
        _require_stream(found, data, settings)
        if folders is None:
            raise DataError(
                f"{data} can only be read from its begin, and there is no job to keep its records.",
                received={"data": data},
                cure="Return an object with __len__ and __getitem__, or open it in a job.",
            )
        from edl_horovod.records.source_digest import digest_of
        from edl_horovod.records.stream_records import StreamRecords
        from edl_horovod.records.streams import keep_stream

        kept = keep_stream(found, data, digest_of(module), folders, tell or _nobody)
        return StreamRecords(kept, data, folders=folders, cache_bytes=cache_bytes)

    def check(self, given: Sequence[str], settings: DataSettings) -> None:
        """Look whether a module and a name in it are given; user code runs on the ranks alone."""
        for data in given:
            _names(data)
            self._check_settings(data, settings)

    def _check_settings(self, data: str, settings: DataSettings) -> None:
        why = "only your code knows what is damaged in them, and can leave it out"
        refuse_skipping(f"records of your own ({data})", settings, why=why)


def _nobody(_: str) -> None:
    """Told what is in the log alone."""


def _names(data: str) -> tuple[str, str]:
    module, _, name = data.removeprefix(f"{SCHEME}:").rpartition(".")
    if not module or not all(part.isidentifier() for part in f"{module}.{name}".split(".")):
        raise DataError(
            "After dataset: stand the names of a module and of an object or a function in it.",
            received={"data": data},
            cure="Write data=dataset:my_data.train for train in my_data.py beside the model.",
        )
    return module, name


def _made(data: str) -> tuple[ModuleType, Any]:
    """The user's module and object; a function is called."""
    module_name, name = _names(data)
    try:
        module = importlib.import_module(module_name)
        found: Any = getattr(module, name, None)
        is_maker = callable(found) and not _is_random_access(found) and not _is_stream(found)
        if isinstance(found, type) or is_maker:
            found = found()
    except EdlError:
        raise
    except Exception as e:
        is_missing = isinstance(e, ModuleNotFoundError) and e.name == module_name
        raise UserCodeError(
            f"{data} cannot be made: {type(e).__name__}: {e}.",
            received={"data": data},
            cure="The module must lie beside the model, or be installed." if is_missing else "",
        ) from e
    if found is None:
        raise UserCodeError(
            f"The module {module_name} has no {name!r}, or that returns None.",
            received={"data": data},
        )
    return module, found


def _is_random_access(found: object) -> bool:
    return all(hasattr(found, method) for method in _METHODS)


def _is_stream(found: object) -> bool:
    return hasattr(found, "__iter__")


def _require_stream(found: Any, data: str, settings: DataSettings) -> None:
    if not _is_stream(found):
        missing = " and no ".join(method for method in _METHODS if not hasattr(found, method))
        raise UserCodeError(
            f"{data} gives no records: {type(found).__name__} has no {missing}, and cannot be"
            " iterated.",
            received={"data": data},
            cure="Return a list, an object with both methods, a tf.data.Dataset or a generator.",
        )
    if settings.columns:
        raise ConfigError(
            f"{data} is read as a whole, so no columns of it can be left out.",
            received={"data_plan.columns": ",".join(settings.columns)},
            cure="Leave the setting out, and choose in create_dataset or in the stream itself.",
        )
    cardinality = getattr(found, "cardinality", None)
    if callable(cardinality) and int(cardinality()) == _INFINITE:
        raise UserCodeError(
            f"{data} never ends, so its records cannot be counted.",
            received=type(found).__name__,
            cure="Leave repeat() out: train.epochs says how often the records are trained with.",
        )


def _gives_batches(found: Any) -> bool:
    """Whether the elements are batches, as far as what made them tells by its name."""
    if any(kind.__name__ in _GIVE_BATCHES for kind in type(found).__mro__):
        return True
    return any("Batch" in name and "Unbatch" not in name for name in _last_steps(found))


def _last_steps(dataset: Any) -> Iterator[str]:
    """The names of the last part of a tf.data pipeline that decides what its elements are."""
    name = type(dataset).__name__
    inputs = getattr(dataset, "_inputs", None)
    if callable(inputs) and any(part in name for part in _SAME_ELEMENTS):
        for before in inputs():
            yield from _last_steps(before)
    elif callable(inputs):
        yield name


KIND = _OwnDataset()
"""Objects of the user's."""
