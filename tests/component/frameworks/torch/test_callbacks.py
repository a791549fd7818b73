"""Callbacks and schedules by the epoch of a PyTorch training, whoever leads it."""

import types

import numpy as np
import pytest

from edl_horovod.callbacks import Callback, LearningRateScheduler, MaxSteps
from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.step_options import StepOptions
from tests.later import LATER

if LATER:
    import torch
    from torch.optim import lr_scheduler as schedulers

    from tests.component.frameworks.torch.rings import assert_state, steps_of_ring, tiny
    from tests.torch_alone import by_hand
    from tests.torch_ring import batches_of_sines, part_of, train_in_ring
    from tests.zoo import torch_tiny

EPOCHS = "train.epochs=6"


@pytest.fixture
def held_out(tmp_path):
    """Half of the records."""
    return f"data={tmp_path}/data/part-0.recordio"


@pytest.fixture
def with_spec(watched):
    """Have the model's spec return callbacks, or an optimizer."""
    return watched.methods.update


class Told(Callback):
    def __init__(self, stop_after=99):
        self.stop_after = stop_after
        self.epochs = []
        self.losses = []
        self.begun = 0

    def on_train_begin(self):
        self.begun += 1

    def on_epoch_begin(self, epoch):
        self.epochs.append(epoch)

    def on_epoch_end(self, epoch, logs):
        self.losses.append(logs["loss"])
        self.names = sorted(logs)
        self.stop_training = epoch == self.stop_after
        for group in self.optimizer.param_groups:
            group["lr"] /= 2


@pytest.mark.long
def test_what_they_note_and_change_goes_on_after_a_restart(run, held_out, with_spec):
    callbacks = []
    with_spec(create_callbacks=lambda: callbacks.append(Told()) or callbacks[-1:])
    settings = (EPOCHS, f"validation_{held_out}")
    whole = run("train", *settings, job="whole")
    first = run("train", *settings, until=17)
    second = run("train", *settings, "resume=must")
    assert {**first.losses, **second.losses} == pytest.approx(whole.losses, rel=1e-5)
    uninterrupted, _, resumed = callbacks
    assert uninterrupted.epochs == resumed.epochs == list(range(6))
    assert resumed.losses == pytest.approx(uninterrupted.losses, rel=1e-5)
    assert resumed.names == ["absolute_error", "loss", "val_absolute_error", "val_loss"]
    assert second.step.optimizer.param_groups[0]["lr"] == 0.05 / 2**6


class Waits(Callback):
    """Keeps what it counts in an attribute that is its own, and NumPy's numbers in a list."""

    def __init__(self):
        self._num_epochs = 0
        self.means = []
        self.seen = set()

    def on_epoch_end(self, epoch, logs):
        self._num_epochs += 1
        self.means.append(np.float64(logs["loss"]))
        self.seen.add(epoch)


def test_private_attributes_and_numbers_of_numpy_go_on_after_a_restart(run, with_spec, caplog):
    callbacks = []
    with_spec(create_callbacks=lambda: callbacks.append(Waits()) or [callbacks[-1]])
    run("train", EPOCHS, until=17)
    with_spec(create_callbacks=lambda: [Told(), *(callbacks.append(Waits()) or callbacks[-1:])])
    run("train", EPOCHS, "resume=must")
    assert callbacks[-1]._num_epochs == len(callbacks[-1].means) == 6
    # By each of the two runs, once.
    assert len([message for message in caplog.messages if "'seen' of Waits" in message]) == 2


class Patient(Callback):
    """Has an argument that it keeps."""

    def __init__(self, patience):
        self._patience = patience


def test_a_resumed_training_tells_of_an_argument_that_stays(run, with_spec, caplog):
    for patience, resume, until in ((2, "auto", 6), (2, "must", 12), (5, "must", 0)):
        with_spec(create_callbacks=lambda: [Patient(patience)])  # noqa: B023
        caplog.clear()
        run("train", EPOCHS, f"resume={resume}", until=until)
        assert ("Patient stays 2" in caplog.text) == (patience == 5)


