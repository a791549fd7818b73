"""The settings `input_fn`, `loss` and `optimizer`, which replace a model's own parts."""

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError, UserCodeError, did_you_mean
from edl_horovod.models.lookup import files_defining, list_functions
from edl_horovod.models.modules import load_module
from edl_horovod.models.parts import METHODS, REQUIRED, Part, Parts, part_of
from edl_horovod.records import user_dataset

__all__ = ["Overrides", "find_parts"]


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """The parts that the user set, by name; an empty name keeps the model's own part."""

    input_fn: str = ""
    loss: str = ""
    optimizer: str = ""
    has_own_dataset: bool = False
    """Whether the user's code provides the job's data, whose records may be examples already."""

    @classmethod
    def of(cls, config: JobConfig) -> "Overrides":
        """The overrides of a job."""
        return cls(
            input_fn=config.input_fn,
            loss=config.loss,
            optimizer=config.optimizer,
            has_own_dataset=config.data.startswith(f"{user_dataset.SCHEME}:"),
        )

    @property
    def names(self) -> dict[str, str]:
        """The names that the user set, by the part's key."""
        return {key: getattr(self, key) for key in REQUIRED if getattr(self, key)}

    @property
    def required(self) -> tuple[str, ...]:
        """The parts that a model must have unless the user sets them."""
        return tuple(key for key in REQUIRED if not (self.has_own_dataset and key == "input_fn"))

    @property
    def methods(self) -> frozenset[str]:
        """The methods of a spec that the overrides replace."""
        return frozenset(METHODS[key] for key in self.names)


def find_parts(overrides: Overrides, module: ModuleType, *, zoo: Path) -> Parts:
    """Resolve the names to symbols of the model's module, of the zoo, or of Keras.

    Raises:
        ConfigError: A name is not defined.
        UserCodeError: A name is ambiguous, or its file raised an exception.
    """
    return {key: _find_part(key, name, module, zoo) for key, name in overrides.names.items()}


def _find_part(key: str, name: str, module: ModuleType, zoo: Path) -> Part:
    if name in vars(module):
        return part_of(vars(module)[name], module, name, zoo=zoo)
    symbol = name.rpartition(".")[2]
    is_dotted = all(part.isidentifier() for part in name.split("."))
    for files in files_defining(zoo, name) if is_dotted else []:
        modules = [load_module(file, zoo=zoo) for file in files]
        definitions: dict[int, tuple[Any, ModuleType]] = {
            id(vars(zoo_module)[symbol]): (vars(zoo_module)[symbol], zoo_module)
            for zoo_module in modules
            if symbol in vars(zoo_module)
        }
        if len(definitions) > 1:
            listed = ", ".join(sorted(map(str, files)))
            raise UserCodeError(
                f"{name!r} may mean {len(definitions)} objects: {symbol} in {listed}.",
                received={key: name},
                hint="Write folder.file.symbol to name one.",
            )
        for value, zoo_module in definitions.values():
            return part_of(value, zoo_module, symbol, zoo=zoo)
    if key != "input_fn" and "." not in name:
        return Part(name, name, f"{key}={name}")  # Keras checks the name later.
    file = Path(str(module.__file__))
    functions = list_functions(file)
    raise ConfigError(
        f"The model zoo {zoo} does not define {name!r}.",
        received={key: name},
        hint=f"Write file.function or a function of {file}:"
        f" {', '.join(functions) or 'it has none'}.{did_you_mean(name, functions)}",
    )
