"""A user's stream, which can only be read from its begin, is read once into records of the job.

Records are numbered in the order of that reading. They appear in the folder of the job complete or
not at all, and whoever opens the same stream later reads them.
"""

import contextlib
import json
import logging
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edl_horovod.errors import DataError, EdlError, OutputError, UserCodeError, cure_of
from edl_horovod.files.whole_file import sync, write_json
from edl_horovod.records.array_bytes import encode
from edl_horovod.records.elements import Elements, MisfitError
from edl_horovod.records.index_lock import one_builder
from edl_horovod.records.layout import Column, Layout, Part, Structure, Tensor
from edl_horovod.records.source import JobFolders
from edl_horovod.records.sources.recordio import Writer

__all__ = ["RECORDS", "KeptStream", "keep_stream"]

log = logging.getLogger(__name__)

RECORDS = "records.recordio"
_DESCRIPTION = "stream.json"
_FORMAT = 1
TELL_SECONDS = 5.0
"""How often people are told how far the reading is."""


@dataclass(frozen=True)
class KeptStream:
    """The records of a stream."""

    folder: Path
    layout: Layout


def keep_stream(
    stream: Iterable[Any], name: str, digest: str, folders: JobFolders, tell: Callable[[str], None]
) -> KeptStream:
    """Read a stream to its end, unless a process of this or an earlier job has done so.

    One process at a time does; the others wait for it, however long that takes.

    Args:
        stream: Gives one element after the other. It is not touched where its records are kept.
        name: What the user calls it, with the scheme.
        digest: Of the code that makes it. Kept records of other code are replaced.
        folders: Of the job.
        tell: Called with what people should know.

    Raises:
        DataError: There are no elements, or they are not alike.
        OutputError: The records cannot be written.
        UserCodeError: The stream raised something.
    """
    own = name.partition(":")[2]
    kept = folders.records / own

    def say(message: str) -> None:
        log.info("%s", message)
        tell(message)

    with (
        _writing(kept),
        one_builder([folders.records / f"{own}.lock"], say, doing=f"reads {name}", gives_up=False),
    ):
        found = _found(kept, digest)
        if found is not None:
            return found
        say(
            f"{name} can only be read from its begin: it is read once now, and its records are kept"
            f" in {kept}"
        )
        _make(stream, name, digest, kept, folders.unfinished_records / own, say)
        found = _found(kept, digest)
        if found is None:
            raise OutputError(
                f"The records of {name} are not in {kept} after they were written.",
                received={"data": name},
                cure="Look whether something else writes there.",
            )
        return found


def _make(
    stream: Iterable[Any],
    name: str,
    digest: str,
    kept: Path,
    unfinished: Path,
    say: Callable[[str], None],
) -> None:
    """Write the records beside their folder, and then put them there."""
    folder = unfinished.with_name(f"{unfinished.name}.{secrets.token_hex(4)}")
    folder.mkdir(parents=True)
    try:
        written = _write(stream, name, folder, say)
        _describe(folder, digest, written.layout())
        if kept.exists():
            shutil.rmtree(kept)
        try:
            folder.rename(kept)
        except OSError:
            # Where files cannot be locked, another process may have been faster.
            if not kept.exists():
                raise
        sync(kept.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # Another stream is being read.
            folder.parent.rmdir()


@contextlib.contextmanager
def _writing(kept: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{kept} cannot be written: {error}.", received={"path": kept}, cure=cure_of(error)
        ) from error


def _write(stream: Iterable[Any], name: str, folder: Path, say: Callable[[str], None]) -> Elements:
    elements = Elements()
    began = told = time.monotonic()
    count, num_bytes = 0, 0
    with Writer(folder / RECORDS) as writer:
        for count, element in enumerate(_elements(stream, name), start=1):
            try:
                record = encode(elements.arrays(element))
            except MisfitError as error:
                raise DataError(
                    f"Element {count - 1} of {name} is not like the others, or no record: {error}.",
                    received={"data": name},
                    cure="All elements must be tensors, arrays, numbers or text, or tuples or dicts"
                    " of these, of the same types and numbers of axes.",
                ) from error
            writer.write(record)
            num_bytes += len(record)
            if time.monotonic() >= told + TELL_SECONDS:
                told = time.monotonic()
                say(f"{name}: {_size(count, num_bytes)} in {told - began:.0f} s")
        if not count:
            raise DataError("There are no records in the data.", received={"data": name})
    on_disk = (folder / RECORDS).stat().st_size
    say(
        f"{name}: {_size(count, num_bytes)}, {on_disk / 1e6:,.1f} MB on the disk; each is"
        f" {elements}"
    )
    return elements


def _elements(stream: Iterable[Any], name: str) -> Iterable[Any]:
    count = 0
    try:
        for element in stream:
            yield element
            count += 1
    except EdlError:
        raise
    except Exception as e:
        raise UserCodeError(
            f"{name} gives an error after {count:,} elements: {type(e).__name__}: {e}.",
            received={"data": name},
        ) from e


def _size(count: int, num_bytes: int) -> str:
    return f"{count:,} records of {num_bytes / 1e6:,.1f} MB"


def _describe(folder: Path, digest: str, layout: Layout) -> None:
    assert layout.structure is not None
    write_json(
        folder / _DESCRIPTION,
        {
            "format": _FORMAT,
            "digest": digest,
            "columns": [asdict(column) for column in layout.columns],
            "structure": _to_json(layout.structure),
        },
    )


def _found(kept: Path, digest: str) -> KeptStream | None:
    """The records in a folder, if code with this digest made them."""
    try:
        saved = json.loads((kept / _DESCRIPTION).read_bytes())
    except FileNotFoundError:
        return None
    if (saved["format"], saved["digest"]) != (_FORMAT, digest):
        return None
    columns = tuple(
        Column(one["name"], one["dtype"], tuple(one["shape"])) for one in saved["columns"]
    )
    return KeptStream(kept, Layout(columns, structure=_from_json(saved["structure"])))


def _to_json(structure: Structure) -> Any:
    if isinstance(structure, dict):
        return {"dict": [[name, _to_json(inner)] for name, inner in structure.items()]}
    if isinstance(structure, tuple):
        return {"tuple": [_to_json(inner) for inner in structure]}
    return asdict(structure)


def _from_json(saved: dict[str, Any]) -> Structure:
    if "dict" in saved:
        return {name: _from_json(inner) for name, inner in saved["dict"]}
    if "tuple" in saved:
        return tuple(map(_from_json, saved["tuple"]))
    parts = (
        Part(one["column"], tuple(one["shape"]), one["shape_column"]) for one in saved["parts"]
    )
    return Tensor(saved["kind"], tuple(parts))
