"""Modules of Lightning: their steps are run, and what only its trainer would do is refused."""

from pathlib import Path

import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.step_options import StepOptions
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.zoo import load_spec
from tests.jobs import NO_OPTIONS
from tests.later import LATER, later
from tests.specs import with_methods

if LATER:
    import torch
    from torch import nn
    from torch.optim import lr_scheduler as schedulers

    from edl_horovod.frameworks.torch.model import TorchEvaluation
    from edl_horovod.frameworks.torch.plain_models import PLAIN_MODELS
    from edl_horovod.frameworks.torch.running import ModuleRunner
    from tests.component.frameworks.torch.rings import (
        assert_state,
        losses_of,
        share,
        steps_of_ring,
        train_shares,
    )
    from tests.torch_ring import CPU, batches_of_sines, make_step

ZOO = str(Path(__file__).parents[3] / "zoo")
BATCH, STEPS, STEPS_PER_EPOCH = 12, 9, 4
if LATER:
    EXAMPLE = Batch(torch.ones(2, 4), torch.ones(2, 1), 2)

BASE = """
from torch import nn

class LightningModule(nn.Module):
    automatic_optimization = True
    current_epoch = global_step = 0

    def training_step(self, *args, **kwargs): ...
    def validation_step(self, *args, **kwargs): ...
    def on_train_epoch_end(self): ...
    def setup(self, stage): ...
    def log(self, name, value):
        raise RuntimeError("there is no trainer")
"""
"""The base class, as far as it is looked at: it has all hooks and steps, which do nothing."""
if LATER:
    names = {"__name__": "lightning.pytorch.core.module"}
    exec(BASE, names)
    LightningModule = names["LightningModule"]

    class Regression(LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))

        def training_step(self, batch, batch_idx):
            x, y = batch
            loss = nn.functional.mse_loss(self.layers(x), y)
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)


def batches(num_steps=STEPS):
    for batch in batches_of_sines(num_steps, BATCH):
        yield Batch(batch.features["x"], batch.labels, BATCH)


def loaded_with(kind):
    loaded = load_spec(ZOO, "torch_lightning", params={}, plain_models=PLAIN_MODELS)
    return with_methods(loaded, create_model=kind)


def in_ring(kind, size=1, options=NO_OPTIONS):
    """Train a class in a ring; returns the state of its ranks, and what steps gave."""
    steps = steps_of_ring(loaded_with(kind), EXAMPLE, size, options=options)
    for step in steps:
        step.callbacks(num_epochs=3, steps_per_epoch=STEPS_PER_EPOCH, per_step=False)
    return train_shares(steps, list(batches()))


def by_hand(kind):
    """What Lightning's trainer does, and the losses of its steps."""

    class Silent(kind):
        def log(self, name, value):
            pass

    torch.manual_seed(3)
    module, losses = Silent(), []
    configured = module.configure_optimizers()
    optimizer, schedule = configured if isinstance(configured, tuple) else (configured, None)
    for step, batch in enumerate(batches()):
        number = step % STEPS_PER_EPOCH
        returned = module.training_step((batch.features, batch.labels), number)
        loss = returned["loss"] if isinstance(returned, dict) else returned
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None and (number + 1) % schedule.get("frequency", 1) == 0:
            schedule["scheduler"].step()
        losses.append(loss.item())
    return module, losses


def assert_trains_as_by_hand(trained, kind):
    """Compare what `in_ring` gave; returns the losses by hand."""
    state, sums = trained
    module, losses = by_hand(kind)
    assert losses_of(sums) == pytest.approx(losses, rel=1e-5)
    assert_state(state, module, rtol=1e-4, atol=1e-6)
    return losses


if LATER:

    class NoNorm(Regression):
        def on_device(self):
            """It is no hook."""

        def __init__(self):
            super().__init__()
            self.layers[1] = nn.Tanh()

    class Numbered(NoNorm):
        """It returns a dict, counts in a buffer, and learns by the number of the batch."""

        def __init__(self):
            super().__init__()
            self.register_buffer("num_steps", torch.zeros((), dtype=torch.int64))

        def training_step(self, batch, batch_idx):
            self.num_steps += 1
            return {"loss": super().training_step(batch, batch_idx) * (1 + batch_idx)}

    class FrozenBackbone(Regression):
        """Dropout and statistics of its first layers are those of an evaluation."""

        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
            self.backbone.requires_grad_(False).eval()
            self.layers[1] = nn.Tanh()

        def training_step(self, batch, batch_idx):
            return super().training_step((self.backbone(batch[0]), batch[1]), batch_idx)

        def validation_step(self, batch, batch_idx):
            return nn.functional.mse_loss(self.layers(self.backbone(batch[0])), batch[1])


