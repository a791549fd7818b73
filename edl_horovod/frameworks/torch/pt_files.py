"""Files of `torch.save` and safetensors: inspected without running their code, and loaded safely.

To inspect a file, an unpickler resolves each global in its pickle to a stand-in: calls in a
malicious pickle only create more stand-ins. So the classes and functions of the file need not be
installed, either. When a file is loaded, only allowed classes and functions are resolved.
"""

import io
import logging
import pickle
import pickletools
import sys
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.nn import functional

from edl_horovod.errors import UserCodeError
from edl_horovod.models.modules import CustomObject, import_object

log = logging.getLogger(__name__)

SAFETENSORS = ".safetensors"
_PT = (".pt", ".pth", ".ckpt")
STATE_DICTS = ("state_dict", "model_state_dict")
"""The keys of weights in checkpoints of Lightning, and of PyTorch's tutorials."""
_MAGIC = 0x1950A86A20F9469CFC6C
"""The first pickle in a file of PyTorch before 1.6."""
_LEGACY_PICKLES, _LEGACY_OBJECT = 5, 3
"""The number of pickles before the tensors' values, and the index of the saved object's."""
_NEWEST_VERSION = 10
"""The newest version of the archive format that can be read."""
_MAX_PICKLE_BYTES = 256 << 20
"""Maximum size of the pickle, which does not include the values of tensors."""
_OTHER_FORMATS = {
    b"\x89HDF": "an HDF5 file, as Keras writes",
    b"GGUF": "a GGUF file",
    b"sys_": "a tar archive, the format of the first versions of PyTorch",
}
_TENSOR_GLOBALS = {
    *("builtins.bytearray", "builtins.complex", "builtins.set", "_codecs.encode"),
    *("collections.Counter", "collections.OrderedDict", "torch.Size", "torch.Tensor"),
    *("torch.device", "torch.nn.parameter.Parameter", "torch.serialization._get_layout"),
    *("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"),
    *("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2"),
    "torch._utils._rebuild_tensor_v3",
}
"""The globals of tensors and their containers, which PyTorch itself considers safe."""
_FUNCTIONS = {
    "torch.nn.functional.gelu": functional.gelu,
    "torch.nn.functional.relu": functional.relu,
    "torch._C._nn.gelu": functional.gelu,
    "torch.relu": torch.relu,
}
"""Activations that transformer layers store as functions."""
_LAYERS = "torch.nn.modules."
_SAFE_PROTOCOL = 2
"""The newest protocol of pickles that `weights_only` reads; `torch.save` writes it."""

Tensors = Mapping[str, torch.Tensor]


class StandIn:
    """Stands for a global of a pickle, and for an object that a call of the global would create."""

    path = ""
    """The name of the global, `module.name`."""

    def __new__(cls, *args: Any, **_keywords: Any) -> "StandIn":
        """Record the arguments of a call; nothing is called."""
        stand_in = object.__new__(cls)
        stand_in.args, stand_in.state, stand_in.entries = args, None, {}
        return stand_in

    args: tuple[Any, ...]
    """The arguments of the call."""
    state: Any
    """The argument of the object's `__setstate__`."""
    entries: dict[Any, Any]
    """The items of the object if it is a mapping."""

    def __init__(self, *_args: Any, **_keywords: Any) -> None:
        """Do nothing: `__new__` has recorded the arguments."""

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    def append(self, value: Any) -> None:
        """Ignore an element of a list."""

    def add(self, value: Any) -> None:
        """Ignore an element of a set."""


@dataclass(frozen=True, kw_only=True)
class PtFile:
    """The content of a file."""

    path: Path
    is_legacy: bool
    """Whether the file has the format before PyTorch 1.6."""
    protocol: int
    """The protocol of its first pickle; 0 for those that do not name theirs, 0 and 1."""
    globals: tuple[str, ...]
    """Distinct names of all classes and functions that the file uses, as `module.name`."""
    root: Any
    """The saved object, made of stand-ins; None if the pickle is damaged."""
    damage: str
    """What is wrong with the pickle; empty if nothing is."""


def inspect_pt(path: Path) -> PtFile:
    """Inspect a file without running code from it.

    Raises:
        UserCodeError: The file is missing, or is not a file of `torch.save`.
    """
    with inspected_pt(path) as (content, _):
        return content


