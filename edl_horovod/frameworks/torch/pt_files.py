"""Safe loading of files of `torch.save`: only allowed classes and functions are resolved."""

import logging
import pickle
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import torch
from torch import nn
from torch.nn import functional

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.torch.pt_inspection import PtFile, global_path, inspected_pt
from edl_horovod.models.modules import CustomObject, import_object

__all__ = ["load_pt", "unsafe_globals"]

log = logging.getLogger(__name__)

_TENSOR_GLOBALS = frozenset(
    {
        "builtins.bytearray",
        "builtins.complex",
        "builtins.set",
        "_codecs.encode",
        "collections.Counter",
        "collections.OrderedDict",
        "torch.Size",
        "torch.Tensor",
        "torch.device",
        "torch.nn.parameter.Parameter",
        "torch.serialization._get_layout",
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_parameter_with_state",
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3",
    }
)
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

    restricted_pickle = SimpleNamespace(Unpickler=Unpickler, load=load, __name__="pickle")
    with warnings.catch_warnings():
        # PyTorch compares the source of each layer with the one in the file, and warns of changes.
        warnings.simplefilter("ignore", torch.serialization.SourceChangeWarning)
        return torch.load(
            stream, map_location="cpu", weights_only=False, pickle_module=restricted_pickle
        )


def unsafe_globals(content: PtFile) -> list[str]:
    """The globals of a file that are neither layers of PyTorch nor parts of tensors."""
    return [
        name for name in content.globals if not _is_tensor_global(name) and _resolved(name) is None
    ]


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
