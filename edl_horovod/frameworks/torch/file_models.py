"""PyTorch models in files that a model spec names; implements `models.file_model.FileModels`."""

import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.torch.file_parts import loss_of, optimizer_of
from edl_horovod.frameworks.torch.file_writing import write
from edl_horovod.frameworks.torch.plain_models import model_part
from edl_horovod.frameworks.torch.pt_files import load_pt, unsafe_globals
from edl_horovod.frameworks.torch.pt_inspection import (
    entries_of,
    inspect_pt,
    modules_of,
    shape_of,
)
from edl_horovod.frameworks.torch.weight_files import (
    SAFETENSORS,
    STATE_DICTS,
    read_weights,
    require_pt,
    restore,
    safetensors_shapes,
)
from edl_horovod.models.file_model import (
    CustomObject,
    FileModel,
    FileModelSummary,
    LayerSummary,
    column_roles,
    import_object,
    records_without_columns,
)
from edl_horovod.spec import ElasticDLSpec, Mode

__all__ = ["spec_of", "summarize", "write"]

_CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")


def spec_of(model: FileModel) -> type[ElasticDLSpec]:
    """Create a spec class for a model in files.

    Raises:
        ConfigError: The optimizer or the loss is not one of PyTorch's.
        UserCodeError: A file does not have the format of its ending, or has no class of modules.
    """
    label, options = model.name, model.compile_options
    parts: dict[str, Any] = {
        "create_model": _create_model_for(model),
        "create_dataset": lambda dataset, mode: _split_columns(dataset, mode, label),
    }
    if optimizer := options.get("optimizer"):
        parts["create_optimizer"] = optimizer_of(optimizer, label=label)
    if loss := options.get("loss"):
        parts["create_loss"] = loss_of(loss, label=label)
    methods = {name: staticmethod(part) for name, part in parts.items()}
    return type("FileSpec", (ElasticDLSpec,), {"__module__": __name__, **methods})


def summarize(model: FileModel) -> FileModelSummary:
    """Describe a model's files without running code from them.

    Raises:
        UserCodeError: A file is missing, or does not have the format of its ending.
    """
    unsafe = [f"{custom.path}, which defines {custom.value}" for custom in model.custom_objects]
    kind = "a class of modules"
    layers: tuple[LayerSummary, ...] = ()
    if model.architecture is not None:
        unsafe.append(f"{model.architecture}, which defines {model.architecture_class}")
    file = model.definition or model.weights
    if file is not None and file.suffix == SAFETENSORS:
        kind, layers = "weights in safetensors", _layers_of_shapes(safetensors_shapes(file))
    elif file is not None:
        require_pt(file)
        content = inspect_pt(file)
        keys = {custom.key for custom in model.custom_objects}
        names = [
            name
            for name in unsafe_globals(content)
            if keys.isdisjoint({name, name.rpartition(".")[2]})
        ]
        unsafe += [f"the global {name} of {file}" for name in names]
        if content.damage:
            unsafe.append(f"a damaged pickle in {file}: {content.damage}")
        layers = _layers_of_modules(content.root)
        kind = "a module (torch.save)"
        if not layers:
            entries = entries_of(content.root)
            inner = (entries_of(entries.get(key)) for key in STATE_DICTS)
            entries = next(filter(None, inner), entries)
            shapes = {str(key): shape_of(value) for key, value in entries.items()}
            layers = _layers_of_shapes(
                {key: shape for key, shape in shapes.items() if shape is not None}
            )
            kind = "weights (torch.save of a state_dict)"
        kind += ", in the format before PyTorch 1.6" if content.is_legacy else ""
    return FileModelSummary(
        kind=kind,
        layers=layers,
        optimizer=_option_text(model.compile_options.get("optimizer")),
        loss=_option_text(model.compile_options.get("loss")),
        unsafe=tuple(unsafe),
    )


