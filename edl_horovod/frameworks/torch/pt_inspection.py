"""What a file of `torch.save` holds, found out without running anything of it.

The pickle in it is read by an unpickler that resolves each global to a stand-in: what a harmful
pickle calls only makes another stand-in. So no class or function of the file has to be there.
"""

import io
import pickle
import pickletools
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from edl_horovod.errors import UserCodeError

__all__ = [
    "PtFile",
    "StandIn",
    "Storage",
    "entries_of",
    "global_path",
    "inspect_pt",
    "inspected_pt",
    "modules_of",
    "shape_of",
]

_MAGIC = 0x1950A86A20F9469CFC6C
"""What the first pickle of a file of PyTorch before 1.6 holds."""
_LEGACY_PICKLES, _LEGACY_OBJECT = 5, 3
"""How many there are before the values, and the place of the object."""
_NEWEST_VERSION = 10
"""The newest format of archives that PyTorch reads."""
_MAX_PICKLE_BYTES = 256 << 20
"""Longest pickle that is read; the values of tensors lie beside it."""
_OF_OTHERS = {
    b"\x89HDF": "an HDF5 file, as Keras writes",
    b"GGUF": "a GGUF file",
    b"sys_": "a tar archive, as the first versions of PyTorch wrote",
}


class StandIn:
    """Stands for what a pickle makes by calling a global, and for the global itself."""

    path = ""
    """The global, `module.name`."""

    def __new__(cls, *args: Any, **_keywords: Any) -> "StandIn":
        """Take the arguments of a call, and call nothing."""
        made = object.__new__(cls)
        made.args, made.state, made.entries = args, None, {}
        return made

    args: tuple[Any, ...]
    """What the global was called with."""
    state: Any
    """What the object was given after that."""
    entries: dict[Any, Any]
    """Keys and values, where it is a mapping."""

    def __init__(self, *_args: Any, **_keywords: Any) -> None:
        """Do nothing: `__new__` has taken the arguments."""

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    def append(self, value: Any) -> None:
        """Take an element of a list, of which nothing is needed."""

    def add(self, value: Any) -> None:
        """Take an element of a set, of which nothing is needed."""


@dataclass(frozen=True)
class Storage:
    """Stands for the values of a tensor, which lie beside the pickle."""

    reference: Any


@dataclass(frozen=True, kw_only=True)
class PtFile:
    """What a file holds."""

    path: Path
    is_legacy: bool
    """Whether it has the format of PyTorch before 1.6."""
    globals: tuple[str, ...]
    """All classes and functions that it names, as `module.name`, each once."""
    root: Any
    """The object, made of stand-ins; None where the pickle is damaged."""
    damage: str
    """What is wrong with the pickle; empty if nothing is."""


def inspect_pt(path: Path) -> PtFile:
    """Inspect a file; nothing in it runs.

    Raises:
        UserCodeError: It is not there, or is no file of `torch.save`.
    """
    with inspected_pt(path) as (found, _):
        return found


@contextmanager
def inspected_pt(path: Path) -> Iterator[tuple[PtFile, BinaryIO]]:
    """What a file holds, and the inspected bytes for `torch.load`; nothing in it runs.

    Raises:
        UserCodeError: It is not there, or is no file of `torch.save`.
    """
    try:
        stream: BinaryIO = path.open("rb")
    except OSError as e:
        raise _unreadable(path, e) from e
    with stream:
        try:
            start = stream.read(4)
            stream.seek(0)
            if start[:1] == pickle.PROTO:
                # A file on a disk is unpacked by torch.load as a tar archive if it is one as well,
                # links and modes of files elsewhere included. It never does that in memory.
                stream = io.BytesIO(stream.read())
                found = _inspect_legacy(path, stream)
            elif start == b"PK\x03\x04":
                found = _inspect_archive(path, stream)
            else:
                what = _OF_OTHERS.get(start, "neither a zip archive nor a pickle")
                raise _no_pt(path, f"it is {what if start else 'empty'}")
            stream.seek(0)
        except OSError as e:
            raise _unreadable(path, e) from e
        yield found, stream


def _inspect_archive(path: Path, stream: BinaryIO) -> PtFile:
    try:
        with zipfile.ZipFile(stream) as archive:
            names = archive.namelist()
            content = _pickle_of(path, archive, names)
        stream.seek(0)
        # Readers find the directory of an archive in different ways, and a file may hold two.
        loaded = torch._C.PyTorchFileReader(stream).get_record("data.pkl")
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as e:
        why = str(e).partition("\n")[0].removesuffix(".")
        raise UserCodeError(
            f"{path} is damaged: {why}. It was probably cut off.",
            cure="Copy it again, or save the model again.",
        ) from e
    if loaded != content:
        raise UserCodeError(
            f"{path} is two archives in one: PyTorch would load another one than was inspected.",
            cure="Save the model again.",
        )
    return _inspected(path, io.BytesIO(content), is_legacy=False)


