"""PyTorch models in files that a model spec names; implements `models.spec_zoo.FileModels`.

The optimizer and the loss are named, such as `optim.Adam`, with arguments.
"""

import functools
import inspect
import math
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from edl_horovod.errors import ConfigError, UserCodeError, did_you_mean
from edl_horovod.frameworks.torch import plain_models, pt_files
from edl_horovod.models import spec_zoo
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.lookup import import_root
from edl_horovod.models.modules import CustomObject, import_object, loaded_files
from edl_horovod.models.spec_zoo import FileModel, FileModelSummary, LayerSummary, WrittenModel
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import ElasticDLSpec, Mode

_CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")

_NAME_KEYS = ("name", "value")
_CLASSES = {
    "optimizer": (plain_models.named_optimizer, "optim"),
    "loss_criterion": (plain_models.named_loss, "nn"),
}
"""By setting: the function that finds a class by its name, and the module of PyTorch with it."""

_FILE = "model.pt"
_PLAIN = (bool, int, float, type(None))


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
        parts["create_optimizer"] = _optimizer_of(optimizer, label=label)
    if loss := options.get("loss"):
        parts["create_loss"] = _loss_of(loss, label=label)
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
    if file is not None and file.suffix == pt_files.SAFETENSORS:
        kind, layers = (
            "weights in safetensors",
            _layers_of_shapes(pt_files.safetensors_shapes(file)),
        )
    elif file is not None:
        pt_files.require_pt(file)
        content = pt_files.inspect_pt(file)
        keys = {custom.key for custom in model.custom_objects}
        unsafe += [
            f"the global {name} of {file}"
            for name in pt_files.unsafe_globals(content)
            if keys.isdisjoint({name, name.rpartition(".")[2]})
        ]
        if content.damage:
            unsafe.append(f"a damaged pickle in {file}: {content.damage}")
        layers = _layers_of_modules(content.root)
        kind = "a module (torch.save)"
        if not layers:
            entries = pt_files.entries_of(content.root)
            inner = (pt_files.entries_of(entries.get(key)) for key in pt_files.STATE_DICTS)
            entries = next(filter(None, inner), entries)
            shapes = {str(key): pt_files.shape_of(value) for key, value in entries.items()}
            layers = _layers_of_shapes(shapes)
            kind = "weights (torch.save of a state_dict)"
        kind += ", in the format before PyTorch 1.6" if content.is_legacy else ""
    return FileModelSummary(
        kind=kind,
        layers=layers,
        optimizer=_option_text(model.compile_options.get("optimizer")),
        loss=_option_text(model.compile_options.get("loss")),
        unsafe=tuple(unsafe),
    )


def write(loaded: LoadedSpec, folder: Path) -> WrittenModel:
    """Write the whole module, and the files of the zoo that define its classes.

    Raises:
        UserCodeError: The module cannot be created or saved, or a class is not defined in a file.
    """
    doing = f"Creating and saving the model of {loaded.label}"
    with user_code(doing, root=loaded.zoo):
        module = call_declared(loaded.spec.create_model, {})
        if not isinstance(module, nn.Module) or any(map(is_lazy, module.parameters())):
            raise UserCodeError(
                f"create_model of {loaded.label} must return a module whose parameters have known"
                " shapes.",
                received=type(module).__name__,
                hint="Replace lazy layers by layers with sizes.",
            )
        torch.save(module, folder / _FILE)
    spec: dict[str, Any] = {"model_definition": _FILE}
    if global_names := pt_files.unsafe_globals(pt_files.inspect_pt(folder / _FILE)):
        files = {name: _file_of(name, loaded) for name in global_names}
        code = loaded_files(loaded.zoo)
        if len({file.name for file in code}) < len(code):
            raise UserCodeError(
                f"The model of {loaded.label} imports files of the zoo that have the same name, but"
                " all files of a model spec are in one folder.",
                received=", ".join(map(str, code)),
                hint="Rename them so that their names differ.",
            )
        for file in code:
            shutil.copyfile(file, folder / file.name)
        symbols = [name.rpartition(".")[2] for name in files]
        spec["custom_objects"] = []
        for symbol, (name, file) in zip(symbols, files.items(), strict=True):
            key = symbol if symbols.count(symbol) == 1 else name  # The symbol may be ambiguous.
            spec["custom_objects"].append({"key": key, "value": symbol, "path": file.name})
    left_out = []
    if loaded.overrides_method("create_optimizer"):
        if option := _option_of(loaded.optimizer(None, model=module)):
            spec["optimizer"] = option
        else:
            left_out.append("the optimizer, which has groups or is not a class of PyTorch")
    if loaded.overrides_method("create_loss"):
        left_out.append("the loss, which is code: set loss=... to train the model")
    return WrittenModel(spec, tuple(left_out))


