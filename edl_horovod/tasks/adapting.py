"""What a model is to know of all its records, found out once a job: vocabularies, means, types."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edl_horovod.errors import UserCodeError
from edl_horovod.files.whole_file import write_text
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.records.index_lock import one_builder
from edl_horovod.records.source import RecordSource
from edl_horovod.spec import ElasticDLSpec
from edl_horovod.trained_model.adapted import FILE_NAME

__all__ = ["adapt"]


def adapt(
    loaded: LoadedSpec, source: RecordSource, folder: Path, tell: Callable[[str], None]
) -> None:
    """Give a spec what its `adapt` returns for all records; one process of the job calls that.

    Args:
        loaded: The spec; its attribute `adapted` is set. Without an `adapt` nothing is done.
        source: The job's training data.
        folder: Of the job, where the value is kept for all ranks, and for a job that goes on.
        tell: Called with what people should know.

    Raises:
        DataError: A record cannot be read.
        UserCodeError: `adapt` raised something, or returned what is no JSON.
        OSError: The folder cannot be written.
    """
    if type(loaded.spec).adapt is ElasticDLSpec.adapt:
        return
    path = folder / FILE_NAME
    with one_builder([folder / f"{FILE_NAME}.lock"], tell):
        kept = _kept(path, source.fingerprint)
        if kept is None:
            kept = _looked_at(loaded, source, tell)
            folder.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps({"fingerprint": source.fingerprint, "value": kept}))
    loaded.spec.adapted = kept


def _kept(path: Path, fingerprint: str) -> Any:
    """The value of these records, if a process of the job has found it; else None."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return found["value"] if found.get("fingerprint") == fingerprint else None


def _looked_at(loaded: LoadedSpec, source: RecordSource, tell: Callable[[str], None]) -> Any:
    doing = f"adapt of {loaded.label}"
    with user_code(doing, root=loaded.zoo):
        available = {"records": _records(source), "tell": tell}
        value = call_declared(loaded.spec.adapt, available)
    try:
        # As all other ranks read it.
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UserCodeError(
            f"{doing} must return what JSON can hold: {error}.",
            received=type(value).__name__,
            cure="Return dicts, lists, texts and numbers.",
        ) from error


def _records(source: RecordSource) -> Iterator[Any]:
    for start, count in zip(source.block_starts, source.block_counts, strict=True):
        yield from source.read(range(int(start), int(start + count)))
