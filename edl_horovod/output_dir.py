"""Results, directories or single files, that appear whole or not at all."""

import contextlib
import glob
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from edl_horovod.errors import OutputError, cure_of

__all__ = ["SINGLE_FILE_SUFFIX", "check_output", "publish", "staged", "writing"]

SINGLE_FILE_SUFFIX = ".recordio"
"""Predictions whose output ends so become one file instead of a directory."""
_OURS = ("trained_model.pb", "metrics.json", "*.recordio")
"""What a directory that we wrote holds; one that holds none of these is never removed."""


def check_output(path: Path, overwrite: bool) -> None:
    """Refuse an output that is in the way, before any work is done for it.

    Args:
        path: The directory to be written, or the `.recordio` file.
        overwrite: Whether an earlier result there may be replaced.

    Raises:
        OutputError: There is a file, or a directory with something in it, that must stay.
    """
    if not path.is_file() or path.suffix != SINGLE_FILE_SUFFIX:
        _check_directory(path, overwrite=overwrite)
    elif not overwrite:
        raise OutputError(
            f"The output file exists. Received: output={str(path)!r}."
            " Give another name, or overwrite=true to replace it."
        )


def _check_directory(path: Path, *, overwrite: bool) -> None:
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise OutputError(
            f"The output exists and is not a directory. Received: output={str(path)!r}."
            " Give the name of a directory that does not exist yet."
        )
    if not path.is_dir() or not any(path.iterdir()):
        return
    if not any(next(path.glob(pattern), None) for pattern in _OURS):
        raise OutputError(
            "The output directory holds something that edl_horovod did not write, so it is not"
            f" replaced. Received: output={str(path)!r}. Give another name."
        )
    if not overwrite:
        raise OutputError(
            f"The output directory holds an earlier result. Received: output={str(path)!r}."
            " Give another name, or overwrite=true to replace it."
        )


@contextlib.contextmanager
def staged(output: Path, *, overwrite: bool, is_file: bool = False) -> Iterator[Path]:
    """Give an empty directory to fill, which takes the output's place when the `with` ends well.

    Until then an older output stays as it is; an exception, Ctrl-C included, leaves only that.
    What a process that was killed in here left behind goes when a later one is done.

    Args:
        output: The directory or `.recordio` file to be written; missing parents are made.
        overwrite: Whether an earlier result there may be replaced.
        is_file: Give the path of a file to be made instead, in a folder of its own. Other files
            made in that folder go beside the output; an older one is never beside a new output.

    Raises:
        OutputError: The output is in the way, or cannot be written.
    """
    output = output.absolute()
    check = check_output if is_file else _check_directory
    check(output, overwrite=overwrite)
    folder = output.with_name(f"{output.name}.partial-{os.getpid()}")
    partial = folder / output.name if is_file else folder
    try:
        with writing(output):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            yield partial
            _sync(folder)
            check(output, overwrite=overwrite)
            beside = [path for path in folder.iterdir() if path != partial] if is_file else []
            for path in beside:
                output.with_name(path.name).unlink(missing_ok=True)
            _put_in_place(partial, output)
            for path in beside:
                path.replace(output.with_name(path.name))
            _remove_leftovers(output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _put_in_place(partial: Path, output: Path) -> None:
    old = output.with_name(f"{output.name}.old-{os.getpid()}")
    if not output.is_dir():
        partial.replace(output)
    else:
        output.rename(old)
        try:
            partial.rename(output)
        except BaseException:
            old.rename(output)
            raise
        shutil.rmtree(old, ignore_errors=True)
    _sync_one(output.parent)


def _remove_leftovers(output: Path) -> None:
    for kind in ("partial", "old"):
        for leftover in output.parent.glob(f"{glob.escape(output.name)}.{kind}-[0-9]*"):
            shutil.rmtree(leftover, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Have every file of a directory on the disk before its name says that it is complete."""
    for path in folder.rglob("*"):
        _sync_one(path)
    _sync_one(folder)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def writing(output: Path) -> Iterator[None]:
    """Turn what the system says against writing into an `OutputError`.

    Args:
        output: What is written, for the message.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        yield
    except OSError as e:
        raise OutputError(
            f"The output cannot be written: {e}. Received: output={str(output)!r}. {cure_of(e)}"
        ) from e


def publish(folder: Path, output: Path, *, overwrite: bool) -> None:
    """Give a directory that was filled elsewhere, and is complete, the name of the output.

    Args:
        folder: The directory, on the output's file system.
        output: Its name to be, absolute.
        overwrite: Whether an earlier result there may be replaced.

    Raises:
        OutputError: The output is in the way, or cannot be written.
    """
    with writing(output):
        _sync(folder)
        _check_directory(output, overwrite=overwrite)
        _put_in_place(folder, output)
