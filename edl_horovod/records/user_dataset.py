"""A user's own data set: `dataset:module.name` is an object with records by index, or a stream."""

import importlib
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from edl_horovod.errors import ConfigError, DataError, EdlError, UserCodeError
from edl_horovod.records.source import (
    DataSettings,
    RecordSource,
    SourceKind,
    SourceRequest,
    refuse_skipping,
)

SCHEME = "dataset"
_METHODS = ("__len__", "__getitem__")
_BATCHING_CLASSES = ("DataLoader", "PyDataset")
"""Classes of PyTorch and Keras whose elements are batches."""
_ELEMENT_PRESERVING = ("Prefetch", "Options", "Cache", "Shuffle", "Take", "Skip", "Repeat", "Shard")
"""Parts of the class names of tf.data transformations that do not change elements."""
_INFINITE = -1


class _UserDataset(SourceKind):
    """A user's object, or a function that returns one.

    The object has `__len__` and `__getitem__`, or it is iterable, like a `tf.data.Dataset` or a
    generator.
    """

    runs_user_code = True

    def open(self, request: SourceRequest) -> RecordSource:
        """Import the module and read the first records; a stream is read to its end."""
        data, settings = request.data, request.settings
        self._check_settings(data, settings)
        module, dataset = _create(data)
        if _yields_batches(dataset):
            raise UserCodeError(
                f"{data} yields batches, but a record must be one example.",
                received=type(dataset).__name__,
                hint="Remove the batching, or end a tf.data.Dataset with .unbatch():"
                " train.batch_size sets the number of examples in a step.",
            )
        # Imported here: commands that only check the settings do not need NumPy.
        if _is_random_access(dataset):
            from edl_horovod.records.map_dataset import MapDataset

            return MapDataset(dataset, data, selected=settings.columns)
        _require_stream(dataset, data, settings)
        if request.folders is None:
            problem = f"{data} can only be read from its start, and no job can cache its records."
            hint = "Return an object with __len__ and __getitem__, or open it in a job."
            raise DataError(problem, received={"data": data}, hint=hint)
        from edl_horovod.records.code_digest import digest_of
        from edl_horovod.records.streams import open_stream

        return open_stream(dataset, digest_of(module), request)

    def check(self, datasets: Sequence[str], settings: DataSettings) -> None:
        """Check the form of the setting; user code runs only on the ranks."""
        for data in datasets:
            _names(data)
            self._check_settings(data, settings)

    def _check_settings(self, data: str, settings: DataSettings) -> None:
        why = "only your code can detect damaged records and skip them"
        refuse_skipping(f"records of your own ({data})", settings, why=why)


def _names(data: str) -> tuple[str, str]:
    module, _, name = data.removeprefix(f"{SCHEME}:").rpartition(".")
    if not module or not all(part.isidentifier() for part in f"{module}.{name}".split(".")):
        raise DataError(
            "dataset: must be followed by a module and the name of an object or function in it.",
            received={"data": data},
            hint="Write data=dataset:my_data.train for train in my_data.py beside the model.",
        )
    return module, name


def _create(data: str) -> tuple[ModuleType, Any]:
    """Import the user's module and return it with the object; call a function or class first."""
    module_name, name = _names(data)
    try:
        module = importlib.import_module(module_name)
        dataset: Any = getattr(module, name, None)
        is_dataset = _is_random_access(dataset) or hasattr(dataset, "__iter__")
        if isinstance(dataset, type) or (callable(dataset) and not is_dataset):
            dataset = dataset()
    except EdlError:
        raise
    except Exception as e:
        is_missing = isinstance(e, ModuleNotFoundError) and e.name == module_name
        problem = f"{data} cannot be created: {type(e).__name__}: {e}."
        hint = "The module must lie beside the model, or be installed." if is_missing else ""
        raise UserCodeError(problem, received={"data": data}, hint=hint) from e
    if dataset is None:
        problem = f"The module {module_name} does not define {name!r}, or {name!r} returns None."
        raise UserCodeError(problem, received={"data": data})
    return module, dataset


def _is_random_access(dataset: object) -> bool:
    return all(hasattr(dataset, method) for method in _METHODS)


def _require_stream(dataset: Any, data: str, settings: DataSettings) -> None:
    if not hasattr(dataset, "__iter__"):
        missing = " or ".join(method for method in _METHODS if not hasattr(dataset, method))
        raise UserCodeError(
            f"{data} is not a data set: {type(dataset).__name__} has no {missing}, and it is not"
            " iterable.",
            received={"data": data},
            hint="Return a list, an object with both methods, a tf.data.Dataset or a generator.",
        )
    if settings.columns:
        problem = f"{data} is read as a whole, so columns cannot be selected."
        hint = "Remove the setting, and select columns in create_dataset or in the stream."
        received = {"data_plan.columns": ",".join(settings.columns)}
        raise ConfigError(problem, received=received, hint=hint)
    cardinality = getattr(dataset, "cardinality", None)
    if callable(cardinality) and int(cardinality()) == _INFINITE:
        problem = f"{data} never ends, so its records cannot be counted."
        hint = "Remove repeat(): train.epochs sets how often the records are used."
        raise UserCodeError(problem, received=type(dataset).__name__, hint=hint)


def _yields_batches(dataset: Any) -> bool:
    """Whether the elements are batches, judged by the names of the classes that produce them."""
    if any(cls.__name__ in _BATCHING_CLASSES for cls in type(dataset).__mro__):
        return True
    return any("Batch" in name and "Unbatch" not in name for name in _element_transforms(dataset))


def _element_transforms(dataset: Any) -> Iterator[str]:
    """Yield the class names of the last tf.data transformations that determine the elements."""
    name = type(dataset).__name__
    inputs = getattr(dataset, "_inputs", None)
    if callable(inputs) and any(part in name for part in _ELEMENT_PRESERVING):
        for parent in inputs():
            yield from _element_transforms(parent)
    elif callable(inputs):
        yield name


KIND = _UserDataset()
