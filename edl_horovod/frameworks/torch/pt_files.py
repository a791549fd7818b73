"""Files of `torch.save`: what they may name, and loading what names nothing else."""

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
from edl_horovod.models.custom_objects import imported
from edl_horovod.models.file_model import CustomObject

__all__ = ["load_pt", "unsafe_globals"]

log = logging.getLogger(__name__)

_PLAIN = frozenset(
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
"""What tensors and their containers are made of, and PyTorch loads by itself."""
_FUNCTIONS = {
    "torch.nn.functional.gelu": functional.gelu,
    "torch.nn.functional.relu": functional.relu,
    "torch._C._nn.gelu": functional.gelu,
    "torch.relu": torch.relu,
}
"""Activations that the layers of a transformer name as functions."""
_LAYERS = "torch.nn.modules."


def load_pt(path: Path, objects: Iterable[CustomObject] = (), *, is_trusted: bool = False) -> Any:
    """Load a file onto the processor.

    Args:
        path: The file.
        objects: Classes that it names, and where they are.
        is_trusted: Whether it may name anything, and so run anything.

    Raises:
        UserCodeError: It is no such file, is damaged, or names what it may not.
    """
    with inspected_pt(path) as (found, stream):
        own = _own_globals(found, objects, is_trusted=is_trusted)
        unsafe = [name for name in unsafe_globals(found) if name not in own]
        if unsafe and not is_trusted:
            raise _refusal(found, unsafe)
        if found.damage:
            raise _damaged(path, found.damage)
        allowed = {name: own.get(name, _resolved(name)) for name in found.globals}
        allowed = {name: value for name, value in allowed.items() if value is not None}
        try:
            if unsafe:
                names = ", ".join(unsafe)
                log.warning("%s names %s, which runs because it is trusted", path, names)
                return torch.load(stream, map_location="cpu", weights_only=False)
            if found.is_legacy:
                return _load_legacy(stream, allowed)
            known = [(value, name) for name, value in allowed.items()]
            with torch.serialization.safe_globals(known):
                return torch.load(stream, map_location="cpu", weights_only=True)
        except (ArithmeticError, AttributeError, EOFError, ImportError, LookupError) as e:
            raise _damaged(path, f"{type(e).__name__}: {e}") from e
        except (OSError, RuntimeError, TypeError, ValueError, pickle.UnpicklingError) as e:
            # PyTorch's own text is about a switch that users here do not have.
            raise _damaged(path, str(e.__context__ or e).strip().partition("\n")[0]) from e


def _load_legacy(stream: BinaryIO, allowed: Mapping[str, Any]) -> Any:
    """Load a file of PyTorch before 1.6, whose modules `weights_only` does not load."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            asked = global_path(module, name)
            if asked in allowed:
                return allowed[asked]
            if _is_plain(asked):
                return super().find_class(module, name)
            raise pickle.UnpicklingError(f"it names {asked}")

    def load(stream: Any, **options: Any) -> Any:
        return Unpickler(stream, **options).load()

    limited = SimpleNamespace(Unpickler=Unpickler, load=load, __name__="pickle")
    with warnings.catch_warnings():
        # It compares the source of each layer with that of the PyTorch which saved it.
        warnings.simplefilter("ignore", torch.serialization.SourceChangeWarning)
        return torch.load(stream, map_location="cpu", weights_only=False, pickle_module=limited)


def unsafe_globals(found: PtFile) -> list[str]:
    """What a file names that is neither a layer of PyTorch nor what tensors are made of."""
    return [name for name in found.globals if not _is_plain(name) and _resolved(name) is None]


def _is_plain(name: str) -> bool:
    module, _, symbol = name.rpartition(".")
    if name in _PLAIN:
        return True
    is_storage = module in ("torch", "torch.storage") and symbol.endswith("Storage")
    return is_storage or (module == "torch" and isinstance(vars(torch).get(symbol), torch.dtype))


def _resolved(name: str) -> Any:
    """The layer or the activation of this name; None if it is neither."""
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    module, _, symbol = name.rpartition(".")
    if not module.startswith(_LAYERS) or module not in sys.modules:
        return None
    value = vars(sys.modules[module]).get(symbol)
    is_layer = isinstance(value, type) and issubclass(value, nn.Module)
    return value if is_layer and value.__module__ == module else None


def _own_globals(
    found: PtFile, objects: Iterable[CustomObject], *, is_trusted: bool
) -> dict[str, Any]:
    """The custom objects by the globals that they stand for: a key names one, or its end."""
    own: dict[str, Any] = {}
    for each in objects:
        named = [name for name in found.globals if each.key in (name, name.rpartition(".")[2])]
        if not named:
            raise UserCodeError(
                f"{found.path} names no {each.key!r}, which is a key of custom_objects.",
                received=f"it names {', '.join(found.globals) or 'nothing'}",
            )
        own |= dict.fromkeys(named, imported(each, is_trusted=is_trusted))
    return own


def _refusal(found: PtFile, unsafe: list[str]) -> UserCodeError:
    layers = [name for name in unsafe if name.startswith(_LAYERS)]
    cure = (
        "If it is your own model, save its weights (torch.save(model.state_dict(), 'weights.pt'))"
        " and give model_architecture='net.py:Class' and model_weights, or name each class in"
        " custom_objects. If you trust whoever made the file, set trust=model."
    )
    if layers == unsafe:
        cure = f"PyTorch {torch.__version__} has no such layer: install the version that saved it."
    return UserCodeError(
        f"Loading {found.path} would run {', '.join(unsafe)}, which is neither a layer of torch.nn"
        " nor a part of a tensor. Nothing of the file has run.",
        cure=cure,
    )


def _damaged(path: Path, why: str) -> UserCodeError:
    return UserCodeError(
        f"{path} cannot be loaded: {why.removesuffix('.')}.",
        cure="Copy it again, or save the model again.",
    )
