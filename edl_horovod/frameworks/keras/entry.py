"""What the rest of the package knows of Keras without importing it."""

import json
from collections.abc import Mapping
from pathlib import Path

from edl_horovod.config.frameworks import FrameworkEntry, ModelKind
from edl_horovod.errors import ConfigError

_KEYS = ("compile_model_options", "compiled_options")


def _check_backend(variables: Mapping[str, str]) -> None:
    """Refuse a backend of Keras on which the ring does not work.

    Args:
        variables: The environment of the processes that will import Keras.

    Raises:
        ConfigError: `KERAS_BACKEND`, or the user's file of settings of Keras, asks for another.
    """
    file = Path(variables.get("KERAS_HOME") or Path.home() / ".keras") / "keras.json"
    asked, in_file = variables.get("KERAS_BACKEND", ""), _backend_in(file)
    if (asked or in_file or "tensorflow") != "tensorflow":
        raise ConfigError(
            "A job with framework=keras runs Keras on tensorflow, and another backend is set.",
            received=f"KERAS_BACKEND={asked}" if asked else f"backend {in_file} in {file}",
            hint="Set KERAS_BACKEND=tensorflow for this job. A model of Keras on PyTorch trains"
            " with framework=torch, inside a torch.nn.Module (docs/reference/pytorch.md).",
        )


def _backend_in(file: Path) -> str:
    """The backend in Keras' file of settings; empty where Keras could not read the file, either."""
    try:
        keras_settings = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return ""
    return str(keras_settings.get("backend", "")) if isinstance(keras_settings, dict) else ""


ENTRY = FrameworkEntry(
    module="edl_horovod.frameworks.keras.framework",
    packages=("keras", "tensorflow"),
    extra="tensorflow",
    imports=("keras", "tensorflow", "tf_keras"),
    horovod="horovod.tensorflow",
    file_models="edl_horovod.frameworks.keras.file_models",
    model_kinds={
        "KerasFLModel": ModelKind(framework="keras", module="keras_fl_model", keys=_KEYS),
        "TensorFlowFLModel": ModelKind(framework="keras", module="tensorflow_fl_model", keys=_KEYS),
    },
    unsupported={
        "train.onnx": "is for framework=torch; Keras models can be served from train.saved_model",
        "train.compile": "is for framework=torch; the steps of Keras models are graphs of"
        " TensorFlow already",
    },
    # Read by TensorFlow when it is imported.
    environment={"TF_CPP_MIN_LOG_LEVEL": "2"},
    check_environment=_check_backend,
)
