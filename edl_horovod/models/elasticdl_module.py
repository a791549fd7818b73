"""Model files in the style of ElasticDL: functions of the module, found by their names."""

import re
from pathlib import Path
from types import ModuleType

from edl_horovod.errors import ConfigError
from edl_horovod.models.lookup import file_groups
from edl_horovod.models.parts import Parts, part_of

__all__ = [
    "OUTPUTS_PROCESSOR",
    "may_process_outputs",
    "module_parts",
    "no_place_for_outputs",
]

OUTPUTS_PROCESSOR = "PredictionOutputsProcessor"
_MAY_BIND = re.compile(rf"\b{OUTPUTS_PROCESSOR}\b|\bimport \*")
_ATTRIBUTE = re.compile(r"\boutputs_processor\b")
_NAMES = {
    "input_fn": ("feed", "dataset_fn", "input_fn"),
    "loss": ("loss",),
    "optimizer": ("optimizer",),
    "metrics": ("eval_metrics_fn",),
    "callbacks": ("callbacks",),
}
"""The function names of each part of a model; the first name that exists is used."""


def module_parts(module: ModuleType, *, zoo: Path) -> Parts:
    """The parts that a module defines or imports under the names of ElasticDL."""
    symbols = {
        key: next((name for name in names if name in vars(module)), "")
        for key, names in _NAMES.items()
    }
    return {
        key: part_of(vars(module)[name], module, name, zoo=zoo)
        for key, name in symbols.items()
        if name
    }


def may_process_outputs(zoo: Path, model_def: str) -> bool:
    """Whether the text of a model's files mentions a processor of predictions.

    Raises:
        EdlError: The zoo does not have the model.
    """
    model_files = {file for group in file_groups(zoo, model_def) for file in group.files}
    if any(_MAY_BIND.search(file.read_text(errors="replace")) for file in model_files):
        return True
    # The attribute may come from a base class in another file.
    texts = (file.read_text(errors="replace") for file in zoo.rglob("*.py"))
    return any(map(_ATTRIBUTE.search, texts))


def no_place_for_outputs(model_file: Path) -> ConfigError:
    """The error for a prediction without an output whose model has no such processor."""
    return ConfigError(
        f"output must name where predictions go: the model's file has no {OUTPUTS_PROCESSOR} that"
        " takes them.",
        received={"output": "", "model file": model_file},
        hint="Write output=... .",
    )
