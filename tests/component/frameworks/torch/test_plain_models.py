"""Modules without a spec, data sets of PyTorch as records, and parts that the user sets."""

import pytest

from edl_horovod.errors import ConfigError, UserCodeError

MODULE = ("model_def=torch_modules.Regression", "data=dataset:torch_modules.Points")
HELD_OUT = "data=dataset:torch_modules.held_out"
EPOCHS = "train.epochs=20"


@pytest.mark.long
def test_a_module_with_a_loss_and_an_optimizer_trains_on_a_data_set(run, use_trained):
    done = run("train", *MODULE, f"validation_{HELD_OUT}", EPOCHS)
    assert done.result.steps == 80
    assert done.losses[80] < 0.05 * done.losses[1]
    assert sorted(done.result.metrics) == ["absolute_error", "loss"]
    use_trained(done, HELD_OUT)


def test_its_file_need_not_name_the_class_and_its_parameters_are_set(run):
    done = run("train", "model_def=torch_modules", MODULE[1], "params.width=3", "train.max_steps=1")
    assert done.state["layers.0.weight"].shape == (3, 4)


@pytest.mark.long
def test_a_training_on_a_data_set_goes_on(run):
    whole = run("train", *MODULE, EPOCHS, job="whole")
    run("train", *MODULE, EPOCHS, until=37)
    second = run("train", *MODULE, EPOCHS, "resume=must")
    assert second.losses == pytest.approx(whole.losses_after(37), rel=1e-5)


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    "settings",
    [
        ["optimizer=adamw", "train.learning_rate=0.01"],
        ["loss=l1loss"],
        ["loss=HuberLoss", "optimizer=SGD", "train.learning_rate=0.05"],
    ],
)
def test_names_of_pytorch_take_the_place_of_its_parts(run, settings):
    kind = {setting.partition("=")[2].lower() for setting in settings}
    done = run("train", *MODULE, *settings, EPOCHS)
    assert done.losses[80] < done.losses[1]
    name = type(done.step.optimizer).__name__.lower()
    assert name in kind or name == "adam"


@pytest.mark.parametrize(
    ("setting", "message"),
    [("loss=mean", r"'mean'.*MSELoss"), ("optimizer=adamm", r"'adamm'.*'Adam")],
)
def test_names_that_pytorch_does_not_have_are_refused(run, setting, message):
    with pytest.raises(ConfigError, match=message):
        run("train", *MODULE, setting)


def test_a_module_whose_data_have_no_reader_is_told(run):
    message = r"lacks input_fn, loss, optimizer\..* feed\(.* loss\(.*configure_optimizers\("
    with pytest.raises(UserCodeError, match=message):
        run("train", "model_def=torch_tiny.Net")


@pytest.fixture
def bare(run, write_module):
    """Train a module some lines of which a test writes."""

    def train(*lines, data=MODULE[1], change=("", ""), job="job"):
        module = write_module(*lines, change=change, folder=f"{job}-zoo")
        data = data.replace("torch_modules", "tests.zoo.torch_modules")
        return run("train", *module, *([data] if data else []), job=job)

    return train


def test_what_a_module_brings_itself_is_not_said_to_be_missing(bare):
    with pytest.raises(UserCodeError, match=r"lacks input_fn\."):
        bare(data="")


OWN_LOSS = """    def loss(self, outputs, labels):
        return nn.functional.mse_loss(outputs, labels)
"""


def test_a_loss_of_pytorch_as_the_attribute_loss_is_the_loss(bare):
    with_method = bare()
    with_module = bare("self.loss = nn.MSELoss()", change=(OWN_LOSS, ""), job="other")
    assert with_module.losses == pytest.approx(with_method.losses, rel=1e-6)


def test_another_module_as_the_attribute_loss_is_told_what_to_write(bare):
    with pytest.raises(UserCodeError, match=r"lacks loss\..*\(Identity\)"):
        bare("self.loss = nn.Identity()", change=(OWN_LOSS, ""))


@pytest.mark.parametrize(
    ("init", "forward"),
    [
        ("self.more = [nn.Linear(4, 4), nn.Linear(4, 4)]", "self.layer(self.more[1](x))"),
        ("self.more = {'a': (nn.Linear(4, 4),)}", "self.layer(self.more['a'][0](x))"),
        ("self.more = [nn.Parameter(torch.ones(4))]", "self.layer(self.more[0] * x)"),
        ("del self.layer; self.more = [nn.Linear(4, 1)]", "self.more[0](x)"),
    ],
)
def test_parameters_that_pytorch_does_not_find_are_named(bare, init, forward):
    with pytest.raises(UserCodeError, match=r"'more' .*Net"):
        bare(init, forward)


def test_a_frozen_module_may_hide_in_a_list(bare):
    hidden = "self.more = [nn.Linear(4, 4).requires_grad_(False)]"
    assert bare(hidden, "self.layer(self.more[0](x))").result.steps == 4


@pytest.mark.parametrize(
    ("message", "lines", "change"),
    [
        ("no parameters", ["del self.layer", "x.sum(1, keepdim=True)"], ("", "")),
        ("LBFGS", [], ("SGD(self.parameters(), lr, momentum=0.9)", "LBFGS(self.parameters())")),
    ],
)
def test_what_cannot_be_trained_is_refused(bare, message, lines, change):
    with pytest.raises(UserCodeError, match=message):
        bare(*lines, change=change)