def _pickle_of(path: Path, archive: zipfile.ZipFile, names: list[str]) -> bytes:
    inner = [name.partition("/")[2] for name in names]
    if any(name == "constants.pkl" or name.startswith("code/") for name in inner):
        raise UserCodeError(
            f"{path} is a TorchScript program (torch.jit.save), which is code and cannot be trained"
            " here.",
            cure="Save the module itself by torch.save(model, ...), or its weights by"
            " torch.save(model.state_dict(), ...).",
        )
    if "archive_format" in inner:
        raise UserCodeError(
            f"{path} is a program of torch.export, which cannot be trained here.",
            cure="Save the module itself by torch.save(model, ...).",
        )
    if "data.pkl" not in inner:
        raise _no_pt(path, "it is a zip archive without data.pkl")
    if len(set(names)) != len(names):
        raise UserCodeError(f"{path} is damaged: its archive has two files of one name.")
    prefix = names[inner.index("data.pkl")].removesuffix("data.pkl")
    version = archive.read(f"{prefix}version").strip() if f"{prefix}version" in names else b"3"
    if not version.isdigit() or int(version) > _NEWEST_VERSION:
        shown = version.decode(errors="replace")
        raise UserCodeError(
            f"{path} was written by a newer PyTorch: its format is {shown}, and formats up to"
            f" {_NEWEST_VERSION} can be read.",
            cure="Install the newer, or save it with the older.",
        )
    if archive.getinfo(f"{prefix}data.pkl").file_size > _MAX_PICKLE_BYTES:
        raise UserCodeError(
            f"The pickle in {path} is longer than {_MAX_PICKLE_BYTES} bytes, as none of a model is."
        )
    return archive.read(f"{prefix}data.pkl")


def _inspect_legacy(path: Path, stream: BinaryIO) -> PtFile:
    parts = [_inspected(path, stream, is_legacy=True)]
    if parts[0].root != _MAGIC and not parts[0].globals:
        raise _no_pt(path, "it is a pickle of something else")
    while parts[-1].root is not None and len(parts) < _LEGACY_PICKLES:
        parts.append(_inspected(path, stream, is_legacy=True))
    named = dict.fromkeys(name for part in parts for name in part.globals)
    root = parts[_LEGACY_OBJECT].root if len(parts) > _LEGACY_OBJECT else None
    damage = parts[-1].damage or ("" if len(parts) == _LEGACY_PICKLES else "it is cut off")
    return replace(parts[0], globals=tuple(named), root=root, damage=damage)


def _inspected(path: Path, stream: BinaryIO, *, is_legacy: bool) -> PtFile:
    reader = _Reader(stream, encoding="utf-8", errors="replace")
    root, damage = None, ""
    try:
        extensions = _extensions(stream)
        root = None if extensions else reader.load()
    except Exception as e:  # A pickle that is damaged, or made to harm, raises anything.
        extensions, damage = [], f"{type(e).__name__}: {e}"
    found = (*extensions, *reader.found)
    return PtFile(path=path, is_legacy=is_legacy, globals=found, root=root, damage=damage)


def _extensions(stream: BinaryIO) -> list[str]:
    """The codes of `copyreg` in a pickle; the stream stays where it is.

    Python resolves such a code from a table of the whole process, which no unpickler can watch.
    """
    start = stream.tell()
    codes = [
        f"copyreg.extension_{argument}"
        for opcode, argument, _ in pickletools.genops(stream)
        if opcode.name.startswith("EXT")
    ]
    stream.seek(start)
    return list(dict.fromkeys(codes))


class _Reader(pickle.Unpickler):
    """Resolves no global."""

    def __init__(self, stream: BinaryIO, **options: Any) -> None:
        super().__init__(stream, **options)
        self.found: dict[str, None] = {}

    def find_class(self, module: str, name: str) -> type[StandIn]:
        """A stand-in for the global, a class of its own."""
        path = global_path(module, name)
        self.found[path] = None
        return type("StandIn", (StandIn,), {"path": path})

    def persistent_load(self, pid: Any) -> Any:
        """A stand-in for values that lie beside the pickle, or the class in an old reference."""
        if isinstance(pid, tuple) and len(pid) > 1 and pid[0] == "module":
            return pid[1]
        return Storage(pid)


def _unreadable(path: Path, error: OSError) -> UserCodeError:
    return UserCodeError(f"{path} cannot be read: {error.strerror}.")


def _no_pt(path: Path, why: str) -> UserCodeError:
    return UserCodeError(
        f"{path} is no file of torch.save: {why}.",
        cure="Save the module by torch.save(model, 'model.pt'), or its weights by"
        " torch.save(model.state_dict(), 'weights.pt').",
    )


def global_path(module: str, name: str) -> str:
    """A global as `module.name`; protocol 2 writes Python 2's name of the builtins."""
    return f"{'builtins' if module == '__builtin__' else module}.{name}"


def entries_of(value: Any) -> dict[Any, Any]:
    """The keys and values of a mapping in an inspected file; none of anything else."""
    if isinstance(value, StandIn):
        return value.entries
    return value if isinstance(value, dict) else {}


def shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of a tensor in an inspected file; None of anything else."""
    if not isinstance(value, StandIn):
        return None
    if value.path.startswith("torch._utils._rebuild_parameter") and value.args:
        return shape_of(value.args[0])
    is_tensor = value.path.startswith("torch._utils._rebuild_tensor") and len(value.args) > 2
    sizes = value.args[2] if is_tensor else None
    is_shape = isinstance(sizes, tuple) and all(type(size) is int for size in sizes)
    return sizes if is_shape else None


def modules_of(root: Any) -> Iterator[tuple[str, StandIn]]:
    """A module in an inspected file and those within it, each once, by their dotted names."""
    seen: set[int] = set()
    waiting = [("", root)]
    while waiting:
        name, value = waiting.pop(0)
        state = value.state if isinstance(value, StandIn) else None
        if not isinstance(state, dict) or "_modules" not in state or id(value) in seen:
            continue
        seen.add(id(value))
        yield name, value
        inner = entries_of(state["_modules"]).items()
        waiting[:0] = [(f"{name}.{key}".removeprefix("."), each) for key, each in inner]
