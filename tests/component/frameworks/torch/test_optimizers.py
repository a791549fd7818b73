"""Optimizers and schedules of PyTorch do here what they do in a loop of one's own."""

import itertools
import math

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.step_options import StepOptions
from edl_horovod.models.zoo import load_spec
from tests.later import LATER, later

if LATER:
    import torch
    from torch import nn
    from torch.optim import lr_scheduler as schedulers

    from edl_horovod.frameworks.torch.running import ComputeOptions
    from tests.component.frameworks.torch import rings
    from tests.component.frameworks.torch.rings import EXAMPLE, assert_state, run, tiny
    from tests.torch_ring import make_step, state_of

STEPS = 12
MAKERS = {
    "adadelta": lambda p: torch.optim.Adadelta(p, 0.5),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.05),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05, initial_accumulator_value=0.1),
    "adam": lambda p: torch.optim.Adam(p, 0.05, amsgrad=True, weight_decay=0.1),
    "adamax": lambda p: torch.optim.Adamax(p, 0.05),
    "adamw": lambda p: torch.optim.AdamW(p, 0.05),
    "asgd": lambda p: torch.optim.ASGD(p, 0.05),
    "nadam": lambda p: torch.optim.NAdam(p, 0.05),
    "radam": lambda p: torch.optim.RAdam(p, 0.05),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p, 0.01),
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, dampening=0.3, weight_decay=0.1),
}
SCHEDULES = {
    "one cycle": lambda o: schedulers.OneCycleLR(o, 0.2, total_steps=STEPS),
    "milestones": lambda o: schedulers.MultiStepLR(o, [2, 5, 5]),
    "lambda": lambda o: schedulers.LambdaLR(o, lambda step: 0.8**step),
    "cosine": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 5),
    "cyclic": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "one after the other": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, total_iters=4), schedulers.ExponentialLR(o, 0.8)], [4]
    ),
}


def batches(num_steps=STEPS):
    return rings.batches(num_steps)


def load(create_optimizer):
    return tiny(create_optimizer=create_optimizer)


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.1)


def scheduled(schedule, *, momentum=0.0, **settings):
    """SGD with a schedule, and how often that is called."""

    def create_optimizer(model):
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum)
        return optimizer, {"scheduler": schedule(optimizer), **settings}

    return create_optimizer


def with_sparse_gradients(kind="sgd"):
    return load_spec(rings.ZOO, "torch_sparse", params={"kind": kind})


def train(step, data=None):
    for batch in batches() if data is None else data:
        run(step, batch)
    return step


def by_us(loaded, data=None, **settings):
    return train(make_step(loaded, EXAMPLE, **settings), data)


def by_hand(loaded, *, change=lambda module: None, autocast=None):
    """A loop as in PyTorch's own tutorials."""
    torch.manual_seed(3)
    module = loaded.spec.create_model()
    configured = loaded.spec.create_optimizer(module)
    optimizer, schedule = configured if isinstance(configured, tuple) else (configured, None)
    for batch in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
            outputs = module(batch.features)
        loaded.spec.create_loss(outputs.float(), batch.labels).backward()
        change(module)
        optimizer.step()
        if schedule is not None:
            schedule["scheduler"].step()
    return module


def assert_same_weights(step, module, **tolerance):
    assert_state(state_of(step), module, **tolerance)


def goes_on_elsewhere(loaded, num_before):
    """Another step that gets the state after some batches, after the others."""
    first, second = by_us(loaded, batches(num_before)), make_step(loaded, EXAMPLE)
    for name, variable in reversed(second.variables.items()):
        variable.assign(first.variables[name].numpy())
    return train(second, itertools.islice(batches(), num_before, None))


def assert_goes_on_elsewhere(loaded, num_before):
    """Such a step ends with the same bits."""
    ours, expected = state_of(goes_on_elsewhere(loaded, num_before)), state_of(by_us(loaded))
    assert_state(ours, expected, rtol=0, atol=0)


@pytest.mark.long(after=1)
@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_every_optimizer_makes_the_steps_of_a_loop_of_ones_own(maker):
    loaded = load(lambda model: maker(model.parameters()))
    assert_same_weights(by_us(loaded), by_hand(loaded), rtol=2e-5, atol=1e-6)


