"""Modules without a spec, data sets of PyTorch as records, and parts that the user sets."""

import pytest

from edl_horovod.errors import ConfigError, UserCodeError

MODULE = ("model_def=torch_modules.Regression", "data=dataset:torch_modules.Points")
EPOCHS = "train.epochs=20"


def test_a_module_with_a_loss_and_an_optimizer_trains_on_a_data_set(run, tmp_path):
    done = run("train", *MODULE, "validation_data=dataset:torch_modules.held_out", EPOCHS)
    assert done.result.steps == 80
    assert done.losses[80] < 0.05 * done.losses[1]
    assert sorted(done.result.metrics) == ["absolute_error", "loss"]
    found = run(
        "evaluate",
        f"trained_model={tmp_path}/job-out",
        "data=dataset:torch_modules.held_out",
        job="e",
    )
    assert found.result.metrics == pytest.approx(done.result.metrics)
    predicted = f"output={tmp_path}/p.recordio"
    data = "data=dataset:torch_modules.held_out"
    run("predict", f"trained_model={tmp_path}/job-out", data, predicted, job="p")


def test_its_file_need_not_name_the_class_and_its_parameters_are_set(run):
    done = run("train", "model_def=torch_modules", MODULE[1], "params.width=3", "train.max_steps=1")
    assert done.state["layers.0.weight"].shape == (3, 4)


def test_a_training_on_a_data_set_goes_on(run):
    whole = run("train", *MODULE, EPOCHS, job="whole")
    run("train", *MODULE, EPOCHS, until=37)
    second = run("train", *MODULE, EPOCHS, "resume=must")
    assert second.losses == pytest.approx(
        {step: loss for step, loss in whole.losses.items() if step > 37}, rel=1e-5
    )


@pytest.mark.parametrize(
    "settings",
    [
        ["optimizer=adamw", "train.learning_rate=0.01"],
        ["loss=l1loss"],
        ["loss=HuberLoss", "optimizer=SGD", "train.learning_rate=0.05"],
    ],
)
def test_names_of_pytorch_take_the_place_of_its_parts(run, settings):
    kind = {each.partition("=")[2].lower() for each in settings}
    done = run("train", *MODULE, *settings, EPOCHS)
    assert done.losses[80] < done.losses[1]
    name = type(done.step.optimizer).__name__.lower()
    assert name in kind or name == "adam"


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (["loss=mean"], ConfigError, r"PyTorch has no loss 'mean'.*MSELoss"),
        (["optimizer=adamm"], ConfigError, r"PyTorch has no optimizer 'adamm'.*mean 'Adam"),
    ],
)
def test_names_that_pytorch_does_not_have_are_refused(run, settings, error, message):
    with pytest.raises(error, match=message):
        run("train", *MODULE, *settings)


def test_a_module_whose_data_have_no_reader_is_told(run):
    with pytest.raises(UserCodeError, match=r"lacks input_fn"):
        run("train", "model_def=torch_tiny.Net")
