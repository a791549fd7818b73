"""Results, directories or single files, that appear complete or not at all.

A marker (`marker`) says that we wrote a result and what it is; nothing without one is replaced.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edl_horovod.errors import OutputError, cure_of
from edl_horovod.files import marker
from edl_horovod.files.whole_file import sync, write_json

__all__ = [
    "SINGLE_FILE_SUFFIX",
    "check_name",
    "check_output",
    "check_writable",
    "publish",
    "staged",
    "writing",
]

SINGLE_FILE_SUFFIX = ".recordio"
"""Predictions are written to one file instead of a directory if the output has this suffix."""
SCHEMA_SUFFIX = ".schema.json"
"""Suffix of the schema file that is written beside such a file."""
KINDS = (
    "trained model",
    "evaluation",
    "predictions",
    "prepared records",
    "model spec",
    "exported table",
)
"""Kinds of outputs, as their markers name them."""
MAX_NAME_BYTES = 200
"""Longest name of an output; the names of its temporary folders are longer."""
_PART_BYTES = 1 << 16


def check_output(path: Path, overwrite: bool, *, is_file: bool = False, job: str = "") -> None:
    """Check before any work is done that an output, a directory or a file, can be written.

    A job, known by its job_dir, may always replace its own result.

    Raises:
        OutputError: Something there must not be replaced, or nothing can be written there.
    """
    check_name(path)
    with writing(path):
        if is_file and not path.is_dir():
            _check_file(path, overwrite=overwrite, job=job)
        else:
            _check_directory(path, overwrite=overwrite, job=job)


def check_name(path: Path) -> None:
    """Refuse an output whose name is too long.

    Raises:
        OutputError: The name is longer than MAX_NAME_BYTES.
    """
    num_bytes = len(os.fsencode(path.name))
    if num_bytes > MAX_NAME_BYTES:
        raise OutputError(
            f"The name of the output is too long: it has {num_bytes} bytes; at most"
            f" {MAX_NAME_BYTES} fit.",
            received={"output": path},
            cure="Choose a shorter name.",
        )


def check_writable(path: Path) -> None:
    """Try out that an output can be put in its place: what a result takes is made and removed.

    Raises:
        OutputError: Nothing can be written beside it, a folder above it has too long a name or is a
            file, or it is where a file system is mounted.
    """
    output = path.absolute()
    if os.path.ismount(output):
        raise OutputError(
            "The output is where a file system is mounted, so no result can take its place.",
            received={"output": path},
            cure=f"Give a new folder in it, such as {output / 'result'}.",
        )
    with writing(path):
        there = next(above for above in output.parents if os.path.lexists(above))
        missing = output.relative_to(there).parts[:-1]
        with (
            tempfile.TemporaryDirectory(prefix=".edl-", dir=there) as trial,
            marker.work_folder(Path(trial, *missing) / output.name),
        ):
            pass


def _check_directory(path: Path, *, overwrite: bool, job: str) -> None:
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise OutputError(
            "The output exists and is not a directory.",
            received={"output": path},
            cure="Give the name of a directory that does not exist yet.",
        )
    if not path.is_dir() or not any(path.iterdir()):
        return
    found = marker.read(path / marker.NAME)
    if found is None or found["kind"] not in KINDS:
        raise OutputError(
            "The output directory holds something that edl_horovod did not write as a result, or"
            f" that an earlier version wrote (it has no {marker.NAME} that says so), so it is not"
            " replaced.",
            received={"output": path},
            cure="Give another name, or remove it by hand.",
        )
    if not overwrite and not _is_of(job, found):
        raise OutputError(
            "The output directory holds an earlier result.",
            received={"output": path},
            cure="Give another name, or overwrite=true to replace it.",
        )
    if foreign := sorted(_files_in(path) - {marker.NAME, *found.get("holds", ())}):
        raise OutputError(
            "The output directory holds an earlier result and something that edl_horovod did not"
            f" write: {', '.join(foreign[:5])}.",
            received={"output": path},
            cure="Move that away, or give another name.",
        )


def _files_in(folder: Path) -> set[str]:
    """All files in a folder and below, without the compiled modules that Python caches."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if (path.is_symlink() or not path.is_dir()) and path.parent.name != "__pycache__"
    }


def _check_file(path: Path, *, overwrite: bool, job: str) -> None:
    there = [file for file in (path, _schema_of(path)) if os.path.lexists(file)]
    if not there:
        return
    found = marker.read(_marker_of(path)) or {}
    digests = found.get("files", {})
    for file in there:
        if (
            file.is_symlink()
            or not file.is_file()
            or _digest(file) not in digests.get(file.name, ())
        ):
            raise OutputError(
                f"{file} is in the way, and is not known to be predictions that edl_horovod wrote:"
                f" {_marker_of(path).name} beside it does not say so.",
                received={"output": path},
                cure="Give another name, or remove it by hand.",
            )
    if not overwrite and not _is_of(job, found):
        raise OutputError(
            "The output file exists.",
            received={"output": path},
            cure="Give another name, or overwrite=true to replace it.",
        )


