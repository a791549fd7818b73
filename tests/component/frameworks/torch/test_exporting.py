"""A trained model as programs that run without its code: torch.export and ONNX."""

import sys
from pathlib import Path

import numpy as np
import pytest

from edl_horovod.errors import MissingDependency, UserCodeError
from tests.later import LATER

if LATER:
    import torch

    from edl_horovod.frameworks.torch import model

FORMATS = ("train.saved_model=true", "train.onnx=true")
SHORT = "train.max_steps=3"


def onnx_outputs(path, arrays):
    """What ONNX' own evaluator, which knows nothing of PyTorch, computes."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    names = [value.name for value in model.graph.input]
    return ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))


def assert_exported(folder, features, outputs, key=None):
    """Compare what both programs make of features with the outputs of the module."""
    ours, arrays = outputs.detach(), [value.numpy() for value in features.values()]
    program = torch.export.load(folder / "model.pt2").module()
    by_program = program(features) if key is None else program(**features)[key]
    torch.testing.assert_close(by_program, ours, rtol=1e-5, atol=1e-5)
    by_onnx, *others = onnx_outputs(folder / "model.onnx", arrays)
    assert key is not None or not others
    np.testing.assert_allclose(by_onnx, ours.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("batch_norm", ["own", "synchronized"])
def test_an_exported_model_runs_without_its_code(run, tmp_path, batch_norm):
    done = run("train", SHORT, "params.batch_norm=True", f"train.batch_norm={batch_norm}", *FORMATS)
    features = {"x": torch.randn(7, 4)}
    assert_exported(tmp_path / "job-out", features, done.step.model.runner.module(features))
    assert not [path for path in (tmp_path / "job-out").iterdir() if ".data" in path.name]


@pytest.mark.long
def test_features_that_go_by_keyword_do_so_in_a_program(run, tmp_path):
    data = "data=dataset:torch_styles.texts"
    done = run("train", "model_def=torch_styles.Classifier", data, SHORT, *FORMATS)
    words = {"input_ids": torch.arange(35).reshape(7, 5) % 20, "attention_mask": torch.ones(7, 5)}
    logits = done.step.model.runner.module(**words).logits
    assert_exported(tmp_path / "job-out", words, logits, "logits")


@pytest.mark.long
def test_large_models_have_a_file_of_weights_beside_them(run, tmp_path, monkeypatch):
    monkeypatch.setattr(model, "_MAX_EMBEDDED_BYTES", 0)
    done = run("train", SHORT, FORMATS[1])
    features = {"x": torch.randn(2, 4)}
    # Those of a few bytes stay in the file itself, so there is nothing in this one.
    assert (tmp_path / "job-out" / "model.onnx.data").exists()
    assert not (tmp_path / "job-out" / "model.pt2").exists()
    (outputs,) = onnx_outputs(tmp_path / "job-out" / "model.onnx", [features["x"].numpy()])
    ours = done.step.model.runner.module(features).detach().numpy()
    np.testing.assert_allclose(outputs, ours, rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "text", "left"),
    [
        ("Branching", r"with torch.export .*failed at .*torch_unexported.py:\d+: .*Could not", []),
        ("Airy", r"to ONNX .*failed: .*No ONNX function found for .*airy_ai", ["model.pt2"]),
    ],
)
def test_a_model_that_cannot_be_exported_is_trained_all_the_same(run, tmp_path, kind, text, left):
    settings = (SHORT, "model_def=torch_unexported", f"params.module={kind}", *FORMATS)
    with pytest.raises(UserCodeError, match=text) as error:
        run("train", *settings)
    output = tmp_path / "job-out"
    assert str(output) in str(error.value)
    assert len(str(error.value)) < 1000
    assert sorted(path.name for path in output.glob("model.[op]*")) == left
    data = f"data={tmp_path}/data/part-0.recordio"
    evaluated = run("evaluate", f"trained_model={output}", data, job="e")
    assert evaluated.result.examples == 50


def test_a_missing_exporter_is_told_before_training(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingDependency, match=r"onnxscript.*\[onnx\]"):
        run("train", FORMATS[1])
    assert not Path(tmp_path, "job-out").exists()
