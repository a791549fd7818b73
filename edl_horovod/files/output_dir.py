"""Results, directories or single files, that appear complete or not at all.

A marker (`marker`) records that we wrote a result and its kind; unmarked files are never replaced.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edl_horovod.errors import OutputError, hint_of
from edl_horovod.files import marker
from edl_horovod.files.whole_file import sync, write_json

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
"""The kinds of outputs in markers."""
MAX_NAME_BYTES = 200
"""Maximum length of the name of an output; the names of its temporary folders are longer."""
_PART_BYTES = 1 << 16
_OVERWRITE_HINT = "Choose another name, or set overwrite=true to replace it."


def check_output(path: Path, overwrite: bool, *, is_file: bool = False, job: str = "") -> None:
    """Check before any work is done that an output, a directory or a file, can be written.

    A job, identified by its job_dir, may always replace its own result.

    Raises:
        OutputError: An existing file must not be replaced, or the output cannot be written.
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
        limit = f"it has {num_bytes} bytes; the limit is {MAX_NAME_BYTES}"
        problem = f"The name of the output is too long: {limit}."
        raise _refusal(path, problem, "Choose a shorter name.")


def check_writable(path: Path) -> None:
    """Check that an output can be written by creating and removing a temporary folder beside it.

    Raises:
        OutputError: The folder above is not writable, a parent has too long a name or is a file, or
            the output is a mount point.
    """
    output = path.absolute()
    if os.path.ismount(output):
        problem = "The output is a mount point, which cannot be replaced by a result."
        raise _refusal(path, problem, f"Choose a new folder in it, such as {output / 'result'}.")
    with writing(path):
        existing = next(parent for parent in output.parents if os.path.lexists(parent))
        missing = output.relative_to(existing).parts[:-1]
        with (
            tempfile.TemporaryDirectory(prefix=".edl-", dir=existing) as trial,
            marker.work_folder(Path(trial, *missing) / output.name),
        ):
            pass


@contextlib.contextmanager
def staged(
    output: Path, kind: str, *, overwrite: bool, is_file: bool = False, job: str = ""
) -> Iterator[Path]:
    """Yield an empty directory, which becomes the output if the `with` ends without an exception.

    Until then an older output is unchanged, and after an exception (Ctrl-C included) it remains.
    Temporary folders of killed processes of this machine are removed when a later one succeeds.

    Args:
        output: The directory or file to be written; missing parents are created.
        kind: One of KINDS.
        overwrite: Whether an earlier result may be replaced.
        is_file: Yield the path of a file to write instead, in a separate folder. A schema file may
            be written beside it; an older schema is removed with the older output.
        job: The job_dir of the job that writes it. If the leader is lost right after this, the next
            leader may replace the output, because it belongs to the same job.

    Raises:
        OutputError: The output exists and may not be replaced, or cannot be written.
    """
    output = output.absolute()
    check_output(output, overwrite, is_file=is_file, job=job)
    with writing(output), marker.work_folder(output) as work:
        new, old = work / "new", work / "old"
        new.mkdir()
        yield new / output.name if is_file else new
        if is_file:
            _replace_file(new / output.name, output, old, kind, overwrite=overwrite, job=job)
        else:
            publish(new, output, kind, overwrite=overwrite, old=old, job=job)
        marker.remove_leftovers(output)


def publish(
    folder: Path, output: Path, kind: str, *, overwrite: bool, old: Path, job: str = ""
) -> None:
    """Rename a complete directory, on the output's file system, to the output (absolute).

    An earlier result is moved to `old` until the rename succeeds. For the rest see `staged`.

    Raises:
        OutputError: The output exists and may not be replaced, or cannot be written.
    """
    with writing(output):
        marker.write(folder, kind, holds=sorted(_files_in(folder)), **_job_field(job))
        for path in folder.rglob("*"):
            sync(path)
        sync(folder)
        check_output(output, overwrite, job=job)
        _replace_output(folder, output, old)