def _is_of(job: str, found: Mapping[str, Any]) -> bool:
    return bool(job) and found.get("job") == job


@contextlib.contextmanager
def staged(
    output: Path, kind: str, *, overwrite: bool, is_file: bool = False, job: str = ""
) -> Iterator[Path]:
    """Yield an empty directory, which becomes the output if the `with` ends without an exception.

    Until then an older output stays as it is, and an exception (Ctrl-C included) changes nothing.
    What a killed process of this machine has left is removed when a later one succeeds.

    Args:
        output: The directory or file to be written; missing parents are made.
        kind: One of KINDS.
        overwrite: Whether an earlier result there may be replaced.
        is_file: Yield the path of a file to write instead, in a folder of its own. A schema file
            may be written beside it; an older schema never stays beside a new output.
        job: The job_dir of the job that writes it. If its leader was lost right after this, the
            next leader replaces that output, which it may not do with another job's.

    Raises:
        OutputError: The output is in the way, or cannot be written.
    """
    output = output.absolute()
    check_output(output, overwrite, is_file=is_file, job=job)
    with writing(output), marker.work_folder(output) as work:
        new, old = work / "new", work / "old"
        new.mkdir()
        yield new / output.name if is_file else new
        if is_file:
            _put_file_in_place(new / output.name, output, old, kind, overwrite=overwrite, job=job)
        else:
            publish(new, output, kind, overwrite=overwrite, old=old, job=job)
        marker.remove_leftovers(output)


def publish(
    folder: Path, output: Path, kind: str, *, overwrite: bool, old: Path, job: str = ""
) -> None:
    """Rename a complete directory, on the output's file system, to the output (absolute).

    An earlier result is kept in `old` until the new one is in place. The rest is as for `staged`.

    Raises:
        OutputError: The output is in the way, or cannot be written.
    """
    with writing(output):
        marker.write(folder, kind, holds=sorted(_files_in(folder)), **_job_field(job))
        for path in folder.rglob("*"):
            sync(path)
        sync(folder)
        check_output(output, overwrite, job=job)
        _put_in_place(folder, output, old)


def _job_field(job: str) -> dict[str, str]:
    return {"job": job} if job else {}


def _put_file_in_place(
    new: Path, output: Path, old: Path, kind: str, *, overwrite: bool, job: str
) -> None:
    made = [path for path in (new, _schema_of(new)) if path.exists()]
    for path in made:
        sync(path)
    check_output(output, overwrite, is_file=True, job=job)
    # The marker is written first and lists the older files too, so that whenever this process
    # ends, the files there are known to be ours.
    places = (output, _schema_of(output))
    older = [path for path in places if path.is_file()]
    files = {
        place.name: [_digest(path) for path in (*made, *older) if path.name == place.name]
        for place in places
    }
    write_json(
        _marker_of(output),
        {"format": marker.FORMAT_VERSION, "kind": kind, "files": files, **_job_field(job)},
    )
    _schema_of(output).unlink(missing_ok=True)
    _put_in_place(new, output, old)
    for path in made[1:]:
        path.replace(output.with_name(path.name))


def _put_in_place(new: Path, output: Path, old: Path) -> None:
    if output.is_dir() and (new.is_file() or any(output.iterdir())):
        output.rename(old)
        try:
            new.rename(output)
        except BaseException:
            old.rename(output)
            raise
        shutil.rmtree(old, ignore_errors=True)
    else:
        new.replace(output)
    sync(output.parent)


def _schema_of(file: Path) -> Path:
    return file.with_name(file.name + SCHEMA_SUFFIX)


def _marker_of(file: Path) -> Path:
    return file.with_name(f".{file.name}{marker.NAME}")


def _digest(file: Path) -> str:
    """Digest of a file's length, beginning and end, which tells it from files of others."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as stream:
        digest.update(stream.read(_PART_BYTES))
        stream.seek(max(0, size - _PART_BYTES))
        digest.update(stream.read(_PART_BYTES))
    return digest.hexdigest()


@contextlib.contextmanager
def writing(output: Path) -> Iterator[None]:
    """Turn an `OSError` into an `OutputError` that names the output.

    Raises:
        OutputError: The output cannot be written.
    """
    try:
        yield
    except OSError as e:
        raise OutputError(
            f"The output cannot be written: {e}.", received={"output": output}, cure=cure_of(e)
        ) from e