def _create_model_for(model: FileModel) -> Callable[..., nn.Module]:
    """Return a `create_model` for the files, with the parameters of the module's class."""
    if model.definition is not None:
        file = model.definition
        require_pt(file)
        return lambda: _load_module(model, file)
    if model.architecture is None or not model.architecture_class:
        raise UserCodeError(
            f"The architecture of {model.name} must name a class in a Python file.",
            received={"model.spec.model_architecture": model.architecture},
            hint="Write net.py:Net.",
        )
    name = model.architecture_class
    wanted = CustomObject(key=name, value=name, path=model.architecture)
    kind = import_object(wanted, is_trusted=model.is_trusted)
    if not inspect.isclass(kind) or not issubclass(kind, nn.Module):
        raise UserCodeError(
            f"{model.architecture_class} of {model.architecture} must be a class that extends"
            " torch.nn.Module.",
            received=type(kind).__name__,
        )
    create_module = model_part(kind, label=f"{kind.__name__} of {model.architecture}")

    def create_model(**params: Any) -> nn.Module:
        module: nn.Module = create_module(**params)
        if model.weights is not None:
            weights = read_weights(model.weights, model.custom_objects, is_trusted=model.is_trusted)
            restore(module, weights, model.weights)
        return module

    create_model.__signature__ = inspect.signature(create_module)  # type: ignore[attr-defined]
    return create_model


def _load_module(model: FileModel, file: Path) -> nn.Module:
    content = load_pt(file, model.custom_objects, is_trusted=model.is_trusted)
    if isinstance(content, nn.Module):
        return content
    received = type(content).__name__
    if isinstance(content, Mapping):
        received = f"{received} of {', '.join(map(str, list(content)[:3]))}, ..."
    raise UserCodeError(
        f"{file} does not contain a module.",
        received=received,
        hint="If it contains the module's weights, give its class as"
        " model_architecture='net.py:Class' and this file as model_weights.",
    )


def _split_columns(records: Any, mode: Mode, label: str) -> Any:
    """Split records with columns into features and labels; a user's own data set has done so."""
    if isinstance(records, tuple):
        return records
    columns = records if isinstance(records, Mapping) else {}
    is_usable = bool(columns) and all(
        isinstance(values, torch.Tensor) for values in columns.values()
    )
    if not is_usable:
        received = ", ".join(f"{name}: {type(values).__name__}" for name, values in columns.items())
        raise records_without_columns(label, received or "records without columns")
    roles = column_roles(list(columns), label=label, needs_label=mode is not Mode.PREDICTION)
    by_name = {name: _as_float32(columns[name]) for name in roles.features}
    features = by_name if len(by_name) > 1 else next(iter(by_name.values()))
    if not roles.label or mode is Mode.PREDICTION:
        return features
    labels = columns[roles.label]
    # PyTorch's losses require classes as int64.
    return features, _as_float32(labels) if labels.is_floating_point() else labels.long()


def _as_float32(values: torch.Tensor) -> torch.Tensor:
    """Convert float64, NumPy's default, to float32, the default of a module's parameters."""
    return values.float() if values.dtype == torch.float64 else values


def _layers_of_modules(root: Any) -> tuple[LayerSummary, ...]:
    layers = []
    for name, module in modules_of(root):
        parameters = {
            key: shape
            for attribute in ("_parameters", "_buffers")
            for key, value in entries_of(module.state.get(attribute)).items()
            if (shape := shape_of(value)) is not None
        }
        kind = module.path.removeprefix("torch.nn.modules.").rpartition(".")[2]
        if kind in _CONTAINERS and not parameters:
            continue
        trained = entries_of(module.state.get("_parameters"))
        count = sum(math.prod(shape) for key, shape in parameters.items() if key in trained)
        layers.append(
            LayerSummary(name=name, kind=kind, shape=_shapes_text(parameters), num_parameters=count)
        )
    return tuple(layers)


def _layers_of_shapes(shapes: Mapping[str, tuple[int, ...]]) -> tuple[LayerSummary, ...]:
    """Summarise weights in groups with the same name up to the last dot."""
    groups: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        group, _, weight_name = name.rpartition(".")
        groups.setdefault(group, {})[weight_name] = shape
    return tuple(
        LayerSummary(
            name=group,
            kind="",
            shape=_shapes_text(group_shapes),
            num_parameters=sum(map(math.prod, group_shapes.values())),
        )
        for group, group_shapes in groups.items()
    )


def _shapes_text(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape)) or '1'}" for name, shape in shapes.items())


def _option_text(option: Any) -> str:
    if not isinstance(option, Mapping):
        return str(option or "")
    arguments = option.get("args") or {}
    name = option.get("name", option.get("value", ""))
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
