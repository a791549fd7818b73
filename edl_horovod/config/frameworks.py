"""The table of the frameworks in which a model may be written; it imports none of them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edl_horovod.errors import ConfigError
from edl_horovod.extensions import Table

__all__ = ["DEFAULT", "FRAMEWORKS", "FrameworkEntry", "require_backend"]


@dataclass(frozen=True, kw_only=True)
class FrameworkEntry:
    """Facts about a framework that are known without importing it."""

    module: str
    """The module whose `FRAMEWORK` is a `frameworks.base.Framework`; only a worker imports it."""
    packages: tuple[str, ...]
    """Packages that a worker must be able to import, the framework itself first.

    The results of a trained model depend on their versions.
    """
    extra: str
    """The extra of this package that installs them."""
    imports: tuple[str, ...] = ()
    """Top-level packages that only model files written in this framework import."""
    horovod: str = ""
    """Horovod's package for this framework; empty where it needs none."""
    file_models: str = ""
    """The module for models in files, a `models.spec_zoo.FileModels`."""
    keras_backend: str = ""
    """The backend that Keras must use; empty where any backend will do."""


FRAMEWORKS: Table[FrameworkEntry] = Table(
    "frameworks",
    {
        "keras": FrameworkEntry(
            module="edl_horovod.frameworks.keras.framework",
            packages=("keras", "tensorflow"),
            extra="tensorflow",
            imports=("keras", "tensorflow", "tf_keras"),
            horovod="horovod.tensorflow",
            file_models="edl_horovod.frameworks.keras.file_models",
            keras_backend="tensorflow",
        ),
        "torch": FrameworkEntry(
            module="edl_horovod.frameworks.torch.ring",
            packages=("torch", "safetensors"),
            extra="torch",
            imports=("lightning", "pytorch_lightning", "torch", "torchaudio", "torchvision"),
            horovod="horovod.torch",
            file_models="edl_horovod.frameworks.torch.file_models",
        ),
    },
)
DEFAULT = "keras"
"""The framework of a model whose file imports no framework."""


def require_backend(framework: str, variables: Mapping[str, str]) -> None:
    """Refuse a backend of Keras on which the framework's ring does not work.

    Args:
        framework: One of FRAMEWORKS.
        variables: The environment of the processes that will import Keras.

    Raises:
        ConfigError: `KERAS_BACKEND`, or the user's file of settings of Keras, asks for another.
    """
    needed = FRAMEWORKS[framework].keras_backend
    file = Path(variables.get("KERAS_HOME") or Path.home() / ".keras") / "keras.json"
    asked = variables.get("KERAS_BACKEND", "")
    received = f"KERAS_BACKEND={asked}" if asked else f"backend {_backend_in(file)} in {file}"
    if needed and (asked or _backend_in(file) or needed) != needed:
        raise ConfigError(
            f"A job with framework={framework} runs Keras on {needed}, and another backend is set.",
            received=received,
            hint=f"Set KERAS_BACKEND={needed} for this job. A model of Keras on PyTorch trains with"
            " framework=torch, inside a torch.nn.Module (docs/reference/pytorch.md).",
        )


def _backend_in(file: Path) -> str:
    """The backend in Keras' file of settings; empty where Keras could not read the file, either."""
    try:
        keras_settings = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return ""
    return str(keras_settings.get("backend", "")) if isinstance(keras_settings, dict) else ""
