"""A trained module as programs that run without the user's code: `model.pt2` and `model.onnx`."""

import importlib.util
import inspect
import warnings
from pathlib import Path

import torch

from edl_horovod.config.schema import TrainConfig
from edl_horovod.errors import MissingDependency, how_to_install
from edl_horovod.frameworks.torch.running import Running
from edl_horovod.frameworks.torch.structures import map_leaves, repeated
from edl_horovod.models.calling import first_paragraph, user_code

__all__ = ["export", "require_exporters"]

_EXPORTERS = ("onnx", "onnxscript")
_MOST_IN_ONE_FILE = 1 << 30
"""Bytes of weights that `model.onnx` itself holds; Protobuf ends at twice as many."""


def require_exporters(config: TrainConfig) -> None:
    """Look before a training whether what it shall be exported with is installed.

    Raises:
        MissingDependency: `train.onnx` is set, and a package that it needs is not installed.
    """
    missing = [name for name in _EXPORTERS if importlib.util.find_spec(name) is None]
    if config.onnx and missing:
        raise MissingDependency(
            f"Exporting the trained model to ONNX needs {' and '.join(missing)}, which"
            f" {'is' if len(missing) == 1 else 'are'} not installed where the job runs.",
            received={"train.onnx": True},
            cure=f"On this machine, {how_to_install('onnx')}; for an image, name"
            f" {' and '.join(_EXPORTERS)} in the model zoo's requirements.txt.",
        )


def export(running: Running, folder: Path, *, saved_model: bool, onnx: bool) -> None:
    """Write `model.pt2`, `model.onnx`, or both, for any number of examples.

    Raises:
        UserCodeError: PyTorch cannot make a program of the module; nothing half-written is left.
    """
    module = running.module.eval()
    settings = {"train.saved_model=true": saved_model, "train.onnx=true": onnx}
    asked = " and ".join(setting for setting, is_set in settings.items() if is_set)
    # One example alone would be taken for the only number of examples that there may be.
    features = repeated(running.here(running.example.features))
    arguments, keywords = running.arguments(features)
    with user_code(f"Exporting the model with torch.export ({asked})", root=running.loaded.zoo):
        try:
            named = inspect.signature(module.forward).bind(*arguments, **keywords).arguments
            sizes = map_leaves(lambda tensor: {0: torch.export.Dim.DYNAMIC}, dict(named))
            program = torch.export.export(module, arguments, keywords, dynamic_shapes=sizes)
            if saved_model:
                torch.export.save(program, folder / "model.pt2")
        except Exception as e:  # The boundary to the user's code.
            (folder / "model.pt2").unlink(missing_ok=True)
            raise _shortened(e) from e
    if not onnx:
        return
    path = folder / "model.onnx"
    num_bytes = sum(tensor.nbytes for tensor in program.state_dict.values())
    doing = "Exporting the model to ONNX (train.onnx=true)"
    with user_code(doing, root=running.loaded.zoo), warnings.catch_warnings():
        # PyTorch's exporter calls what PyTorch itself gives up; no user can change that.
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
        try:
            torch.onnx.export(
                program,
                (),
                path,
                dynamo=True,
                verbose=False,
                external_data=num_bytes > _MOST_IN_ONE_FILE,
            )
        except Exception as e:  # The boundary to the user's code.
            for part in folder.glob(f"{path.name}*"):
                part.unlink()
            raise _shortened(e) from e


def _shortened(error: Exception) -> Exception:
    """What began an error of PyTorch's exporters, whose texts are reports of many pages."""
    first: BaseException = error
    while first.__cause__ is not None:
        first = first.__cause__
    return RuntimeError(first_paragraph(first)).with_traceback(first.__traceback__)