@contextmanager
def inspected_pt(path: Path) -> Iterator[tuple[PtFile, BinaryIO]]:
    """Inspect a file, and yield its content and the inspected bytes for `torch.load`.

    No code from the file runs.

    Raises:
        UserCodeError: The file is missing, or is not a file of `torch.save`.
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
                # If a file is also a tar archive, torch.load unpacks it, including links and modes
                # of files elsewhere. It does not do so for a stream in memory.
                stream = io.BytesIO(stream.read())
                content = _inspect_legacy(path, stream)
            elif start == b"PK\x03\x04":
                content = _inspect_archive(path, stream)
            else:
                kind = _OTHER_FORMATS.get(start, "neither a zip archive nor a pickle")
                raise _not_pt(path, f"it is {kind if start else 'empty'}")
            stream.seek(0)
        except OSError as e:
            raise _unreadable(path, e) from e
        yield content, stream


def _inspect_archive(path: Path, stream: BinaryIO) -> PtFile:
    try:
        with zipfile.ZipFile(stream) as archive:
            names = archive.namelist()
            content = _pickle_of(path, archive, names)
        stream.seek(0)
        # Readers locate the directory of an archive differently, and a file may contain two.
        loaded = torch._C.PyTorchFileReader(stream).get_record("data.pkl")
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as e:
        reason = str(e).partition("\n")[0].removesuffix(".")
        raise UserCodeError(
            f"{path} is damaged: {reason}. It was probably truncated.",
            hint="Copy it again, or save the model again.",
        ) from e
    if loaded != content:
        raise UserCodeError(
            f"{path} is two archives in one: PyTorch would not load the one that was inspected.",
            hint="Save the model again.",
        )
    return _inspected(path, io.BytesIO(content), is_legacy=False)


def _pickle_of(path: Path, archive: zipfile.ZipFile, names: list[str]) -> bytes:
    inner = [name.partition("/")[2] for name in names]
    if any(name == "constants.pkl" or name.startswith("code/") for name in inner):
        raise UserCodeError(
            f"{path} is a TorchScript program (torch.jit.save), which is code and cannot be trained"
            " here.",
            hint="Save the module itself by torch.save(model, ...), or its weights by"
            " torch.save(model.state_dict(), ...).",
        )
    if "archive_format" in inner:
        raise UserCodeError(
            f"{path} is a program of torch.export, which cannot be trained here.",
            hint="Save the module itself by torch.save(model, ...).",
        )
    if "data.pkl" not in inner:
        raise _not_pt(path, "it is a zip archive without data.pkl")
    if len(set(names)) != len(names):
        raise UserCodeError(f"{path} is damaged: its archive has two files with the same name.")
    prefix = names[inner.index("data.pkl")].removesuffix("data.pkl")
    version = archive.read(f"{prefix}version").strip() if f"{prefix}version" in names else b"3"
    if not version.isdigit() or int(version) > _NEWEST_VERSION:
        shown = version.decode(errors="replace")
        raise UserCodeError(
            f"{path} was written by a newer PyTorch: its format is {shown}, and formats up to"
            f" {_NEWEST_VERSION} can be read.",
            hint="Install that newer PyTorch, or save the file with an older one.",
        )
    if archive.getinfo(f"{prefix}data.pkl").file_size > _MAX_PICKLE_BYTES:
        raise UserCodeError(
            f"The pickle in {path} is longer than {_MAX_PICKLE_BYTES} bytes, which is the limit."
        )
    return archive.read(f"{prefix}data.pkl")


def _inspect_legacy(path: Path, stream: BinaryIO) -> PtFile:
    parts = [_inspected(path, stream, is_legacy=True)]
    if parts[0].root != _MAGIC and not parts[0].globals:
        raise _not_pt(path, "it is a pickle of something else")
    while parts[-1].root is not None and len(parts) < _LEGACY_PICKLES:
        parts.append(_inspected(path, stream, is_legacy=True))
    named = dict.fromkeys(name for part in parts for name in part.globals)
    root = parts[_LEGACY_OBJECT].root if len(parts) > _LEGACY_OBJECT else None
    damage = parts[-1].damage or ("" if len(parts) == _LEGACY_PICKLES else "it is truncated")
    return replace(parts[0], globals=tuple(named), root=root, damage=damage)


def _inspected(path: Path, stream: BinaryIO, *, is_legacy: bool) -> PtFile:
    reader = _Reader(stream, encoding="utf-8", errors="replace")
    root, damage, place = None, "", stream.tell()
    start = stream.read(2)
    stream.seek(place)
    protocol = start[1] if start[:1] == pickle.PROTO and len(start) > 1 else 0
    try:
        extensions = _extensions(stream)
        root = None if extensions else reader.load()
    except Exception as e:  # A damaged or malicious pickle may raise anything.
        extensions, damage = [], f"{type(e).__name__}: {e}"
    names = (*extensions, *reader.names)
    return PtFile(
        path=path, is_legacy=is_legacy, protocol=protocol, globals=names, root=root, damage=damage
    )


def _extensions(stream: BinaryIO) -> list[str]:
    """Return the extension codes of `copyreg` in a pickle; the stream's position is unchanged.

    Python resolves such a code from a table of the process without calling the unpickler.
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
    """An unpickler that does not resolve globals but records their names."""

    def __init__(self, stream: BinaryIO, **options: Any) -> None:
        super().__init__(stream, **options)
        self.names: dict[str, None] = {}

    def find_class(self, module: str, name: str) -> type[StandIn]:
        """Return a stand-in class for the global."""
        path = global_path(module, name)
        self.names[path] = None
        return type("StandIn", (StandIn,), {"path": path})

    def persistent_load(self, pid: Any) -> Any:
        """Return a stand-in for a tensor's values, or the class in an old-format reference."""
        if isinstance(pid, tuple) and len(pid) > 1 and pid[0] == "module":
            return pid[1]
        return StandIn()