@contextlib.contextmanager
def writing(output: Path) -> Iterator[None]:
    """Convert an `OSError` to an `OutputError` that names the output.

    Raises:
        OutputError: The output cannot be written.
    """
    try:
        yield
    except OSError as e:
        problem = f"The output cannot be written: {e}."
        raise OutputError(problem, received={"output": output}, hint=hint_of(e)) from e


def _check_directory(path: Path, *, overwrite: bool, job: str) -> None:
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        hint = "Choose the name of a directory that does not exist."
        raise _refusal(path, "The output exists and is not a directory.", hint)
    if not path.is_dir() or not any(path.iterdir()):
        return
    content = marker.read(path / marker.NAME)
    if content is None or content["kind"] not in KINDS:
        problem = (
            f"The output directory is not empty and has no {marker.NAME} of a result, so it is not"
            " replaced. edl_horovod did not write it, or an earlier version did."
        )
        raise _refusal(path, problem, "Choose another name, or remove it yourself.")
    if not overwrite and not _belongs_to(job, content):
        raise _refusal(path, "The output directory contains an earlier result.", _OVERWRITE_HINT)
    if foreign := sorted(_files_in(path) - {marker.NAME, *content.get("holds", ())}):
        names = f"files that edl_horovod did not write: {', '.join(foreign[:5])}"
        problem = f"The output directory contains an earlier result and {names}."
        raise _refusal(path, problem, "Move these files, or choose another name.")


def _files_in(folder: Path) -> set[str]:
    """Return all files in a folder and below, without Python's cached bytecode."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if (path.is_symlink() or not path.is_dir()) and path.parent.name != "__pycache__"
    }


def _check_file(path: Path, *, overwrite: bool, job: str) -> None:
    existing = [file for file in (path, _schema_of(path)) if os.path.lexists(file)]
    if not existing:
        return
    content = marker.read(_marker_of(path)) or {}
    digests = content.get("files", {})
    for file in existing:
        is_plain = file.is_file() and not file.is_symlink()
        if not is_plain or _digest(file) not in digests.get(file.name, ()):
            lack = "does not list it as predictions that edl_horovod wrote"
            problem = f"{file} exists, and {_marker_of(path).name} beside it {lack}."
            raise _refusal(path, problem, "Choose another name, or remove it yourself.")
    if not overwrite and not _belongs_to(job, content):
        raise _refusal(path, "The output file exists.", _OVERWRITE_HINT)


def _refusal(output: Path, problem: str, hint: str) -> OutputError:
    return OutputError(problem, received={"output": output}, hint=hint)


def _belongs_to(job: str, content: Mapping[str, Any]) -> bool:
    return bool(job) and content.get("job") == job


def _job_field(job: str) -> dict[str, str]:
    return {"job": job} if job else {}


def _replace_file(
    new: Path, output: Path, old: Path, kind: str, *, overwrite: bool, job: str
) -> None:
    new_files = [path for path in (new, _schema_of(new)) if path.exists()]
    for path in new_files:
        sync(path)
    check_output(output, overwrite, is_file=True, job=job)
    # The marker is written first and also lists the older files, so the existing files are
    # recognized as ours whenever this process ends.
    targets = (output, _schema_of(output))
    files: dict[str, list[str]] = {target.name: [] for target in targets}
    for path in (*new_files, *(target for target in targets if target.is_file())):
        files[path.name].append(_digest(path))
    content = {"format": marker.FORMAT_VERSION, "kind": kind, "files": files, **_job_field(job)}
    write_json(_marker_of(output), content)
    _schema_of(output).unlink(missing_ok=True)
    _replace_output(new, output, old)
    for path in new_files[1:]:
        path.replace(output.with_name(path.name))


def _replace_output(new: Path, output: Path, old: Path) -> None:
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
    """Return a digest of a file's length, start and end, to recognize our own files."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as stream:
        digest.update(stream.read(_PART_BYTES))
        stream.seek(max(0, size - _PART_BYTES))
        digest.update(stream.read(_PART_BYTES))
    return digest.hexdigest()
