"""The marker file in every folder that we create: we never replace or remove an unmarked one (D23).

The name of a folder is no evidence that it is ours. The marker of a temporary folder names the
process that works in it, and that process holds a lock on the marker. A process of the same boot of
the machine that gets the lock knows that the owner is dead. Folders of other machines are never
removed.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from edl_horovod.errors import OutputError
from edl_horovod.files.whole_file import write_json

NAME = ".edl_horovod.json"
FORMAT_VERSION = 1
PARTIAL = "partial"
"""The kind of a folder in which a result is being written."""
_HOST_CHARACTERS = 20
_RANDOM_BYTES = 8


def write(folder: Path, kind: str, **more: Any) -> None:
    """Write the marker into a folder that we created, or that was empty.

    Raises:
        OSError: The marker cannot be written.
    """
    write_json(folder / NAME, {"format": FORMAT_VERSION, "kind": kind, **more})


def read(path: Path) -> dict[str, Any] | None:
    """Read a marker; None if the file does not exist or is not a marker of ours.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    is_ours = isinstance(content, dict) and content.get("format") == FORMAT_VERSION
    return content if is_ours and isinstance(content.get("kind"), str) else None


def kind_of(folder: Path) -> str:
    """Return the kind in a folder's marker; empty if the folder is not ours."""
    content = read(folder / NAME)
    return "" if content is None else str(content["kind"])


def claim(folder: Path, kind: str, *, received: str, may_hold: Container[str] = ()) -> None:
    """Create a folder, or use one that is empty or already has a marker of this kind.

    Several processes may call this concurrently.

    Args:
        folder: The folder.
        kind: The kind for the marker.
        received: The setting that names the folder, as `key=value`.
        may_hold: Names of entries that an unmarked folder may contain.

    Raises:
        OutputError: The folder has other contents and no marker of this kind.
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if kind_of(folder) == kind:
        return
    temporary_prefix = f".{NAME}."  # Another process may be writing its marker.
    names = (path.name for path in folder.iterdir() if path.name not in may_hold)
    foreign = sorted(name for name in names if not name.startswith(temporary_prefix))
    if kind_of(folder) == kind:
        return  # Another process created it, with its contents, since the first check.
    if foreign:
        first_names = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise OutputError(
            f"{folder} is not empty ({first_names}) and has no marker of edl_horovod for a {kind},"
            " so it is not changed.",
            received=received,
            hint=f"Choose another {received.partition('=')[0]}, or remove the folder yourself if it"
            " is not needed, for instance if an earlier version created it.",
        )
    write(folder, kind)


@contextlib.contextmanager
def work_folder(output: Path) -> Iterator[Path]:
    """Create a temporary folder beside an output (absolute), removed when the `with` ends.

    Raises:
        OSError: The folder cannot be created.
    """
    host = re.sub(r"[^\w.-]", "_", socket.gethostname(), flags=re.ASCII)[:_HOST_CHARACTERS]
    ending = f"{host}-{os.getpid()}-{secrets.token_hex(_RANDOM_BYTES)}"
    folder = output.with_name(f"{output.name}.partial-{ending}")
    folder.mkdir(parents=True)
    try:
        # The marker is locked before it is renamed, so no process sees an unlocked marker.
        unnamed = folder / f"{NAME}.new"
        with unnamed.open("w") as stream:
            is_held = _try_to_lock(stream.fileno())
            owner = {
                "name": folder.name,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                # Without a lock no process can detect that the owner is dead.
                "boot": boot_id() if is_held else "",
            }
            json.dump({"format": FORMAT_VERSION, "kind": PARTIAL, **owner}, stream)
            stream.flush()
            unnamed.rename(folder / NAME)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(output: Path) -> None:
    """Remove the temporary folders of an output that killed processes of this machine left."""
    host = rf"[\w.-]{{1,{_HOST_CHARACTERS}}}"
    ending = re.compile(rf"{host}-\d+-[0-9a-f]{{{2 * _RANDOM_BYTES}}}", re.ASCII)
    start = f"{output.name}.partial-"
    for path in output.parent.iterdir():
        if path.name.startswith(start) and ending.fullmatch(path.name.removeprefix(start)):
            with contextlib.suppress(OSError):  # The folder stays; the output is complete.
                _remove_if_dead(path)


def _remove_if_dead(folder: Path) -> None:
    if folder.is_symlink() or not _is_of_this_machine(folder):
        return
    with (folder / NAME).open("r+") as stream:
        if _try_to_lock(stream.fileno()):
            shutil.rmtree(folder, ignore_errors=True)


def _is_of_this_machine(folder: Path) -> bool:
    content = read(folder / NAME) or {}
    owner = {"name": folder.name, "host": socket.gethostname(), "boot": boot_id()}
    return bool(boot_id()) and content | owner | {"kind": PARTIAL} == content


def boot_id() -> str:
    """Return the ID of this boot of the machine; empty if the kernel does not provide one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _try_to_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
