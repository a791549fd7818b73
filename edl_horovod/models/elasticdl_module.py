"""Model files in the style of ElasticDL: functions of the module, found by their names."""

from pathlib import Path
from types import ModuleType

from edl_horovod.models.parts import Parts, part_of

__all__ = ["OUTPUTS_PROCESSOR", "module_parts"]

OUTPUTS_PROCESSOR = "PredictionOutputsProcessor"
_NAMES = {
    "input_fn": ("feed", "dataset_fn", "input_fn"),
    "loss": ("loss",),
    "optimizer": ("optimizer",),
    "metrics": ("eval_metrics_fn",),
    "callbacks": ("callbacks",),
}
"""Names of functions for each part; the first one that exists is used."""


def module_parts(module: ModuleType, *, zoo: Path) -> Parts:
    """The parts that a module defines or imports under the names of ElasticDL."""
    found = {
        key: next((name for name in names if name in vars(module)), "")
        for key, names in _NAMES.items()
    }
    return {
        key: part_of(vars(module)[name], module, name, zoo=zoo)
        for key, name in found.items()
        if name
    }
