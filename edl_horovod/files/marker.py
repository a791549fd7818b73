"""The marker file in every folder that we make: we replace and remove nothing without one (D23).

A name proves nothing. The marker of a temporary folder names the process that works in it, and that
process holds a lock on the marker. Whoever gets the lock on the same running machine knows that the
owner is dead. What another machine left is never removed.
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

__all__ = [
    "NAME",
    "boot_id",
    "claim",
    "kind_of",
    "read",
    "remove_leftovers",
    "work_folder",
    "write",
]

NAME = ".edl_horovod.json"
FORMAT_VERSION = 1
PARTIAL = "partial"
"""The kind of a folder in which a result is being made."""
_HOST_CHARACTERS = 20
_RANDOM_BYTES = 8


def write(folder: Path, kind: str, **more: Any) -> None:
    """Put the marker into a folder that we made, or that was empty.

    Raises:
        OSError: It cannot be written.
    """
    write_json(folder / NAME, {"format": FORMAT_VERSION, "kind": kind, **more})


def read(path: Path) -> dict[str, Any] | None:
    """Read a marker; None if the file does not exist or is not a marker of ours.

    Raises:
        OSError: It cannot be read.
    """
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    is_ours = isinstance(found, dict) and found.get("format") == FORMAT_VERSION
    return found if is_ours and isinstance(found.get("kind"), str) else None


def kind_of(folder: Path) -> str:
    """The kind that a folder's marker states; empty if the folder is not ours."""
    found = read(folder / NAME)
    return "" if found is None else str(found["kind"])


def claim(folder: Path, kind: str, *, received: str, may_hold: Container[str] = ()) -> None:
    """Make a folder, or take over one that is empty or already has a marker of this kind.

    Several processes may do so at once. An unmarked folder may contain what `may_hold` names;
    `received` is the setting that names the folder, as `key=value`.

    Raises:
        OutputError: The folder has other contents and no marker of this kind.
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if kind_of(folder) == kind:
        return
    writing = f".{NAME}."  # Another process may write its marker just now.
    others = sorted(path.name for path in folder.iterdir() if not path.name.startswith(writing))
    foreign = [name for name in others if name not in may_hold]
    if kind_of(folder) == kind:
        return  # Another process has made it meanwhile, with its contents.
    if foreign:
        shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise OutputError(
            f"{folder} holds something ({shown}), and no marker of edl_horovod says that it is the"
            f" folder of a {kind}, so nothing in it is touched.",
            received=received,
            cure=(
                f"Give another {received.partition('=')[0]}; or remove the folder by hand if nobody"
                " needs it, as where an earlier version made it."
            ),
        )
    write(folder, kind)


@contextlib.contextmanager
def work_folder(output: Path) -> Iterator[Path]:
    """A temporary folder beside an output (absolute), removed when the `with` ends.

    Raises:
        OSError: The folder cannot be made.
    """
    host = re.sub(r"[^\w.-]", "_", socket.gethostname(), flags=re.ASCII)[:_HOST_CHARACTERS]
    ending = f"{host}-{os.getpid()}-{secrets.token_hex(_RANDOM_BYTES)}"
    folder = output.with_name(f"{output.name}.partial-{ending}")
    folder.mkdir(parents=True)
    try:
        # The marker is locked before it has its name, so nobody sees one that is not locked.
        unnamed = folder / f"{NAME}.new"
        with unnamed.open("w") as stream:
            is_held = _try_to_lock(stream.fileno())
            owner = {
                "name": folder.name,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                # Without a lock nobody can know that the owner is dead.
                "boot": boot_id() if is_held else "",
            }
            json.dump({"format": FORMAT_VERSION, "kind": PARTIAL, **owner}, stream)
            stream.flush()
            unnamed.rename(folder / NAME)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(output: Path) -> None:
    """Remove the temporary folders of an output whose processes, of this machine, were killed."""
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
    found = read(folder / NAME) or {}
    now = {"kind": PARTIAL, "name": folder.name, "host": socket.gethostname(), "boot": boot_id()}
    return bool(boot_id()) and all(found.get(key) == value for key, value in now.items())


def boot_id() -> str:
    """The ID of this boot of the machine; empty if the kernel does not give one."""
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
