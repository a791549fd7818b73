"""A user's PyTorch model: its named weights, their files, its evaluation and its predictions."""

import contextlib
import functools
import importlib.util
import inspect
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from edl_horovod.config.schema import TrainConfig
from edl_horovod.errors import MissingDependency, how_to_install
from edl_horovod.frameworks.base import Evaluation, Prediction
from edl_horovod.frameworks.torch.buffers import unchanged
from edl_horovod.frameworks.torch.objective import Objective
from edl_horovod.frameworks.torch.pt_files import read_weights, restore
from edl_horovod.frameworks.torch.running import ComputeOptions, ModuleRunner
from edl_horovod.frameworks.torch.structures import detach, map_leaves, repeated
from edl_horovod.frameworks.torch.variables import TorchVariable, numpy_dtype, to_numpy
from edl_horovod.frameworks.values import Batch, EvaluationSums, Output, flatten_outputs
from edl_horovod.models.calling import first_paragraph, user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

_EXPORTERS = ("onnx", "onnxscript")
_MAX_EMBEDDED_BYTES = 1 << 30
"""Weights of more bytes go to a file beside `model.onnx`; Protobuf's limit is twice as large."""


class TorchModel:
    """Implements `base.Model`."""

    def __init__(self, loaded: LoadedSpec, example: Batch, compute: ComputeOptions) -> None:
        """Create the user's module; the arguments are those of `ModuleRunner`.

        Raises:
            UserCodeError: As for `ModuleRunner`; or a tensor of the module cannot be stored.
        """
        self.runner = ModuleRunner(loaded, example, compute)
        with user_code(f"The state_dict of {loaded.label}", root=loaded.zoo):
            tuple(self.weights)  # This checks that each can be stored.

    @property
    def weights(self) -> dict[str, TorchVariable]:
        """Parameters, and buffers in `state_dict`; a tied parameter once, under its first name.

        Other content of `state_dict`, such as extra state of modules, is not included: training
        does not change it (`TrackedBuffers` checks this), and `create_model` creates it again.
        """
        module = self.runner.module
        stored = set(map(id, (*module.parameters(), *module.buffers())))
        first_names: dict[int, tuple[str, torch.Tensor]] = {}
        # A user's own state_dict may omit parameters.
        named = (*module.state_dict(keep_vars=True).items(), *module.named_parameters())
        for name, tensor in named:
            if id(tensor) in stored:
                first_names.setdefault(id(tensor), (name, tensor))
        return {name: TorchVariable(name, tensor) for name, tensor in first_names.values()}

    def evaluation(self, element_spec: Any) -> Evaluation:
        """Prepare the evaluation."""
        return TorchEvaluation(self.runner, element_spec)

    def prediction(self, element_spec: Any) -> Prediction:
        """Prepare the prediction."""
        return TorchPrediction(self.runner, element_spec)

    def load(self, file: Path, *, is_trusted: bool) -> None:
        """Load the weights from a `.pt`, `.pth`, `.ckpt` or `.safetensors` file."""
        restore(self.runner.module, read_weights(file, is_trusted=is_trusted), file)

    def save(self, folder: Path) -> None:
        """Write `model.safetensors`."""
        self.runner.module.eval()
        tensors = {name: variable.tensor for name, variable in self.weights.items()}
        save_file(_without_sharing(tensors), folder / "model.safetensors")

    def export(self, folder: Path, *, saved_model: bool, onnx: bool) -> None:
        """Write `model.pt2`, PyTorch's counterpart of a SavedModel, and `model.onnx`.

        Both take any number of examples.
        """
        runner = self.runner
        module = runner.module.eval()
        requested = {"train.saved_model=true": saved_model, "train.onnx=true": onnx}
        settings_text = " and ".join(setting for setting, is_set in requested.items() if is_set)
        # From a single example, torch.export would fix the number of examples at one.
        features = repeated(runner.to_device(runner.example.features))
        arguments, keywords = runner.arguments(features)
        doing = f"Exporting the model with torch.export ({settings_text})"
        with _exporting(folder / "model.pt2", doing, root=runner.loaded.zoo):
            bound = inspect.signature(module.forward).bind(*arguments, **keywords).arguments
            sizes = map_leaves(lambda tensor: {0: torch.export.Dim.DYNAMIC}, dict(bound))
            program = torch.export.export(module, arguments, keywords, dynamic_shapes=sizes)
            if saved_model:
                torch.export.save(program, folder / "model.pt2")
        if not onnx:
            return
        path = folder / "model.onnx"
        num_bytes = sum(tensor.nbytes for tensor in program.state_dict.values())
        doing = "Exporting the model to ONNX (train.onnx=true)"
        with _exporting(path, doing, root=runner.loaded.zoo), warnings.catch_warnings():
            # PyTorch's exporter calls deprecated functions of PyTorch, which users cannot change.
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
            is_large = num_bytes > _MAX_EMBEDDED_BYTES
            torch.onnx.export(program, (), path, dynamo=True, verbose=False, external_data=is_large)