def _create_model_for(model: FileModel) -> Callable[..., nn.Module]:
    """Return a `create_model` for the files, with the parameters of the module's class."""
    if model.definition is not None:
        file = model.definition
        pt_files.require_pt(file)
        return lambda: _load_module(model, file)
    if model.architecture is None or not model.architecture_class:
        raise UserCodeError(
            f"The architecture of {model.name} must name a class in a Python file.",
            received={"model.spec.model_architecture": model.architecture},
            hint="Write net.py:Net.",
        )
    name = model.architecture_class
    class_reference = CustomObject(key=name, value=name, path=model.architecture)
    kind = import_object(class_reference, is_trusted=model.is_trusted)
    if not inspect.isclass(kind) or not issubclass(kind, nn.Module):
        raise UserCodeError(
            f"{model.architecture_class} of {model.architecture} must be a class that extends"
            " torch.nn.Module.",
            received=type(kind).__name__,
        )
    create_module = plain_models.model_part(kind, label=f"{kind.__name__} of {model.architecture}")

    def create_model(**params: Any) -> nn.Module:
        module: nn.Module = create_module(**params)
        if model.weights is not None:
            weights = pt_files.read_weights(
                model.weights, model.custom_objects, is_trusted=model.is_trusted
            )
            pt_files.restore(module, weights, model.weights)
        return module

    create_model.__signature__ = inspect.signature(create_module)  # type: ignore[attr-defined]
    return create_model


def _load_module(model: FileModel, file: Path) -> nn.Module:
    content = pt_files.load_pt(file, model.custom_objects, is_trusted=model.is_trusted)
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
    if not columns or not all(map(torch.is_tensor, columns.values())):
        received = ", ".join(f"{name}: {type(values).__name__}" for name, values in columns.items())
        raise spec_zoo.records_without_columns(label, received or "records without columns")
    needs_label = mode is not Mode.PREDICTION
    roles = spec_zoo.column_roles(list(columns), label=label, needs_label=needs_label)
    by_name = {name: _as_float32(columns[name]) for name in roles.features}
    features = by_name if len(by_name) > 1 else next(iter(by_name.values()))
    if not roles.label or not needs_label:
        return features
    labels = columns[roles.label]
    # PyTorch's losses require classes as int64.
    return features, _as_float32(labels) if labels.is_floating_point() else labels.long()


def _as_float32(values: torch.Tensor) -> torch.Tensor:
    """Convert float64, NumPy's default, to float32, the default of a module's parameters."""
    return values.float() if values.dtype == torch.float64 else values


def _layers_of_modules(root: Any) -> tuple[LayerSummary, ...]:
    layers = []
    for name, module in pt_files.modules_of(root):
        parameters = {
            key: shape
            for attribute in ("_parameters", "_buffers")
            for key, value in pt_files.entries_of(module.state.get(attribute)).items()
            if (shape := pt_files.shape_of(value)) is not None
        }
        kind = module.path.removeprefix("torch.nn.modules.").rpartition(".")[2]
        if kind in _CONTAINERS and not parameters:
            continue
        trained = pt_files.entries_of(module.state.get("_parameters"))
        count = sum(math.prod(shape) for key, shape in parameters.items() if key in trained)
        text = _shapes_text(parameters)
        layers.append(LayerSummary(name=name, kind=kind, shape=text, num_parameters=count))
    return tuple(layers)


def _layers_of_shapes(shapes: Mapping[str, tuple[int, ...] | None]) -> tuple[LayerSummary, ...]:
    """Summarise weights in groups with the same name up to the last dot; None is no weight."""
    groups: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        group, _, weight_name = name.rpartition(".")
        if shape is not None:
            groups.setdefault(group, {})[weight_name] = shape
    layers = []
    for group, group_shapes in groups.items():
        text, count = _shapes_text(group_shapes), sum(map(math.prod, group_shapes.values()))
        layers.append(LayerSummary(name=group, kind="", shape=text, num_parameters=count))
    return tuple(layers)


def _shapes_text(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape)) or '1'}" for name, shape in shapes.items())


