"""Weights in files, alone or in a checkpoint of a training, and a module that gets them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.torch.pt_files import load_pt
from edl_horovod.models.file_model import CustomObject

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
"""The keys of weights in checkpoints of Lightning, and of loops as in PyTorch's tutorials."""

Tensors = Mapping[str, torch.Tensor]


def read_weights(
    file: Path, objects: Iterable[CustomObject] = (), *, is_trusted: bool = False
) -> Tensors:
    """The weights in a file, by their names in it.

    Args:
        file: A `state_dict`, a checkpoint with one, or a whole module.
        objects: Classes that it names, and where they are.
        is_trusted: Whether it may name anything, and so run anything.

    Raises:
        UserCodeError: It is no such file, is damaged, or names what it may not.
    """
    if file.suffix == SAFETENSORS:
        try:
            with safe_open(file, framework="pt") as stream:
                return {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as e:
            raise _no_safetensors(file, e) from e
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
        f"{file} holds no weights.",
        received=f"{type(weights).__name__}{keys and ' of '}{keys}",
        cure="Save them by torch.save(model.state_dict(), 'weights.pt'), alone or in a dict under"
        f" {' or '.join(map(repr, STATE_DICTS))}.",
    )


def _state_dict_in(content: Any) -> Any:
    """The `state_dict` in a checkpoint; anything else as it is."""
    if isinstance(content, Mapping):
        for key in STATE_DICTS:
            if isinstance(content.get(key), Mapping):
                return content[key]
    return content


def restore(module: nn.Module, weights: Tensors, file: Path) -> None:
    """Give a module the weights that were read from a file.

    Names that all begin with the same word more than the module's, as `module.` of
    DistributedDataParallel or the attribute of a LightningModule, are taken without it.

    Raises:
        UserCodeError: Their names or shapes are not those of the module.
    """
    expected = module.state_dict()
    weights = _named_as(expected, weights)
    wrong = [f"{name} is missing in the file" for name in expected if name not in weights]
    wrong += [f"{name} is not the module's" for name in weights if name not in expected]
    wrong += [
        f"{name} has shape {list(weights[name].shape)} in the file and {list(value.shape)} in the"
        " module"
        for name, value in expected.items()
        if name in weights and weights[name].shape != value.shape
    ]
    if wrong:
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise UserCodeError(
            f"The weights of {file} do not fit {type(module).__name__}:"
            f" {'; '.join(wrong[:5])}{more}.",
            cure="Give the class that they were saved from, with its parameters (params.NAME=...).",
        )
    module.load_state_dict(weights)


def _named_as(expected: Tensors, weights: Tensors) -> Tensors:
    """The weights without the prefix of all their names, where they fit without it."""
    first = next(iter(weights), "")
    prefixes = (first.removesuffix(name) for name in expected if first.endswith(f".{name}"))
    for prefix in prefixes:
        if weights.keys() == {f"{prefix}{name}" for name in expected}:
            return {name: weights[f"{prefix}{name}"] for name in expected}
    return weights


def safetensors_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the weights in a file of safetensors, by their names.

    Raises:
        UserCodeError: It is no such file, or is damaged.
    """
    try:
        with safe_open(file, framework="pt") as stream:
            names = list(stream.keys())
            return {name: tuple(stream.get_slice(name).get_shape()) for name in names}
    except (OSError, SafetensorError) as e:
        raise _no_safetensors(file, e) from e


def require_pt(file: Path) -> None:
    """Refuse a file whose name is none of `torch.save`.

    Raises:
        UserCodeError: It is none.
    """
    if file.suffix in _PT:
        return
    is_keras = file.suffix in (".h5", ".keras", ".hdf5") or file.is_dir()
    raise UserCodeError(
        f"{file} has none of the endings {', '.join((*_PT, SAFETENSORS))}.",
        received=file.suffix or "no ending",
        cure="It is a model of Keras or TensorFlow: write model.name=KerasFLModel or"
        " TensorFlowFLModel."
        if is_keras
        else "Weights alone (.safetensors) are model_weights, beside model_architecture.",
    )


def _no_safetensors(file: Path, error: Exception) -> UserCodeError:
    return UserCodeError(
        f"{file} is no file of safetensors, or is damaged: {error}.",
        cure="Write it by safetensors.torch.save_model(model, 'weights.safetensors').",
    )