def _unreadable(path: Path, error: OSError) -> UserCodeError:
    return UserCodeError(f"{path} cannot be read: {error.strerror}.")


def _not_pt(path: Path, reason: str) -> UserCodeError:
    return UserCodeError(
        f"{path} is not a file of torch.save: {reason}.",
        hint="Save the module by torch.save(model, 'model.pt'), or its weights by"
        " torch.save(model.state_dict(), 'weights.pt').",
    )


def global_path(module: str, name: str) -> str:
    """Return a global as `module.name`; protocol 2 uses the name of the builtins in Python 2."""
    return f"{'builtins' if module == '__builtin__' else module}.{name}"


def entries_of(value: Any) -> dict[Any, Any]:
    """Return the items of a mapping in an inspected file; empty for anything else."""
    if isinstance(value, StandIn):
        return value.entries
    return value if isinstance(value, dict) else {}


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor in an inspected file; None for anything else."""
    if not isinstance(value, StandIn):
        return None
    if value.path.startswith("torch._utils._rebuild_parameter") and value.args:
        return shape_of(value.args[0])
    is_tensor = value.path.startswith("torch._utils._rebuild_tensor") and len(value.args) > 2
    sizes = value.args[2] if is_tensor else None
    is_shape = isinstance(sizes, tuple) and all(type(size) is int for size in sizes)
    return sizes if is_shape else None


def modules_of(root: Any) -> Iterator[tuple[str, StandIn]]:
    """Yield a module in an inspected file and its submodules, without repetition, with names."""
    seen: set[int] = set()
    pending = [("", root)]
    while pending:
        name, value = pending.pop(0)
        state = value.state if isinstance(value, StandIn) else None
        if not isinstance(state, dict) or "_modules" not in state or id(value) in seen:
            continue
        seen.add(id(value))
        yield name, value
        children = entries_of(state["_modules"]).items()
        pending[:0] = [(f"{name}.{key}".removeprefix("."), child) for key, child in children]


def load_pt(path: Path, objects: Iterable[CustomObject] = (), *, is_trusted: bool = False) -> Any:
    """Load a file to the CPU.

    Args:
        path: The file.
        objects: The user's classes that the file may use, with their source files.
        is_trusted: Whether the file may use any global, and thus run any code.

    Raises:
        UserCodeError: The file has another format, is damaged, or uses a global that is not
            allowed.
    """
    with inspected_pt(path) as (content, stream):
        user_globals = _user_globals(content, objects, is_trusted=is_trusted)
        unsafe = [name for name in unsafe_globals(content) if name not in user_globals]
        if unsafe and not is_trusted:
            raise _refusal(content, unsafe)
        if content.damage:
            raise _damaged(path, content.damage)
        is_supported = content.is_legacy or content.protocol <= _SAFE_PROTOCOL
        if not is_supported and not is_trusted:
            raise UserCodeError(
                f"{path} has a pickle of protocol {content.protocol}, which PyTorch cannot load"
                " without permission to run code.",
                hint="Save the model again without pickle_protocol; or if you trust the author of"
                " the file, set trust=model.",
            )
        allowed = {name: user_globals.get(name, _resolved(name)) for name in content.globals}
        allowed = {name: value for name, value in allowed.items() if value is not None}
        try:
            if unsafe or not is_supported:
                names = ", ".join(unsafe) or f"a pickle of protocol {content.protocol}"
                log.warning("%s has %s, which runs because it is trusted", path, names)
                return torch.load(stream, map_location="cpu", weights_only=False)
            if content.is_legacy:
                return _load_legacy(stream, allowed)
            safe_globals = [(value, name) for name, value in allowed.items()]
            with torch.serialization.safe_globals(safe_globals):
                return torch.load(stream, map_location="cpu", weights_only=True)
        except (ArithmeticError, AttributeError, EOFError, ImportError, LookupError) as e:
            raise _damaged(path, f"{type(e).__name__}: {e}") from e
        except (OSError, RuntimeError, TypeError, ValueError, pickle.UnpicklingError) as e:
            # PyTorch's own message is about an option that users do not have here.
            raise _damaged(path, str(e.__context__ or e).strip().partition("\n")[0]) from e


def _load_legacy(stream: BinaryIO, allowed: Mapping[str, Any]) -> Any:
    """Load a file in the format before PyTorch 1.6, which `weights_only` supports only in part."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            path = global_path(module, name)
            if path in allowed:
                return allowed[path]
            if _is_tensor_global(path):
                return super().find_class(module, name)
            raise pickle.UnpicklingError(f"it names {path}")

    def load(stream: Any, **options: Any) -> Any:
        return Unpickler(stream, **options).load()

    restricted = SimpleNamespace(Unpickler=Unpickler, load=load, __name__="pickle")
    with warnings.catch_warnings():
        # PyTorch compares the source of each layer with the one in the file, and warns of changes.
        warnings.simplefilter("ignore", torch.serialization.SourceChangeWarning)
        return torch.load(stream, map_location="cpu", weights_only=False, pickle_module=restricted)


