"""Export of a trained module to programs without the user's code: `model.pt2`, `model.onnx`."""

import importlib.util
import inspect
import warnings
from pathlib import Path

import torch

from edl_horovod.config.schema import TrainConfig
from edl_horovod.errors import MissingDependency, how_to_install
from edl_horovod.frameworks.torch.running import ModuleRunner
from edl_horovod.frameworks.torch.structures import map_leaves, repeated
from edl_horovod.models.calling import first_paragraph, user_code

__all__ = ["export", "require_exporters"]

_EXPORTERS = ("onnx", "onnxscript")
_MAX_EMBEDDED_BYTES = 1 << 30
"""Weights of more bytes go to a file beside `model.onnx`; Protobuf's limit is twice as large."""


def require_exporters(config: TrainConfig) -> None:
    """Check before a training that the packages for its exports are installed.

    Raises:
        MissingDependency: `train.onnx` is set, and a package that it needs is not installed.
    """
    missing = [name for name in _EXPORTERS if importlib.util.find_spec(name) is None]
    if config.onnx and missing:
        raise MissingDependency(
            f"Exporting the trained model to ONNX needs {' and '.join(missing)}, which"
            f" {'is' if len(missing) == 1 else 'are'} not installed where the job runs.",
            received={"train.onnx": True},
            hint=f"On this machine, {how_to_install('onnx')}; for an image, add"
            f" {' and '.join(_EXPORTERS)} to the model zoo's requirements.txt.",
        )


def export(runner: ModuleRunner, folder: Path, *, saved_model: bool, onnx: bool) -> None:
    """Write `model.pt2`, `model.onnx`, or both, for any number of examples.

    Raises:
        UserCodeError: PyTorch cannot export the module; no incomplete file is left.
    """
    module = runner.module.eval()
    requested = {"train.saved_model=true": saved_model, "train.onnx=true": onnx}
    settings_text = " and ".join(setting for setting, is_set in requested.items() if is_set)
    # From a single example, torch.export would fix the number of examples at one.
    features = repeated(runner.to_device(runner.example.features))
    arguments, keywords = runner.arguments(features)
    with user_code(
        f"Exporting the model with torch.export ({settings_text})", root=runner.loaded.zoo
    ):
        try:
            bound_arguments = (
                inspect.signature(module.forward).bind(*arguments, **keywords).arguments
            )
            sizes = map_leaves(lambda tensor: {0: torch.export.Dim.DYNAMIC}, dict(bound_arguments))
            program = torch.export.export(module, arguments, keywords, dynamic_shapes=sizes)
            if saved_model:
                torch.export.save(program, folder / "model.pt2")
        except Exception as e:  # The boundary to the user's code.
            (folder / "model.pt2").unlink(missing_ok=True)
            raise _first_cause(e) from e
    if not onnx:
        return
    path = folder / "model.onnx"
    num_bytes = sum(tensor.nbytes for tensor in program.state_dict.values())
    doing = "Exporting the model to ONNX (train.onnx=true)"
    with user_code(doing, root=runner.loaded.zoo), warnings.catch_warnings():
        # PyTorch's exporter calls deprecated functions of PyTorch, which users cannot change.
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
        try:
            torch.onnx.export(
                program,
                (),
                path,
                dynamo=True,
                verbose=False,
                external_data=num_bytes > _MAX_EMBEDDED_BYTES,
            )
        except Exception as e:  # The boundary to the user's code.
            for part in folder.glob(f"{path.name}*"):
                part.unlink()
            raise _first_cause(e) from e


def _first_cause(error: Exception) -> Exception:
    """The first cause of an exporter's error; the exporters' own messages fill many pages."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return RuntimeError(first_paragraph(cause)).with_traceback(cause.__traceback__)