def test_one_may_end_the_training(run, with_spec):
    with_spec(create_callbacks=lambda: [Told(stop_after=1)])
    assert run("train", EPOCHS).result.steps == 10


def test_a_rate_by_step_and_a_last_step(run, with_spec):
    with_spec(
        create_callbacks=lambda: [LearningRateScheduler(lambda step: 0.1 * step), MaxSteps(7)]
    )
    done = run("train", EPOCHS)
    assert done.result.steps == 7
    assert done.step.optimizer.param_groups[0]["lr"] == pytest.approx(0.6)


class Thaw(Callback):
    def on_train_begin(self):
        self.model.hidden.requires_grad_(False)

    def on_epoch_end(self, epoch, logs):
        self.model.hidden.requires_grad_(epoch >= 1)


@pytest.mark.long
def test_what_is_frozen_and_freed_holds_after_a_restart(run, with_spec):
    with_spec(create_callbacks=lambda: [Thaw()])
    whole = run("train", EPOCHS, job="whole")
    frozen = run("train", EPOCHS, until=8, job="frozen")
    torch.manual_seed(0)
    fresh = torch_tiny.Net()
    assert (frozen.state["hidden.weight"] == fresh.hidden.weight.detach().numpy()).all()
    run("train", EPOCHS, until=13)
    second = run("train", EPOCHS, "resume=must")
    assert (second.state["hidden.weight"] != frozen.state["hidden.weight"]).any()
    assert second.losses == pytest.approx(whole.losses_after(13), rel=1e-5)


class Unfreeze(Callback):
    """Adds the layer before the last to what is trained after the first epoch."""

    def on_epoch_end(self, epoch, logs):
        if epoch == 0:
            unfreeze(self.model, self.optimizer)


def unfreeze(model, optimizer):
    model.hidden.requires_grad_(True)
    # Not in the order in which the optimizer has them.
    group = {"weight_decay": 0.1, "lr": 0.02, "params": [model.hidden.bias, model.hidden.weight]}
    optimizer.add_param_group(group)


class UnfreezesHere(Unfreeze):
    def on_epoch_end(self, epoch, logs):
        if epoch == 0:
            self.model.hidden.requires_grad_(True)
            parameters = [self.model.hidden.bias, self.model.hidden.weight]
            self.optimizer.add_param_group({"weight_decay": 0.1, "lr": 0.02, "params": parameters})


def head_alone(model, lr=0.05, kind="AdamW"):
    model.hidden.requires_grad_(False)
    optimizer = getattr(torch.optim, kind)(model.output.parameters(), lr)
    return halved(optimizer)


@pytest.mark.long(after=1)
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_group_that_is_added_trains_as_in_a_loop_by_hand(size, kind):
    loaded = tiny(
        create_optimizer=lambda model: head_alone(model, kind=kind),
        create_callbacks=lambda: [UnfreezesHere()],
    )
    batches = list(batches_of_sines(8, 12))
    options = StepOptions(clip_norm=0.1)
    steps = steps_of_ring(loaded, batches[0], size, options=options)
    callbacks = [step.callbacks(num_epochs=4, steps_per_epoch=2, per_step=False) for step in steps]
    net = loaded.spec.create_model()
    net.load_state_dict(steps[0].model.runner.module.state_dict())
    [optimizer], [schedule] = head_alone(net, kind=kind)
    for epoch in range(4):
        epochs_own = batches[2 * epoch : 2 * epoch + 2]
        train_in_ring(steps, lambda rank, part=epochs_own: [part_of(b, rank, size) for b in part])
        callbacks[0].end_epoch(epoch, {})
        states = [
            {**step.variables, **callback.variables}
            for step, callback in zip(steps, callbacks, strict=True)
        ]
        for name, variable in states[0].items():
            for other in states[1:]:
                other[name].assign(variable.numpy())
        for batch in epochs_own:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(net(batch.features), batch.labels).backward()
            held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            torch.nn.utils.clip_grad_norm_(held, 0.1)
            optimizer.step()
        schedule.step()
        if epoch == 0:
            unfreeze(net, optimizer)
        for step in steps:
            assert_state(step.model.runner.module.state_dict(), net, rtol=1e-5, atol=1e-6)
            rates = [group["lr"] for group in step.optimizer.param_groups]
            assert rates == [group["lr"] for group in optimizer.param_groups]