@pytest.mark.parametrize("options", [NO_OPTIONS, StepOptions(sums_batch_norm=True)])
@pytest.mark.parametrize("size", [1, 2])
def test_layers_that_a_module_puts_into_evaluation_mode_stay_there(size, options):
    assert_trains_as_by_hand(in_ring(FrozenBackbone, size, options), FrozenBackbone)


def test_layers_stay_in_evaluation_mode_after_an_evaluation():
    step = make_step(loaded_with(FrozenBackbone), EXAMPLE)
    evaluation = TorchEvaluation(step.model.runner, EXAMPLE)
    _, losses = by_hand(FrozenBackbone)
    for batch, loss in zip(batches(), losses, strict=True):
        sums = step.step(batch, wants_change=False, is_alone=True, salt=0)
        assert sums.loss == pytest.approx(loss, rel=1e-6)
        evaluation.sums(batch)


if LATER:

    class Penalised(NoNorm):
        """It adds a mean over parameters to the loss."""

        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) + self.layers[0].weight.square().mean()


@pytest.mark.parametrize("size", [1, 2])
def test_a_mean_over_parameters_is_no_divisor_of_the_batch(size):
    options = StepOptions(num_parts=2)
    assert_trains_as_by_hand(in_ring(Penalised, size, options), Penalised)


if LATER:

    class Masked(NoNorm):
        """Its loss is a mean over some of the examples, and one over all of them."""

        def training_step(self, batch, batch_idx):
            x, y = batch
            outputs, mask = self.layers(x), (y > 0).float()
            distance = ((outputs - y).abs() * mask).sum() / mask.sum()
            loss = distance + nn.functional.mse_loss(outputs, y)
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch, batch_idx):
            x, y = batch
            mask = (y > 0).float()
            self.log("val_loss", ((self.layers(x) - y).abs() * mask).sum() / mask.sum())

    class Rare(NoNorm):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), 0.1)
            scheduler = schedulers.ExponentialLR(optimizer, 0.5)
            return optimizer, {
                "scheduler": scheduler,
                "interval": "step",
                "frequency": 3,
                "name": "my rate",
            }


@pytest.mark.long(after=1)
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    "kind", [later("NoNorm"), later("Numbered"), later("Masked"), later("Rare")]
)
def test_a_training_step_trains_as_in_a_loop(kind, size):
    state, sums = in_ring(kind, size)
    losses = assert_trains_as_by_hand((state, sums), kind)
    if kind is Masked:
        return  # What is logged is a mean over the examples.
    factors = [1 + n % STEPS_PER_EPOCH if kind is Numbered else 1 for n in range(STEPS)]
    logged = [
        step_sums.metrics["train_loss"] * f for step_sums, f in zip(sums, factors, strict=True)
    ]
    assert logged == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize(("size", "sums"), [(1, False), (1, True), (2, True), (3, True)])
def test_the_statistics_of_a_module_are_those_of_a_loop(size, sums):
    state, _ = in_ring(Regression, size, StepOptions(sums_batch_norm=sums))
    module, _ = by_hand(Regression)
    assert_state(state, module, rtol=1e-4, atol=1e-6)


def test_a_loss_that_is_logged_is_divided_as_one_that_is_returned():
    (batch,) = batches(1)
    running = ModuleRunner(loaded_with(Masked), EXAMPLE, CPU)
    evaluation = TorchEvaluation(running, EXAMPLE)
    sums = sum((evaluation.sums(share(batch, rank, 3)) for rank in range(3)), evaluation.zeros)
    outputs, labels = running.module.layers(batch.features), batch.labels
    loss = (outputs - labels).abs()[labels > 0].mean().item()
    assert evaluation.values(sums) == {"loss": pytest.approx(loss, rel=1e-6)}