def _option_text(option: Any) -> str:
    if not isinstance(option, Mapping):
        return str(option or "")
    arguments = option.get("args") or {}
    name = option.get("name", option.get("value", ""))
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _optimizer_of(option: Any, *, label: str) -> Callable[..., Any]:
    """Create a `create_optimizer` from the setting `model.spec.optimizer`.

    Args:
        option: `optim.X`, or a mapping with the keys name (or value) and args.
        label: Name of the model, for messages.

    Raises:
        ConfigError: PyTorch has no such optimizer, or it has no such argument.
    """
    kind, arguments = _class_and_arguments("optimizer", option)
    return plain_models.optimizer_of_class(kind, arguments, label=label)


def _loss_of(option: Any, *, label: str) -> Callable[..., Any]:
    """Create a `create_loss` from the setting `model.spec.loss_criterion`.

    Args:
        option: `nn.X`, or a mapping with the keys name (or value) and args.
        label: Name of the model, for messages.

    Raises:
        ConfigError: PyTorch has no such loss, it has no such argument, or is set to return a sum.
    """
    kind, arguments = _class_and_arguments("loss_criterion", option)
    if arguments.get("reduction", "mean") not in ("mean", "none"):
        raise ConfigError(
            "The loss of a step must be the mean over its examples, for any size of the ring.",
            received={"model.spec.loss_criterion": option},
            hint="Leave out reduction in its args.",
        )
    if "weight" in arguments:
        raise ConfigError(
            "Weights of classes are a setting of the training, not of the loss.",
            received={"model.spec.loss_criterion": option},
            hint="Set train.class_weight=[...], and leave out weight in its args.",
        )
    try:
        if arguments.pop("reduction", "mean") == "none":
            return plain_models.loss_part(kind(**arguments, reduction="none"), label=label)
        return plain_models.mean_loss_part(functools.partial(kind, **arguments), label=label)
    except (TypeError, ValueError) as e:
        raise ConfigError(
            f"nn.{kind.__name__} cannot be created: {e}.",
            received={"model.spec.loss_criterion": option},
            hint="Check its arguments: {name: nn.X, args: {...}}.",
        ) from e


def _class_and_arguments(setting: str, option: Any) -> tuple[Any, dict[str, Any]]:
    """Return PyTorch's class of the setting's name, and its arguments."""
    arguments: Any = {}
    name = option
    if isinstance(option, Mapping):
        name_keys = [key for key in _NAME_KEYS if key in option]
        if len(name_keys) != 1 or not set(option) <= {*_NAME_KEYS, "args"}:
            raise ConfigError(
                f"model.spec.{setting} must be a name, or {{name: ..., args: {{...}}}}. The key"
                " value may be used in place of name.",
                received={f"model.spec.{setting}": option},
            )
        name, arguments = option[name_keys[0]], option.get("args") or {}
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise ConfigError(
            f"In model.spec.{setting}, the name must be text, and args must be keys and values.",
            received={f"model.spec.{setting}": option},
        )
    find_class, module = _CLASSES[setting]
    kind = find_class(re.sub(rf"^(torch\.)?{module}\.", "", name))
    allowed = [key for key in inspect.signature(kind).parameters if key != "params"]
    for key in arguments:
        if key not in allowed:
            raise ConfigError(
                f"{kind.__name__} has no argument {key!r}.",
                received={f"model.spec.{setting}.args.{key}": arguments[key]},
                hint=f"It has {', '.join(allowed)}.{did_you_mean(key, allowed)}",
            )
    return kind, dict(arguments)


def _file_of(name: str, loaded: LoadedSpec) -> Path:
    """Return the file of the zoo that defines a global."""
    module = name.rpartition(".")[0]
    file = Path(str(vars(sys.modules[module]).get("__file__"))) if module in sys.modules else None
    if file is None or file.suffix != ".py" or not file.is_relative_to(import_root(loaded.zoo)):
        raise UserCodeError(
            f"The model of {loaded.label} contains {name}, which no file of the zoo defines,"
            " so a model spec cannot name it.",
            hint="Define it in a file of the zoo.",
        )
    return file


def _option_of(optimizer: Any) -> dict[str, Any] | None:
    """Return the setting for an optimizer; None if it has several groups or is not PyTorch's."""
    kind = type(optimizer)
    if getattr(torch.optim, kind.__name__, None) is not kind or len(optimizer.param_groups) != 1:
        return None
    parameters = inspect.signature(kind).parameters

    def is_set(key: str, value: Any) -> bool:
        parts = value if isinstance(value, tuple) else (value,)
        is_plain = all(isinstance(part, _PLAIN) for part in parts)
        return is_plain and key in parameters and value != parameters[key].default

    arguments = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in optimizer.defaults.items()
        if key == "lr" or is_set(key, value)
    }
    return {"name": f"optim.{kind.__name__}", "args": arguments}
