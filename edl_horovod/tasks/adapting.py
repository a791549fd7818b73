"""What a model is to know of all its records, found out once a job: vocabularies, means, types."""

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from edl_horovod.errors import UserCodeError
from edl_horovod.files.build_lock import one_builder
from edl_horovod.files.whole_file import write_text
from edl_horovod.models.calling import call_declared, declared, user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.records.columns import Ragged
from edl_horovod.records.layout import Column
from edl_horovod.records.source import RecordSource
from edl_horovod.spec import ElasticDLSpec
from edl_horovod.trained_model import ADAPTED_FILE

__all__ = ["adapt"]


def adapt(
    loaded: LoadedSpec,
    source: RecordSource,
    folder: Path,
    tell: Callable[[str], None],
    *,
    examples: Callable[[], AbstractContextManager[Any]],
) -> None:
    """Give a spec what its `adapt` returns for all records; one process of the job calls that.

    Args:
        loaded: The spec; its attribute `adapted` is set. Without an `adapt` nothing is done.
        source: The job's training data.
        folder: Of the job, where the value is kept for all ranks, and for a job that goes on.
        tell: Called with what people should know.
        examples: Makes what `adapt` gets as its `examples`, where it declares them.

    Raises:
        DataError: A record cannot be read.
        UserCodeError: `adapt` raised something, or returned what is no JSON.
        OSError: The folder cannot be written.
    """
    if type(loaded.spec).adapt is ElasticDLSpec.adapt:
        return
    path = folder / ADAPTED_FILE
    lock = folder / f"{ADAPTED_FILE}.lock"
    with one_builder([lock], tell, doing="looks at all records", gives_up=False):
        value = _kept(path, source.fingerprint)
        if value is None:
            value = _looked_at(loaded, source, tell, examples)
            folder.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps({"fingerprint": source.fingerprint, "value": value}))
    loaded.spec.adapted = value


def _kept(path: Path, fingerprint: str) -> Any:
    """The value of these records, if a process of the job has found it; else None."""
    try:
        saved = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return saved["value"] if saved.get("fingerprint") == fingerprint else None


def _looked_at(
    loaded: LoadedSpec,
    source: RecordSource,
    tell: Callable[[str], None],
    examples: Callable[[], AbstractContextManager[Any]],
) -> Any:
    doing = f"adapt of {loaded.label}"
    available = {"records": _records(source), "blocks": _blocks(source), "tell": tell}
    with contextlib.ExitStack() as stack:
        if "examples" in declared(loaded.spec.adapt).names:
            available["examples"] = stack.enter_context(examples())
        with user_code(doing, root=loaded.zoo):
            value = call_declared(loaded.spec.adapt, available)
    try:
        # As all other ranks read it.
        return json.loads(json.dumps(value, allow_nan=False, default=_plain))
    except (TypeError, ValueError) as error:
        raise UserCodeError(
            f"{doing} must return what JSON can hold: {error}.",
            received=type(value).__name__,
            hint="Return dicts, lists, texts, numbers and NumPy's arrays of these.",
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is none of its types")


def _blocks(source: RecordSource) -> Iterator[dict[str, Any]] | None:
    """The columns of some thousand records at a time; None where there are no columns by name."""
    layout = source.layout
    if layout is None or layout.kind != "dict" or layout.structure is not None:
        return None

    def values_of(column: Column, values: Any) -> Any:
        if not column.time_type.startswith("datetime64"):
            return values
        if isinstance(values, Ragged):
            assert isinstance(values.values, np.ndarray)
            return Ragged(values.values.astype(column.time_type), values.ends)
        return values.astype(column.time_type)

    return (
        {
            column.name: values_of(column, values)
            for column, values in zip(layout.columns, block, strict=True)
        }
        for block in _read_blocks(source)
    )


def _records(source: RecordSource) -> Iterator[Any]:
    layout = source.layout
    for block in _read_blocks(source):
        if layout is None:
            yield from block
        else:
            yield from map(layout.pack, zip(*map(_one_by_one, block), strict=True))


def _read_blocks(source: RecordSource) -> Iterator[Any]:
    for start, count in zip(source.block_starts, source.block_counts, strict=True):
        yield source.read(range(int(start), int(start + count)))


def _one_by_one(values: Any) -> Iterator[Any]:
    if isinstance(values, Ragged):
        return iter(np.split(np.asarray(values.values), values.ends[:-1]))
    return iter(values)