def changed(**methods):
    return type("Changed", (Regression,), methods)


def summed(self, batch, batch_idx):
    return (self.layers(batch[0]) - batch[1]).square().sum()


def logging(log):
    """A step that calls a function with the module and the number of the batch."""

    def training_step(self, batch, batch_idx):
        log(self, batch_idx)
        return Regression.training_step(self, batch, batch_idx)

    return training_step


def by_epoch(self, batch, batch_idx):
    return Regression.training_step(self, batch, batch_idx) * (1 + self.current_epoch)


def two(self):
    return [torch.optim.SGD(layer.parameters(), 0.1) for layer in (self.layers[0], self.layers[2])]


def test_a_log_of_the_users_own_stays_what_it_is():
    seen = []
    _, sums = in_ring(changed(log=lambda self, name, value: seen.append(name)))
    assert set(seen) == {"train_loss"}
    assert sums[0].metrics == {}


REFUSED = {
    "None": ({"training_step": lambda self, batch, batch_idx: None}, "'loss'"),
    "a sum": ({"training_step": summed}, r"training_step .*the sum over the batch"),
    "by hand": ({"automatic_optimization": False}, "automatic_optimization"),
    "hooks": (
        {"on_train_epoch_end": lambda self: None, "optimizer_step": lambda self: None},
        r"on_train_epoch_end, optimizer_step.*create_callbacks",
    ),
    "the trainer's numbers": ({"training_step": by_epoch}, r"self.current_epoch.*register_buffer"),
    "two optimizers": ({"configure_optimizers": two}, "several optimizers"),
    "other metrics": (
        {"training_step": logging(lambda net, number: number == 2 and net.log("seldom", 1.0))},
        r"the same metrics for every batch",
    ),
    "a metric that is a sum": (
        {"training_step": logging(lambda net, _: net.log("hits", 1.0, reduce_fx="sum"))},
        r"reduce_fx='sum'",
    ),
    "a metric of all batches": (
        {"training_step": logging(lambda net, _: net.log("metric", nn.Identity()))},
        r"'metric'.*self.log\(name, metric\(outputs, labels\)\)",
    ),
    "an error": ({"training_step": lambda self, batch, batch_idx: 1 / 0}, r"ZeroDivisionError"),
}


@pytest.mark.parametrize(("methods", "message"), REFUSED.values(), ids=REFUSED)
def test_what_a_ring_does_not_do_is_refused(methods, message):
    with pytest.raises(UserCodeError, match=message):
        in_ring(changed(**methods))


def test_settings_that_do_not_reach_a_training_step_are_refused():
    with pytest.raises(UserCodeError, match="class_weight"):
        in_ring(Regression, options=StepOptions(class_weight=[1.0, 2.0]))
    with pytest.raises(UserCodeError, match=r"train\.compile"):
        in_ring(Regression, options=StepOptions(compiles=True))


@pytest.mark.long
def test_a_module_trains_validates_goes_on_and_predicts(run, use_trained):
    data = "data=dataset:torch_modules.Points"
    held_out = "data=dataset:torch_modules.held_out"
    settings = ("model_def=torch_lightning", data, f"validation_{held_out}", "train.epochs=20")
    done = run("train", *settings, job="whole")
    assert done.losses[80] < 0.2 * done.losses[1]
    assert done.state["num_steps"] == 80
    assert sorted(done.result.metrics) == ["error", "loss"]
    run("train", *settings, until=37)
    second = run("train", *settings, "resume=must")
    assert second.losses == pytest.approx(done.losses_after(37), rel=1e-5)
    _, features = use_trained(done, held_out)
    assert "y" in features


def test_a_module_without_a_validation_step_is_told_what_to_write(run, write_zoo):
    text = Path(ZOO, "torch_lightning.py").read_text().replace("validation_step", "another_step")
    zoo = write_zoo(torch_lightning=text, torch_modules=Path(ZOO, "torch_modules.py").read_text())
    data = "data=dataset:torch_modules.Points"
    with pytest.raises(UserCodeError, match="validation_step"):
        run("train", zoo, "model_def=torch_lightning", data, f"validation_{data}")