@pytest.mark.long
def test_a_group_that_is_added_is_there_after_a_restart(run, with_spec):
    with_spec(create_optimizer=head_alone, create_callbacks=lambda: [UnfreezesHere()])
    whole = run("train", EPOCHS, job="whole")
    for until in (4, 7, 18):
        job = f"until{until}"
        run("train", EPOCHS, until=until, job=job)
        second = run("train", EPOCHS, "resume=must", job=job)
        assert second.losses == pytest.approx(whole.losses_after(until), rel=1e-5)
        assert len(second.step.optimizer.param_groups) == 2


class Foreign(Callback):
    def on_epoch_end(self, epoch, logs):
        self.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})


class Removes(Callback):
    def on_epoch_end(self, epoch, logs):
        self.optimizer.param_groups[0]["params"].pop()


class Annotates(UnfreezesHere):
    def on_epoch_end(self, epoch, logs):
        super().on_epoch_end(epoch, logs)
        self.optimizer.param_groups[-1]["cycle"] = 3


@pytest.mark.parametrize("kind", [Unfreeze, Foreign, Removes, Annotates])
def test_groups_that_cannot_reach_the_other_ranks_are_refused(run, with_spec, kind):
    with_spec(create_optimizer=head_alone, create_callbacks=lambda: [kind()])
    with pytest.raises(UserCodeError, match="add_param_group"):
        run("train", EPOCHS)


class Batches(Callback):
    def __init__(self, changes=False):
        self.batches, self.changes = [], changes

    def on_train_batch_end(self, batch, logs):
        self.batches.append((batch, round(logs["loss"], 3)))
        if self.changes:
            self.model.output.bias.data.add_(1)


def test_hooks_of_steps_may_look(run, with_spec):
    callbacks = []
    with_spec(create_callbacks=lambda: callbacks.append(Batches()) or callbacks[-1:])
    run("train", "train.epochs=2", "callbacks.per_step=true")
    assert [batch for batch, _ in callbacks[0].batches] == [*range(5), *range(5)]
    with pytest.raises(UserCodeError, match="on_train_batch_end"):
        run("train", EPOCHS)


@pytest.mark.parametrize(
    ("create_callback", "message"),
    [
        (lambda: Batches(changes=True), r"Batches.*stop"),
        (types.SimpleNamespace, r"callbacks\.Callback"),
    ],
    ids=["a hook of steps that changes something", "no callback"],
)
def test_what_is_no_callback_of_steps_is_refused(run, with_spec, create_callback, message):
    with_spec(create_callbacks=lambda: [create_callback()])
    with pytest.raises(UserCodeError, match=message):
        run("train", EPOCHS, "callbacks.per_step=true")


def with_sgd(schedule, *, rate=0.1):
    """A spec's optimizer: plain SGD in the form that a schedule is given in."""

    def create_optimizer(model, lr=rate):
        return schedule(torch.optim.SGD(model.parameters(), lr))

    return create_optimizer


def plateau(optimizer):
    # Nothing is good enough for it.
    settings = {"patience": 1, "threshold": 0.9, "threshold_mode": "abs"}
    scheduler = schedulers.ReduceLROnPlateau(optimizer, factor=0.1, **settings)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "loss"}}


