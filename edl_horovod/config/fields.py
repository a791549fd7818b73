"""The settings of the schema as a flat list, and the message for a key that is not in it."""

import ast
import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edl_horovod.config.tasks import TASKS
from edl_horovod.errors import did_you_mean

REQUIRED: Any = dataclasses.MISSING
"""The default of a setting that must be given."""

FILE_LISTS = ("data", "validation_data")
"""Text settings that name several files with commas between."""

SET_BY_US = ("task", "model_zoo_source", "model_zoo_commit", "origins")
"""Keys of the schema that are not the user's to set."""

_ELASTICDL_NAMES = {
    "checkpoint_dir_for_init": "trained_model",
    "dataset_fn": "input_fn",
    "evaluation_steps": "train.evaluate_steps",
    "feed": "input_fn",
    "lr": "train.learning_rate",
    "max_step": "train.max_steps",
    "minibatch_size": "train.batch_size",
    "model_params": "params",
    "num_epochs": "train.epochs",
    "num_workers": "launch.np",
    "prediction_data": "data",
    "training_data": "data",
}
"""ElasticDL's names of settings whose names here are too different to be found by spelling."""


def needed(verb: str) -> tuple[str, ...]:
    """The settings that a verb requires, including some that have a default in the schema."""
    of_records = ("model_def", "data", "output")
    keys = {"image": ("base_image", "image_repository"), "prepare": of_records, "party": of_records}
    return keys[verb] if verb in keys else TASKS[verb].needs


@dataclass(frozen=True)
class Setting:
    """One key that a user may set."""

    key: str
    """With dots, as in a command: `train.epochs`."""
    annotation: Any
    default: Any
    """`REQUIRED` where there is none."""
    owner: type
    """The class of the schema that has the field."""

    @property
    def meaning(self) -> str:
        """The text below the field.

        It is only in the source, and parsing that takes longer than everything else that a command
        does with the schema at its start.
        """
        texts = meanings_in(self.owner.__module__).get(self.owner.__name__, {})
        return texts.get(self.key.rpartition(".")[2], "")


def settings(config_class: type) -> list[Setting]:
    """Every key of a config class, in the order of the schema."""
    return list(_walk(config_class, ""))


def dict_key_of(key: str, annotations: Mapping[str, Any]) -> str:
    """The setting of type dict that a key is or lies in, as `kubernetes.env.NAME`; else empty."""
    parts = key.split(".")
    names = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return next((name for name in names if typing.get_origin(annotations.get(name)) is dict), "")


def is_within(key: str, section: str) -> bool:
    """Whether a key is the section itself or lies in it."""
    return f"{key}.".startswith(f"{section}.")


def is_setting(key: str, config_class: type) -> bool:
    """Whether a key is a setting, lies in a setting of type dict, or is ElasticDL's name of one."""
    annotations = {setting.key: setting.annotation for setting in settings(config_class)}
    return key in annotations or key in _ELASTICDL_NAMES or bool(dict_key_of(key, annotations))


def flat(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested dicts by their keys with dots; an empty dict is a leaf."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def type_name(annotation: Any) -> str:
    """A type as a user reads it: `int`, `float or null`, `dict`."""
    if isinstance(annotation, types.UnionType):
        return " or ".join(type_name(part) for part in typing.get_args(annotation))
    if annotation is types.NoneType:
        return "null"
    if typing.get_origin(annotation) is dict or dataclasses.is_dataclass(annotation):
        return "dict"
    if typing.get_origin(annotation) is list:
        return "list"
    return str(annotation.__name__)


def plain_type(annotation: Any) -> Any:
    """The type of a setting's value: text for a choice, which has the annotation `Literal`."""
    return str if typing.get_origin(annotation) is typing.Literal else annotation


def unknown_key(key: str, config_class: type, *, hidden: Iterable[str] = ()) -> str:
    """Why a key cannot be set, with the nearest key and all keys at its level."""
    keys = [setting.key for setting in settings(config_class) if setting.key not in set(hidden)]
    sections = {key.partition(".")[0] for key in keys if "." in key}
    section = key.partition(".")[0] if key.partition(".")[0] in sections else ""
    inside = section + "." if section else ""
    level = dict.fromkeys(
        name[len(inside) :].partition(".")[0] for name in keys if name.startswith(inside)
    )
    near = _near(key, [*keys, *sections])
    heading = f"Allowed under {section}" if section else "Allowed"
    return f"There is no setting {key!r}.{near} {heading}: {', '.join(level)}."


def _near(key: str, keys: list[str]) -> str:
    """A sentence with the setting that was probably meant, or nothing."""
    if _ELASTICDL_NAMES.get(key) in keys:
        return f" It is called {_ELASTICDL_NAMES[key]!r} here."
    same_leaf = [name for name in keys if name.rpartition(".")[2] == key.rpartition(".")[2]]
    return f" Did you mean {same_leaf[0]!r}?" if same_leaf else did_you_mean(key, keys)


def _walk(config_class: type, prefix: str) -> Iterator[Setting]:
    hints = typing.get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        annotation = hints[field.name]
        if dataclasses.is_dataclass(annotation):
            assert isinstance(annotation, type)
            yield from _walk(annotation, f"{prefix}{field.name}.")
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        yield Setting(prefix + field.name, plain_type(annotation), default, config_class)


@functools.cache
def meanings_in(module: str) -> dict[str, dict[str, str]]:
    """The text below each field of a module, by class and field: Python does not keep it."""
    meanings: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if not isinstance(node, ast.ClassDef):
            continue
        texts = meanings.setdefault(node.name, {})
        for field, below in zip(node.body, node.body[1:], strict=False):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    texts[name] = inspect.cleandoc(text)
    return meanings
