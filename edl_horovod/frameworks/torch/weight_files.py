"""Reads weights from files or from checkpoints of a training, and loads them into a module."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.torch.pt_files import load_pt
from edl_horovod.models.modules import CustomObject

__all__ = [
    "SAFETENSORS",
    "STATE_DICTS",
    "read_weights",
    "require_pt",
    "restore",
    "safetensors_shapes",
]

SAFETENSORS = ".safetensors"
_PT = (".pt", ".pth", ".ckpt")
STATE_DICTS = ("state_dict", "model_state_dict")
"""The keys of weights in checkpoints of Lightning, and of PyTorch's tutorials."""

Tensors = Mapping[str, torch.Tensor]


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
        try:
            with safe_open(file, framework="pt") as stream:
                return {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as e:
            raise _not_safetensors(file, e) from e
    require_pt(file)
    content = load_pt(file, objects, is_trusted=is_trusted)
    is_module = isinstance(content, nn.Module)
    weights = content.state_dict() if is_module else _state_dict_in(content)
    if isinstance(weights, Mapping) and all(
        isinstance(tensor, torch.Tensor) for tensor in weights.values()
    ):
        return weights
    keys = ", ".join(map(str, list(weights)[:5])) if isinstance(weights, Mapping) else ""
    raise UserCodeError(
        f"{file} does not contain weights.",
        received=f"{type(weights).__name__}{keys and ' of '}{keys}",
        hint="Save them by torch.save(model.state_dict(), 'weights.pt'), or in a dict with the key"
        f" {' or '.join(map(repr, STATE_DICTS))}.",
    )


def _state_dict_in(content: Any) -> Any:
    """Return the `state_dict` in a checkpoint; anything else as it is."""
    if isinstance(content, Mapping):
        for key in STATE_DICTS:
            if isinstance(content.get(key), Mapping):
                return content[key]
    return content


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
    try:
        with safe_open(file, framework="pt") as stream:
            names = list(stream.keys())
            return {name: tuple(stream.get_slice(name).get_shape()) for name in names}
    except (OSError, SafetensorError) as e:
        raise _not_safetensors(file, e) from e


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


def _not_safetensors(file: Path, error: Exception) -> UserCodeError:
    return UserCodeError(
        f"{file} is not a safetensors file, or is damaged: {error}.",
        hint="Write it by safetensors.torch.save_model(model, 'weights.safetensors').",
    )