def every_second_epoch(optimizer):
    scheduler = schedulers.ExponentialLR(optimizer, 0.1)
    return [{"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "frequency": 2}}]


def at_the_third_step(optimizer):
    """Steps are counted from each epoch's begin, as Lightning counts them."""
    scheduler = schedulers.ExponentialLR(optimizer, 0.1**0.5)
    return [optimizer], [{"scheduler": scheduler, "interval": "step", "frequency": 3}]


def halved(optimizer):
    return [optimizer], [schedulers.ExponentialLR(optimizer, 0.5)]


SCHEDULES = {
    "steps": (lambda optimizer: ([optimizer], [schedulers.StepLR(optimizer, 2, 0.1)]), 1e-4),
    "plateau": (plateau, 1e-3),
    "every second epoch": (every_second_epoch, 1e-4),
    "third steps": (at_the_third_step, 1e-4),
}


@pytest.mark.long
@pytest.mark.parametrize(("schedule", "rate"), SCHEDULES.values(), ids=SCHEDULES)
def test_schedules_by_the_epoch_go_on_after_a_restart(run, with_spec, schedule, rate):
    with_spec(create_optimizer=with_sgd(schedule))
    whole = run("train", EPOCHS, job="whole")
    assert whole.step.optimizer.param_groups[0]["lr"] == pytest.approx(rate)
    run("train", EPOCHS, until=17)
    second = run("train", EPOCHS, "resume=must")
    assert second.step.optimizer.param_groups[0]["lr"] == pytest.approx(rate)
    assert second.losses == pytest.approx(whole.losses_after(17), rel=1e-5)


def small_loss(outputs, labels):
    return 0.01 * torch.nn.functional.mse_loss(outputs, labels)


@pytest.mark.long
@pytest.mark.parametrize(
    "stops", [["train.max_steps=7"], ["train.max_steps=7", "train.max_steps=9"]]
)
def test_a_training_that_ended_in_the_midst_of_an_epoch_goes_on_in_it(
    run, held_out, with_spec, stops
):
    with_spec(create_optimizer=with_sgd(halved), create_callbacks=lambda: [Told()])
    settings = [
        EPOCHS,
        f"validation_{held_out}",
        "train.early_stopping.metric=loss",
        "train.early_stopping.patience=5",
        "train.early_stopping.min_delta=9",
    ]
    whole = run("train", *settings, job="whole")
    for stop, resume in zip(stops, ["never", "must"], strict=False):
        run("train", *settings, stop, f"resume={resume}")
    longer = run("train", *settings, "resume=must")
    assert longer.result.metrics == pytest.approx(whole.result.metrics, rel=1e-5)
    assert list(longer.state) == list(whole.state)
    assert_state(longer.state, whole.state, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("methods", "until", "ends"),
    [
        # Its learning rate is a whole number that gets a fraction.
        pytest.param(
            {"create_optimizer": with_sgd(halved, rate=1), "create_loss": small_loss},
            7,
            [],
            marks=pytest.mark.long,
        ),
        ({"create_optimizer": with_sgd(halved)}, 0, ["train.max_steps=7"]),
    ],
    ids=["a whole rate", "an end within an epoch"],
)
def test_schedules_by_the_epoch_are_those_of_a_loop_after_a_break(
    run, with_spec, methods, until, ends
):
    with_spec(**methods)
    whole = run("train", EPOCHS, job="whole")
    run("train", EPOCHS, *ends, until=until)
    second = run("train", EPOCHS, "resume=must")
    weights = by_hand(whole, **methods)
    assert_state(whole.state, weights, rtol=1e-5, atol=1e-6)
    assert_state(second.state, weights, rtol=1e-5, atol=1e-6)


def test_early_stopping_keeps_the_best_weights(run, use_trained, held_out):
    settings = [
        f"validation_{held_out}",
        "train.early_stopping.metric=loss",
        "train.early_stopping.patience=2",
        "train.early_stopping.min_delta=0.5",
        "train.early_stopping.restore_best=true",
        "train.epochs=40",
    ]
    trained = run("train", *settings)
    assert trained.result.steps < 200
    use_trained(trained, held_out)