def unsafe_globals(content: PtFile) -> list[str]:
    """The globals of a file that are neither layers of PyTorch nor parts of tensors."""
    others = [name for name in content.globals if not _is_tensor_global(name)]
    return [name for name in others if _resolved(name) is None]


def _is_tensor_global(name: str) -> bool:
    module, _, symbol = name.rpartition(".")
    if name in _TENSOR_GLOBALS:
        return True
    is_storage = module in ("torch", "torch.storage") and symbol.endswith("Storage")
    return is_storage or (module == "torch" and isinstance(vars(torch).get(symbol), torch.dtype))


def _resolved(name: str) -> Any:
    """Return PyTorch's layer or activation of this name; None for any other name."""
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    module, _, symbol = name.rpartition(".")
    if not module.startswith(_LAYERS) or module not in sys.modules:
        return None
    value = vars(sys.modules[module]).get(symbol)
    is_layer = isinstance(value, type) and issubclass(value, nn.Module)
    return value if is_layer and value.__module__ == module else None


def _user_globals(
    content: PtFile, objects: Iterable[CustomObject], *, is_trusted: bool
) -> dict[str, Any]:
    """Return the user's classes by the globals that they replace.

    The key of a custom object is the name of a global, or the last part of the name.
    """
    user_globals: dict[str, Any] = {}
    for custom in objects:
        named = [name for name in content.globals if custom.key in (name, name.rpartition(".")[2])]
        if not named:
            raise UserCodeError(
                f"{content.path} does not use {custom.key!r}, which is a key of custom_objects.",
                received=f"it uses {', '.join(content.globals) or 'nothing'}",
            )
        user_globals |= dict.fromkeys(named, import_object(custom, is_trusted=is_trusted))
    return user_globals


def _refusal(content: PtFile, unsafe: list[str]) -> UserCodeError:
    layers = [name for name in unsafe if name.startswith(_LAYERS)]
    hint = (
        "If it is your own model, save its weights (torch.save(model.state_dict(), 'weights.pt'))"
        " and set model_architecture='net.py:Class' and model_weights, or list each class in"
        " custom_objects. If you trust the author of the file, set trust=model."
    )
    if layers == unsafe:
        hint = f"PyTorch {torch.__version__} has no such layer: install the version that saved it."
    return UserCodeError(
        f"Loading {content.path} would run {', '.join(unsafe)}, which is neither a layer of"
        " torch.nn nor a part of a tensor. No code of the file was run.",
        hint=hint,
    )


