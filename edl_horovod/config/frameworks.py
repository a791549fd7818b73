"""What a model may be written in: the table of frameworks, which imports none of them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edl_horovod.errors import ConfigError

__all__ = ["DEFAULT", "FRAMEWORKS", "FrameworkEntry", "require_backend"]


@dataclass(frozen=True, kw_only=True)
class FrameworkEntry:
    """What can be said of a framework without importing it."""

    module: str
    """`FRAMEWORK` in it is a `frameworks.base.Framework`; only a worker imports it."""
    packages: tuple[str, ...]
    """What a worker must be able to import, the framework itself first.

    Their versions decide what a trained model gives.
    """
    extra: str
    """The extra of this package that installs them."""
    imports: tuple[str, ...] = ()
    """What only a model file that is written in it imports, by the first part of the name."""
    horovod: str = ""
    """The package of its half of Horovod; empty where none is needed."""
    file_models: str = ""
    """The module that makes specs of models in files, a `models.file_model.FileModels`."""
    keras_backend: str = ""
    """What Keras must compute with; empty where it does not matter."""


FRAMEWORKS = {
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
}
DEFAULT = "keras"
"""What a model is written in where its file imports no framework."""


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
    where = f"KERAS_BACKEND={asked}" if asked else f"backend {_backend_in(file)} in {file}"
    if needed and (asked or _backend_in(file) or needed) != needed:
        raise ConfigError(
            f"A job with framework={framework} computes with Keras on {needed}, and another backend"
            " is asked for.",
            received=where,
            hint=f"Set KERAS_BACKEND={needed} for this job. A model of Keras on PyTorch trains with"
            " framework=torch, inside a torch.nn.Module (docs/reference/pytorch.md).",
        )


def _backend_in(file: Path) -> str:
    """The backend in a file of settings of Keras, which passes over one that it cannot read."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return ""
    return str(found.get("backend", "")) if isinstance(found, dict) else ""