@pytest.mark.long(after=1)
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_schedule_by_the_step_does_what_it_does_elsewhere_and_goes_on(schedule):
    loaded = load(scheduled(schedule, momentum=0.5, interval="step"))
    assert_same_weights(by_us(loaded), by_hand(loaded), rtol=2e-5, atol=1e-6)
    assert_goes_on_elsewhere(loaded, 5)


SPARSE = ["adagrad", "momentum", "sgd", "sparse adam"]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # Adagrad's own.
@pytest.mark.parametrize("scales_loss", [False, True])
@pytest.mark.parametrize("kind", SPARSE)
def test_sparse_gradients_are_those_of_a_loop_of_ones_own(kind, scales_loss):
    loaded = with_sparse_gradients(kind)
    step = by_us(loaded, options=StepOptions(scales_loss=scales_loss))
    assert_same_weights(step, by_hand(loaded), rtol=2e-5, atol=1e-6)


@pytest.mark.long(after=1)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # Adagrad's own.
@pytest.mark.parametrize("kind", [*MAKERS, *(f"sparse {kind}" for kind in SPARSE)])
@pytest.mark.parametrize("num_before", [0, 1, 7])
def test_what_an_optimizer_keeps_goes_on_elsewhere(kind, num_before):
    if kind in MAKERS:
        loaded = load(lambda model: MAKERS[kind](model.parameters()))
    else:
        loaded = with_sparse_gradients(kind.removeprefix("sparse "))
    assert_goes_on_elsewhere(loaded, num_before)


@pytest.mark.parametrize("bound", [{"clip_norm": 0.3}, {"clip_value": 0.1}])
def test_sparse_gradients_are_not_bounded(bound):
    loaded = with_sparse_gradients()
    with pytest.raises(UserCodeError, match=r"bags\.weight"):
        make_step(loaded, EXAMPLE, options=StepOptions(**bound))


FORMS = {
    "a tuple": lambda o, s: (o, {"scheduler": s, "interval": "step", "name": "rate"}),
    "lists": lambda o, s: ([o], [{"scheduler": s, "interval": "step", "frequency": 1}]),
    "a dict": lambda o, s: {
        "optimizer": o,
        "lr_scheduler": {"scheduler": s, "interval": "step", "strict": True, "monitor": None},
        "monitor": "val_loss",
    },
    "a list of a dict": lambda o, s: [
        {"optimizer": o, "lr_scheduler": {"scheduler": s, "interval": "step"}}
    ],
    "no scheduler": lambda o, s: {"optimizer": o, "lr_scheduler": None},
    "a list": lambda o, s: [o],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_an_optimizer_and_its_scheduler_are_taken_in_every_form_of_lightning(form):
    def create_optimizer(model):
        optimizer = sgd(model)
        return form(optimizer, schedulers.ExponentialLR(optimizer, 0.5))

    step = by_us(load(create_optimizer), batches(3))
    has_scheduler = form not in (FORMS["no scheduler"], FORMS["a list"])
    rate = step.optimizer.param_groups[0]["lr"]
    assert rate == pytest.approx(0.1 * 0.5**3 if has_scheduler else 0.1)


if LATER:

    class Counting(torch.optim.SGD):
        """It keeps a whole number of each parameter that has a fraction later."""

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        state = self.state[parameter]
                        state["size"] = state.get("size", 1) + 0.25 * float(
                            parameter.grad.norm() > 0
                        )
                        parameter -= group["lr"] * state["size"] * parameter.grad


def test_whole_numbers_that_get_a_fraction_go_on_elsewhere():
    def create_optimizer(model):
        optimizer = Counting(model.parameters(), lr=1)
        scheduler = schedulers.ExponentialLR(optimizer, 0.5)
        return optimizer, {"scheduler": scheduler, "interval": "step"}

    loaded = load(create_optimizer)
    second = goes_on_elsewhere(loaded, 5)
    assert_same_weights(second, by_hand(loaded), rtol=2e-5, atol=1e-6)


if LATER:

    class Widening(torch.optim.SGD):
        """It keeps a tensor of whole numbers, and later one of others in its place."""

        @torch.no_grad()
        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                if parameter.grad is not None:
                    size = self.state[parameter].setdefault("size", torch.tensor(2))
                    if parameter.grad.norm() > 0:
                        self.state[parameter]["size"] = 0.7 * size


def test_a_tensor_that_cannot_hold_what_replaces_it_is_refused():
    loaded = load(lambda model: Widening(model.parameters(), 0.1))
    with pytest.raises(UserCodeError, match=r"'size' .*int64"):
        by_us(loaded, batches(1))


def test_parameter_groups_keep_their_settings():
    def create_optimizer(model):
        return torch.optim.SGD(
            [
                {"params": model.hidden.parameters(), "lr": 0.01},
                {"params": model.output.parameters(), "momentum": 0.9},
            ],
            lr=0.1,
        )

    loaded = load(create_optimizer)
    assert_same_weights(by_us(loaded), by_hand(loaded), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "change"),
    [
        (
            StepOptions(clip_norm=0.3),
            lambda module: nn.utils.clip_grad_norm_(module.parameters(), 0.3),
        ),
        (
            StepOptions(clip_value=0.05),
            lambda module: nn.utils.clip_grad_value_(module.parameters(), 0.05),
        ),
        (StepOptions(num_parts=5), lambda module: None),
    ],
    ids=["norm", "value", "parts"],
)
def test_shaped_gradients_are_those_of_a_loop_of_ones_own(options, change):
    loaded = load(sgd)
    ours = by_us(loaded, options=options)
    assert_same_weights(ours, by_hand(loaded, change=change), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(later("torch.bfloat16"), 2e-2), (later("torch.float16"), 5e-3)],
    ids=["bf16", "fp16"],
)
def test_autocast_trains_as_elsewhere(dtype, tolerance):
    loaded = load(sgd)
    compute = ComputeOptions(torch.device("cpu"), dtype)
    options = StepOptions(scales_loss=dtype is torch.float16)
    ours = by_us(loaded, compute=compute, options=options)
    assert_same_weights(ours, by_hand(loaded, autocast=dtype), rtol=tolerance, atol=tolerance)
    assert ours.variables["hidden.weight"].dtype == np.float32