class TorchEvaluation:
    """Implements `base.Evaluation`."""

    def __init__(self, runner: ModuleRunner, example: Batch) -> None:
        """Test the evaluation on the sample examples.

        Raises:
            UserCodeError: Loss or metrics cannot be computed for these examples, or not be summed.
        """
        self._runner = runner
        self._objective = Objective(runner.loaded, runner.module, Mode.EVALUATION)
        self._description = f"The evaluation of {runner.loaded.label}"
        example = runner.batch_to_device(example)
        with unchanged(runner.module):
            rerun = functools.partial(self._outputs, keeps_graph=True)
            self._objective.begin(example, rerun(example), rerun)
        self.names = ["loss", *self._objective.metric_names]
        self.zeros = EvaluationSums.zeros(self._objective.num_metric_sums)

    def sums(self, batch: Batch) -> EvaluationSums:
        """Return the sums of a batch."""
        batch = self._runner.batch_to_device(batch)
        outputs = self._outputs(batch, keeps_graph=self._objective.needs_graph)
        with torch.no_grad():
            outcome = self._objective.of_batch(batch, outputs)
        return EvaluationSums(
            batch.num_examples, outcome.loss_sum, outcome.loss_weight, np.array(outcome.metric_sums)
        )

    def values(self, sums: EvaluationSums) -> dict[str, float]:
        """Return loss and metrics by name."""
        return {"loss": sums.mean_loss, **self._objective.metric_values(sums.metrics)}

    def _outputs(self, batch: Batch, *, keeps_graph: bool) -> object:
        """Run the model in evaluation mode.

        Args:
            batch: Examples, on the device of the model.
            keeps_graph: Whether the outputs keep their autograd graph, in which the objective
                looks for the divisors of a loss that the module itself computes.
        """
        runner = self._runner
        runner.module.eval()
        root = runner.loaded.zoo
        with user_code(self._description, root=root), runner.evaluating(keeps_graph=keeps_graph):
            return self._objective.outputs(runner, batch)


class TorchPrediction:
    """Implements `base.Prediction`; thread-safe."""

    def __init__(self, runner: ModuleRunner, example: Batch) -> None:
        """Run the model once, on the sample examples.

        Raises:
            UserCodeError: The model failed.
        """
        self._runner = runner
        runner.module.eval()
        with user_code(f"Running the model of {runner.loaded.label}", root=runner.loaded.zoo):
            self._example = self.outputs(example.features)

    def describe(self) -> tuple[Output, ...]:
        """Describe the outputs, sorted by name."""
        named = flatten_outputs(self._example)
        return tuple(_describe_output(name, output) for name, output in sorted(named.items()))

    def outputs(self, features: Any) -> Any:
        """Return the model's outputs for a batch's features."""
        with self._runner.evaluating():  # This setting belongs to the current thread.
            return map_leaves(detach, self._runner.predict(self._runner.to_device(features)))

    def arrays(self, outputs: Any) -> dict[str, NDArray[Any]]:
        """Return such outputs as arrays by name."""
        return {name: to_numpy(tensor) for name, tensor in flatten_outputs(outputs).items()}


def _without_sharing(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Prepare tensors for the safetensors format: no shared memory, and tied tensors only once."""
    writable: dict[str, torch.Tensor] = {}
    views, storages = set(), set()
    for name, tensor in tensors.items():
        view = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and view in views:
            continue
        storage = tensor.untyped_storage()
        if storage.data_ptr() in storages or storage.nbytes() > tensor.nbytes:
            tensor = tensor.clone()
        views.add(view)
        storages.add(storage.data_ptr())
        # The format does not support complex128.
        numbers = torch.view_as_real(tensor) if tensor.dtype == torch.complex128 else tensor
        writable[name] = numbers.contiguous()
    return writable


def _describe_output(name: str, value: Any) -> Output:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        problem = "it is not a dense tensor"
        return Output(name=name, dtype=type(value).__name__, batch_shape=None, problem=problem)
    shape = (None, *value.shape[1:]) if value.ndim else ()
    return Output(name=name, dtype=numpy_dtype(value.dtype).name, batch_shape=shape)


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


@contextlib.contextmanager
def _exporting(file: Path, doing: str, *, root: Path) -> Iterator[None]:
    """Report an error of an exporter, and remove what it has written of a file.

    Raises:
        UserCodeError: With the first cause alone: the exporters' own messages fill many pages.
    """
    with user_code(doing, root=root):
        try:
            yield
        except Exception as e:  # The boundary to the user's code.
            for part in file.parent.glob(f"{file.name}*"):
                part.unlink()
            cause: BaseException = e
            while cause.__cause__ is not None:
                cause = cause.__cause__
            raise RuntimeError(first_paragraph(cause)).with_traceback(cause.__traceback__) from e
