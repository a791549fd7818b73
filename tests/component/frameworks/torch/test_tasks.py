"""The tasks on a PyTorch model: train, evaluate, predict, go on."""

import numpy as np
import pytest

from edl_horovod.errors import ConfigError
from edl_horovod.job import checkpoint_files
from edl_horovod.records.reader import Reader
from tests.later import LATER

if LATER:
    import torch
    from safetensors.torch import load_file

    from tests.zoo import torch_tiny

EPOCHS = "train.epochs=3"
KERAS = ["framework=keras", "model_def=tiny"]
SYNCHRONIZED = "train.batch_norm=synchronized"


def assert_same_state(ours, expected, *, atol=1e-7):
    assert list(ours.state) == list(expected.state)
    for name, value in ours.state.items():
        np.testing.assert_allclose(value, expected.state[name], rtol=1e-5, atol=atol, err_msg=name)


@pytest.mark.long
def test_it_trains_evaluates_and_predicts(run, use_trained, tmp_path):
    held_out = f"validation_data={tmp_path}/data/part-0.recordio"
    trained = run("train", "train.epochs=30", held_out)
    assert trained.result.steps == 150
    assert trained.losses[150] < 0.02 * trained.losses[1]
    assert sorted(trained.result.metrics) == ["absolute_error", "loss"]

    evaluated, features = use_trained(trained, f"data={tmp_path}/data/part-0.recordio")
    assert evaluated.examples == 50
    with Reader.open(str(tmp_path / "p.recordio")) as reader:
        assert len(list(reader)) == 50
    assert features["output"]["shape"] == [1]


def test_a_trained_model_is_a_safetensors_file_of_the_module(run, tmp_path):
    run("train", EPOCHS)
    net = torch_tiny.Net()
    net.load_state_dict(load_file(tmp_path / "job-out" / "model.safetensors"))
    continued = run("train", "train.epochs=1", f"init_from={tmp_path}/job-out", until=1, job="more")
    assert continued.losses[1] == pytest.approx(0, abs=2)
    assert torch.isfinite(net.hidden.weight).all()


@pytest.mark.long
@pytest.mark.parametrize(
    "params",
    [["params.kind=Adam"], ["params.kind=SGD"], ["params.dropout=0.5", "params.batch_norm=True"]],
)
def test_every_step_is_that_of_an_uninterrupted_training(run, tmp_path, params):
    settings = (EPOCHS, *params)
    whole = run("train", *settings, job="whole")
    assert list(whole.losses) == list(range(1, 16))
    first = run("train", *settings, until=7)
    folder = tmp_path / "job" / "checkpoints"
    assert checkpoint_files.steps_in(folder)[-1] == 7
    second = run("train", *settings, "resume=must")
    assert list(second.losses) == list(range(8, 16))
    assert {**first.losses, **second.losses} == pytest.approx(whole.losses, rel=1e-5)
    assert_same_state(second, whole)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["train.batch_norm=both"], "train.batch_norm"),
        ([SYNCHRONIZED, "train.accumulate_steps=2"], r"needs train.accumulate_steps=1"),
        ([SYNCHRONIZED, "train.compile=true"], r"norm .*compile"),
        (["train.compile=true", *KERAS], r"compile .*torch"),
        (["train.onnx=true", *KERAS], r"onnx .*torch"),
    ],
)
def test_settings_that_do_not_go_together_or_with_keras_are_refused(run, settings, message):
    with pytest.raises(ConfigError, match=message):
        run("train", *settings)