def _damaged(path: Path, reason: str) -> UserCodeError:
    return UserCodeError(
        f"{path} cannot be loaded: {reason.removesuffix('.')}.",
        hint="Copy it again, or save the model again.",
    )


def read_weights(
    file: Path, objects: Iterable[CustomObject] = (), *, is_trusted: bool = False
) -> Tensors:
    """Return the weights in a file by their names.

    Args:
        file: A file with a `state_dict`, a checkpoint that contains one, or a whole module.
        objects: The user's classes that the file may use, with their source files.
        is_trusted: Whether the file may use any global, and thus run any code.

    Raises:
        UserCodeError: The file has another format, is damaged, or uses a global that is not
            allowed.
    """
    if file.suffix == SAFETENSORS:
        with _open_safetensors(file) as stream:
            return {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    require_pt(file)
    content = load_pt(file, objects, is_trusted=is_trusted)
    is_module = isinstance(content, nn.Module)
    weights = content.state_dict() if is_module else content
    if isinstance(content, Mapping):
        dicts = (content[key] for key in STATE_DICTS if isinstance(content.get(key), Mapping))
        weights = next(dicts, content)
    if isinstance(weights, Mapping) and all(map(torch.is_tensor, weights.values())):
        return weights
    keys = ", ".join(map(str, list(weights)[:5])) if isinstance(weights, Mapping) else ""
    raise UserCodeError(
        f"{file} does not contain weights.",
        received=f"{type(weights).__name__}{keys and ' of '}{keys}",
        hint="Save them by torch.save(model.state_dict(), 'weights.pt'), or in a dict with the key"
        f" {' or '.join(map(repr, STATE_DICTS))}.",
    )


def restore(module: nn.Module, weights: Tensors, file: Path) -> None:
    """Load weights from a file into a module.

    A common prefix of all names that the module does not have is removed, such as `module.` of
    DistributedDataParallel or the attribute of a LightningModule.

    Raises:
        UserCodeError: The names or shapes differ from those of the module.
    """
    expected = module.state_dict()
    weights = _named_as(expected, weights)
    problems = [f"{name} is missing in the file" for name in expected if name not in weights]
    problems += [f"{name} is not in the module" for name in weights if name not in expected]
    problems += [
        f"{name} has shape {list(weights[name].shape)} in the file and {list(value.shape)} in the"
        " module"
        for name, value in expected.items()
        if name in weights and weights[name].shape != value.shape
    ]
    if problems:
        omitted = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise UserCodeError(
            f"The weights of {file} do not fit {type(module).__name__}:"
            f" {'; '.join(problems[:5])}{omitted}.",
            hint="Use the class that they were saved from, with the same parameters"
            " (params.NAME=...).",
        )
    module.load_state_dict(weights)


def _named_as(expected: Tensors, weights: Tensors) -> Tensors:
    """Remove a common prefix of all names, if the names are the expected ones without it."""
    first = next(iter(weights), "")
    prefixes = (first.removesuffix(name) for name in expected if first.endswith(f".{name}"))
    for prefix in prefixes:
        if weights.keys() == {f"{prefix}{name}" for name in expected}:
            return {name: weights[f"{prefix}{name}"] for name in expected}
    return weights


def safetensors_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights in a safetensors file, by name.

    Raises:
        UserCodeError: The file has another format, or is damaged.
    """
    with _open_safetensors(file) as stream:
        names = list(stream.keys())
        return {name: tuple(stream.get_slice(name).get_shape()) for name in names}


def require_pt(file: Path) -> None:
    """Check that a file's ending is one that is used for `torch.save`.

    Raises:
        UserCodeError: The file has another ending.
    """
    if file.suffix in _PT:
        return
    is_keras = file.suffix in (".h5", ".keras", ".hdf5") or file.is_dir()
    raise UserCodeError(
        f"The ending of {file} must be one of {', '.join((*_PT, SAFETENSORS))}.",
        received=file.suffix or "no ending",
        hint="For a model of Keras or TensorFlow, set model.name=KerasFLModel or TensorFlowFLModel."
        if is_keras
        else "For weights alone (.safetensors), set model_weights and model_architecture.",
    )


@contextmanager
def _open_safetensors(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as stream:
            yield stream
    except (OSError, SafetensorError) as e:
        raise UserCodeError(
            f"{file} is not a safetensors file, or is damaged: {e}.",
            hint="Write it by safetensors.torch.save_model(model, 'weights.safetensors').",
        ) from e