def test_a_multiplied_learning_rate_is_one_for_the_optimizer_alone():
    loaded = load(lambda model: torch.optim.Adam(model.parameters(), 0.02))
    tripled = load(lambda model: torch.optim.Adam(model.parameters(), 0.06))
    step = make_step(loaded, EXAMPLE)
    step.scale_learning_rate(3.0)
    assert_same_weights(train(step), by_hand(tripled), rtol=2e-5, atol=1e-6)
    assert step.optimizer.param_groups[0]["lr"] == 0.02


def test_the_groups_of_known_optimizers_hold_a_parameter_with_what_is_kept_of_it():
    step = make_step(load(lambda model: torch.optim.Adam(model.parameters())), EXAMPLE)
    by_first = {group.names[0]: group for group in step.groups}
    slots = "optimizer/hidden.weight"
    assert by_first["hidden.weight"].names == (
        "hidden.weight",
        f"{slots}/exp_avg",
        f"{slots}/exp_avg_sq",
    )
    assert by_first["hidden.weight"].is_by_rows
    sizes = [math.prod(step.variables[name].shape) for group in step.groups for name in group.names]
    assert sum(sizes) == 3 * (4 * 8 + 8 + 8 + 1)


if LATER:

    class Own(torch.optim.SGD):
        pass


def test_optimizers_that_are_not_pytorchs_are_given_to_newcomers_at_once():
    step = make_step(load(lambda model: Own(model.parameters(), 0.1)), EXAMPLE)
    assert step.groups == []


def foreign(model):
    return torch.optim.SGD(nn.Linear(3, 3).parameters(), 0.1)


def two(model):
    return [torch.optim.SGD([parameter], 0.1) for parameter in model.parameters()]


def frozen(model):
    return sgd(model.requires_grad_(False))


def halving(**settings):
    return scheduled(lambda optimizer: schedulers.ExponentialLR(optimizer, 0.5), **settings)


if LATER:

    class Lists(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["history"] = [1, 2]

    class Lookahead(torch.optim.Optimizer):
        """Steps of another optimizer, towards which slow weights move."""

        def __init__(self, base):
            self.base = base
            self.slow = [p.detach().clone() for group in base.param_groups for p in group["params"]]
            super().__init__(base.param_groups, base.defaults)

        def step(self, closure=None):
            self.base.step(closure)
            for parameter, slow in zip(self.param_groups[0]["params"], self.slow, strict=True):
                parameter.data.copy_(slow.lerp_(parameter.data, 0.5))

    class Alternating(torch.optim.SGD):
        """Every second step does nothing."""

        num_calls = 0

        def step(self, closure=None):
            self.num_calls += 1
            if self.num_calls % 2:
                super().step(closure)

    class Warmup(schedulers.LRScheduler):
        """Three steps of a rising rate, then another scheduler."""

        def __init__(self, optimizer, after):
            self.after = after
            super().__init__(optimizer)

        def get_lr(self):
            if self.last_epoch > 3:
                self.after.step()
                return self.after.get_last_lr()
            return [rate * (self.last_epoch + 1) / 4 for rate in self.base_lrs]


def warmed_up(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return [optimizer], [Warmup(optimizer, schedulers.ExponentialLR(optimizer, 0.5))]


SEVERAL = r"several optimizers.*torch.optim.Adam\(\["


@pytest.mark.parametrize(
    ("create_optimizer", "message"),
    [
        (foreign, r"2 tensors .*model.parameters"),
        (lambda model: torch.optim.SGD, r"torch.optim.Optimizer.*Received: type"),
        (two, SEVERAL),
        (lambda model: (two(model), []), SEVERAL),
        (lambda model: tuple({"optimizer": optimizer} for optimizer in two(model)), SEVERAL),
        (lambda model: {str(n): optimizer for n, optimizer in enumerate(two(model))}, SEVERAL),
        (frozen, "requires_grad"),
        (
            scheduled(lambda optimizer: schedulers.ReduceLROnPlateau(optimizer), interval="step"),
            "ReduceLROnPlateau.*interval='step'",
        ),
        (halving(frequency=0), "'frequency': 0"),
        (halving(interval="batch"), r"'interval': 'batch'"),
        (halving(warmup=3), r"'warmup': 3"),
        (halving(reduce_on_plateau=True), r"'reduce_on_plateau': True"),
        (lambda model: torch.optim.LBFGS(model.parameters()), r"LBFGS .*several times.*Adam"),
        (lambda model: Lists(model.parameters(), 0.1), r"Lists .*'history', a list"),
        (lambda model: Lookahead(torch.optim.Adam(model.parameters())), r"Adam in .*'base'"),
        (lambda model: Alternating(model.parameters(), 0.1), r"attribute 'num_calls', which"),
        (warmed_up, r"ExponentialLR in .*'after'.*SequentialLR"),
        (lambda model: {"optimiser": 1}, r"Received: a dict of optimiser"),
        (lambda model: None, r"Received: NoneType"),
    ],
)
def test_an_optimizer_that_cannot_train_the_model_is_refused(create_optimizer, message):
    with pytest.raises(UserCodeError, match=message):
        make_step(load(create_optimizer), EXAMPLE)


def test_a_learning_rate_that_nothing_takes_is_refused():
    loaded = load(sgd)
    with pytest.raises(UserCodeError, match=r"learning_rate=0\.5"):
        make_step(loaded, EXAMPLE, learning_rate=0.5)


def watched_steps(step):
    """How many gradients each step of the optimizer is given."""
    counts, original = [], step.optimizer.step

    def counted():
        held = itertools.chain.from_iterable(g["params"] for g in step.optimizer.param_groups)
        counts.append(sum(parameter.grad is not None for parameter in held))
        return original()

    step.optimizer.step = counted
    return counts


def test_what_is_kept_is_made_for_one_parameter_after_the_other():
    step = make_step(load(lambda model: MAKERS["adam"](model.parameters())), EXAMPLE)
    num_parameters = len(list(step.optimizer.param_groups[0]["params"]))
    counts = watched_steps(step)
    train(step, batches(2))
    assert counts == [1] * num_parameters + [0, num_parameters]


def test_a_hooked_optimizer_steps_once_for_all():
    step = make_step(load(lambda model: MAKERS["adam"](model.parameters())), EXAMPLE)
    seen = []
    step.optimizer.register_step_post_hook(lambda *_: seen.append(1))
    train(step, batches(2))
    assert len(seen) == 2


def test_hooks_are_called_by_the_steps_of_the_training_alone():
    seen = []

    def hooked(model):
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
        optimizer.register_step_post_hook(lambda *_: seen.append("after"))
        return optimizer

    by_us(load(hooked), batches(2))
    assert seen == ["before", "after"] * 2
