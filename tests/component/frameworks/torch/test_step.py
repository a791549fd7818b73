"""A PyTorch step alone and in a ring: the same sums, nothing before all of them are in."""

import copy
import math
import random

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.step_options import StepOptions
from edl_horovod.frameworks.values import Batch
from tests.jobs import NO_OPTIONS
from tests.later import LATER, later

if LATER:
    import torch
    from torch import nn

    from edl_horovod.frameworks.torch.batches import step_seed
    from tests.component.frameworks.torch import rings
    from tests.component.frameworks.torch.rings import (
        BATCH,
        EXAMPLE,
        STEPS,
        assert_same,
        assert_state,
        batches,
        load,
        loop,
        ring_of,
        run,
        steps_of_ring,
        tiny,
    )
    from tests.torch_ring import make_step, part_of, state_of, train_in_ring

OPTIONS = {
    "plain": NO_OPTIONS,
    "norm": StepOptions(clip_norm=0.3),
    "value": StepOptions(clip_value=0.05),
    "parts": StepOptions(num_parts=3),
    "scaled": StepOptions(scales_loss=True, clip_norm=0.3),
}


@pytest.mark.long(after=1)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(
    "keep", [later("rings.everything"), later("rings.every_fifth"), later("rings.only_the_second")]
)
@pytest.mark.parametrize("size", [2, 3])
def test_a_ring_gives_what_one_process_gives(size, keep, options):
    rings.assert_ring_is_one_process(size, load(), options=options, keep=keep)


def assert_begun(states, loaded):
    """What no step has changed, except for the number of steps."""
    fresh = state_of(make_step(loaded, EXAMPLE))
    assert_same(states[0], {**fresh, "random": states[0]["random"]}, rtol=0, atol=0)


def test_a_step_without_any_examples_changes_nothing():
    states, sums = ring_of(2, keep=lambda number: False)
    assert {step_sums.num_examples for step_sums in sums[0]} == {0}
    assert np.isnan(sums[0][0].loss)
    assert sums[0][0].is_finite
    assert_begun(states, load())


def test_statistics_of_batch_norm_are_the_ranks_own_weighted_by_examples():
    def keep(number):
        return number < 9  # 5 examples and 4.

    loaded = load(batch_norm=True)
    states, _ = ring_of(2, loaded, data=lambda: batches(1), keep=keep)
    norm = make_step(loaded, EXAMPLE)
    (batch,) = batches(1)
    means = []
    for rank in range(2):
        part = part_of(batch, rank, 2, keep)
        module = copy.deepcopy(norm.model.runner.module).train()
        module(part.features)
        means.append((len(part.labels), module.norm.running_mean.numpy()))
    expected = sum(count * mean for count, mean in means) / 9
    np.testing.assert_allclose(states[0]["norm.running_mean"], expected, rtol=1e-5)
    assert states[1]["norm.num_batches_tracked"] == 1
    assert_same(states[0], states[1], rtol=0, atol=0)


def no_derivative(outputs, labels):
    """A finite loss whose derivative is not, where a label is 7."""
    loss = (outputs - labels).square().mean()
    square = (outputs - outputs.detach()).square().sum()
    return loss + square.sqrt() if (labels == 7).any() else loss


def batch_with(label):
    (batch,) = batches(1)
    batch.labels[3] = label
    return batch


@pytest.mark.long(after=1)
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("label", "options"),
    [
        (math.inf, OPTIONS["plain"]),
        (7, OPTIONS["plain"]),
        (7, OPTIONS["norm"]),
        (7, OPTIONS["value"]),
    ],
)
def test_a_loss_or_a_gradient_that_is_not_finite_changes_nothing(size, label, options):
    methods = {"create_loss": no_derivative} if label == 7 else {}
    loaded = tiny({"batch_norm": True}, **methods)
    states, sums = ring_of(size, loaded, options=options, data=lambda: [batch_with(label)])
    assert np.isfinite(sums[0][0].loss) == (label == 7)
    assert not sums[0][0].is_finite
    assert_begun(states, load(batch_norm=True))


def test_what_fails_in_a_step_leaves_the_state_as_it_was():
    step = make_step(load(batch_norm=True), EXAMPLE)
    before = state_of(step)
    (batch,) = batches(1)
    misfit = Batch(batch.features, batch.labels.reshape(-1)[:5], BATCH)
    with pytest.raises(UserCodeError, match=r"TinySpec .*tiny\.py"):
        run(step, misfit)
    assert_same(state_of(step), before, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in step.model.runner.module.parameters())


if LATER:

    class Partly(nn.Module):
        """One of its layers is used where the first feature says so."""

        def __init__(self):
            super().__init__()
            self.used, self.seldom, self.never = (nn.Linear(4, 1) for _ in range(3))

        def forward(self, features):
            x = features["x"]
            y = self.used(x)
            return y + self.seldom(x) if float(x[0, 0]) > 1e3 else y


def partly():
    return tiny(
        create_model=Partly,
        create_optimizer=lambda model: torch.optim.AdamW(model.parameters(), 0.1, weight_decay=0.5),
    )


def test_a_parameter_without_a_gradient_anywhere_is_not_decayed():
    loaded = partly()

    def second_rank_uses_it():
        (batch,) = batches(1)
        batch.features["x"][1, 0] = 2e3
        yield batch

    fresh = state_of(make_step(loaded, EXAMPLE))
    states, _ = ring_of(2, loaded)
    assert np.array_equal(states[0]["never.weight"], fresh["never.weight"])
    assert np.array_equal(states[0]["seldom.weight"], fresh["seldom.weight"])
    assert not np.array_equal(states[0]["used.weight"], fresh["used.weight"])
    states, _ = ring_of(2, loaded, data=second_rank_uses_it)
    assert not np.array_equal(states[0]["seldom.weight"], fresh["seldom.weight"])
    assert np.array_equal(states[0]["never.weight"], fresh["never.weight"])
    assert_same(states[0], states[1], rtol=0, atol=0)


def test_dropout_draws_by_the_step_and_by_the_rank():
    loaded = load(dropout=0.5)
    (batch,) = batches(1)

    def loss(salt, steps_done):
        step = make_step(loaded, EXAMPLE)
        step.variables["random"].assign([3, steps_done])
        return run(step, batch, salt=salt).loss

    assert loss(0, 5) == loss(0, 5)
    assert len({loss(0, 5), loss(0, 6), loss(4, 5)}) == 3


def test_rehearsing_leaves_no_trace():
    step = make_step(load(dropout=0.5, batch_norm=True), EXAMPLE)
    before, drawn = state_of(step), torch.get_rng_state()
    step.rehearse(next(batches()))
    assert_same(state_of(step), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), drawn)


def test_float16_leaves_a_step_out_whose_gradients_it_cannot_hold():
    step = make_step(load(), EXAMPLE, options=OPTIONS["scaled"])
    step.variables["loss_scale"].assign([2.0**140, 0.0])
    before = state_of(step)
    sums = run(step, next(batches()))
    assert sums.is_finite
    after = state_of(step)
    assert after.pop("loss_scale").tolist() == [2.0**139, 0.0]
    assert np.array_equal(after["hidden.weight"], before["hidden.weight"])
    assert not after["optimizer/begun"].any()


def test_a_gradient_that_no_scale_makes_finite_ends_the_training():
    step = make_step(tiny(create_loss=no_derivative), EXAMPLE, options=OPTIONS["scaled"])
    step.variables["loss_scale"].assign([2.0, 0.0])
    first, second = (run(step, batch_with(7)) for _ in range(2))
    assert first.is_finite
    assert not second.is_finite


def test_a_loss_that_depends_on_no_parameter_is_refused():
    loaded = tiny(create_loss=lambda outputs, labels: (outputs.detach() - labels).square())
    step = make_step(loaded, EXAMPLE)
    with pytest.raises(UserCodeError, match="no_grad"):
        run(step, next(batches()))


if LATER:

    class Counting(nn.Linear):
        """It counts in a buffer, but only examples that the first ones have none of."""

        def __init__(self):
            super().__init__(4, 1)
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

        def forward(self, features):
            if float(features["x"][0, 0]) > 1e3:
                self.count += 1
            return super().forward(features["x"])

    class Unfreezing(nn.Module):
        """It unfreezes its first layer by the examples, where no callback could know of it."""

        def __init__(self):
            super().__init__()
            self.hidden, self.output = nn.Linear(4, 4), nn.Linear(4, 1)
            self.hidden.requires_grad_(False)

        def forward(self, features):
            x = features["x"]
            self.hidden.requires_grad_(float(x[0, 0]) > 1e3)
            return self.output(torch.tanh(self.hidden(x)))


@pytest.mark.parametrize(
    ("create_model", "message"),
    [
        (later("Counting"), "buffer 'count'"),
        (later("Unfreezing"), r"hidden\.weight, hidden\.bias"),
    ],
)
def test_what_changes_only_in_a_later_step_is_refused(create_model, message):
    step = make_step(tiny(create_model=create_model), EXAMPLE)
    (batch,) = batches(1)
    run(step, batch)
    batch.features["x"][0, 0] = 2e3
    before = state_of(step)
    with pytest.raises(UserCodeError, match=message):
        run(step, batch)
    after = state_of(step)
    if "count" in after:  # The pass itself has written it.
        after["count"] = before["count"]
    assert_same(after, before, rtol=0, atol=0)


def error_of(module, batch):
    return nn.functional.mse_loss(module(batch.features), batch.labels)


if LATER:

    class Shrinking(nn.Module):
        """It writes into what is trained, and notes how wide its input is."""

        def __init__(self):
            super().__init__()
            self.layer, self.output = nn.Linear(4, 4), nn.Linear(4, 1)
            self.width = 0
            self.has_run = False

        def forward(self, features):
            self.width, self.has_run = features["x"].shape[1], True
            with torch.no_grad():
                self.layer.weight.mul_(0.9)
                self.layer.bias.data = self.layer.bias.data.clamp(-0.1, 0.1)
            return self.output(torch.tanh(self.layer(features["x"])))


def assert_trains_as_by_hand(loaded, size, keep=lambda number: True, **tolerance):
    """A ring, whose last rank may lack examples, trains as a loop on all examples does."""
    steps = steps_of_ring(loaded, EXAMPLE, size)
    for step in steps:
        step.rehearse(next(batches()))
        step.model.evaluation(EXAMPLE)
    train_in_ring(steps, lambda rank: [part_of(batch, rank, size, keep) for batch in batches()])
    module = make_step(loaded, EXAMPLE).model.runner.module.train()
    optimizer = loaded.spec.create_optimizer(module)
    loop(module, optimizer, [part_of(batch, 0, 1, keep) for batch in batches()], error_of)
    for step in steps:
        for state in (state_of(step), step.model.runner.module.state_dict()):
            assert_state(state, module, **tolerance)


def few(number):
    return number % 5 < 2


@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_is_written_into_parameters_is_that_of_a_loop_by_hand(size):
    loaded = tiny(create_model=Shrinking)
    assert_trains_as_by_hand(loaded, size, few, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_rehearsing_and_making_an_evaluation_write_nothing_into_a_module(size):
    steps = steps_of_ring(tiny(create_model=Shrinking), EXAMPLE, size)
    torch.manual_seed(3)
    module = Shrinking()
    for step in steps:
        step.rehearse(next(batches()))
        step.model.evaluation(EXAMPLE)
        trained = step.model.runner.module
        assert (trained.width, trained.has_run) == (0, False)
        assert_state(trained.state_dict(), module, rtol=0, atol=0)


if LATER:

    class ActNorm(nn.Module):
        """Its first batch says how it begins."""

        def __init__(self, kind):
            super().__init__()
            self.shift, self.layer = nn.Parameter(torch.zeros(4)), nn.Linear(4, 1)
            self.kind = kind
            self.is_begun = False
            if kind == "buffer":
                self.register_buffer("begun", torch.zeros((), dtype=torch.uint8))

        def forward(self, features):
            x = features["x"]
            if not (self.begun.item() if self.kind == "buffer" else self.is_begun):
                self.shift.data.copy_(-x.mean(0))
                if self.kind == "buffer":
                    self.begun.fill_(1)
                self.is_begun = True
            return self.layer(x + self.shift)

    class KeepsState(nn.Linear):
        """It changes an attribute by what this was before."""

        def __init__(self, first, change):
            super().__init__(4, 1)
            self.value, self.change = first, change

        def forward(self, features):
            self.value = self.change(self.value, features["x"])
            return super().forward(features["x"]) * (1 + self.value)

    Metric = type("Metric", (nn.Module,), {"__module__": "torchmetrics.metric"})

    class Accuracy(Metric):
        """As far as it is looked at: it counts its calls and adds up what they say."""

        def __init__(self):
            super().__init__()
            self._update_count, self.total = 0, torch.zeros(())

        def forward(self, outputs):
            self._update_count += 1
            self.total = self.total + outputs.detach().mean()

    class Caches(nn.Module):
        """It notes what a pass computes, by random numbers, and by a buffer that it changes."""

        def __init__(self):
            super().__init__()
            self.layer, self.dropout = nn.Linear(4, 1), nn.Dropout(0.5)
            self.register_buffer("scale", torch.ones(()))
            self.last_mean, self.last_outputs, self.mask = 0.0, None, None
            self.accuracy = Accuracy()

        def forward(self, features):
            if self.mask is None:
                self.mask = torch.ones(4)
            self.scale.mul_(0.99)
            drawn = random.random() + np.random.random()
            outputs = self.layer(self.dropout(features["x"] * self.mask)) * self.scale * drawn
            self.last_outputs, self.last_mean = outputs, outputs.mean().item()
            self.accuracy(outputs)
            return outputs


def test_attributes_that_only_note_the_last_pass_are_no_state():
    step = make_step(tiny(create_model=Caches), EXAMPLE)
    (batch,) = batches(1)
    step.rehearse(batch)
    assert run(step, batch).is_finite


if LATER:

    class Spectral(nn.Module):
        """A row has only one left singular vector, so that the first passes write what it is."""

        def __init__(self):
            super().__init__()
            self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 1))

        def forward(self, features):
            return self.layer(features["x"])

    class Clamped(nn.Linear):
        """The limit has an effect only after some steps."""

        def __init__(self):
            super().__init__(4, 1)

        def forward(self, features):
            with torch.no_grad():
                self.weight.clamp_(-0.55, 0.55)
            return super().forward(features["x"])


@pytest.mark.parametrize("create_model", [later("Spectral"), later("Clamped")])
@pytest.mark.parametrize("size", [1, 2])
def test_a_write_that_changes_nothing_at_first_is_that_of_a_loop_by_hand(size, create_model):
    loaded = tiny(
        create_model=create_model,
        create_optimizer=lambda model: torch.optim.SGD(model.parameters(), 0.3),
    )
    assert_trains_as_by_hand(loaded, size, rtol=1e-4)


if LATER:

    class Rotating(nn.Module):
        """It keeps a mean of complex numbers, and counts passes and examples."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 1)
            self.register_buffer("mean", torch.full((4,), 1 + 2j, dtype=torch.complex64))
            self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
            self.register_buffer("examples", torch.zeros((), dtype=torch.int32))
            self.register_buffer("positive", torch.zeros(4, dtype=torch.int64))

        def forward(self, features):
            x, mean = features["x"], self.mean.clone()
            turned = x * torch.exp(1j * x.mean(1, keepdim=True))
            if self.training:
                self.mean.mul_(0.9).add_(turned.mean(0), alpha=0.1)
                self.passes += 1
                self.examples += len(x)
                self.positive += (x > 0).sum(0)
            return self.layer(torch.view_as_real(turned + mean).flatten(1))


@pytest.mark.parametrize("keep", [later("rings.everything"), few])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_complex_buffers_and_counters_are_those_of_a_loop_by_hand(size, keep):
    loaded = tiny(
        create_model=Rotating,
        create_optimizer=lambda model: torch.optim.SGD(model.parameters(), 0.1),
    )
    assert_trains_as_by_hand(loaded, size, keep, rtol=1e-5)


if LATER:

    class Queue(nn.Module):
        """It keeps the last examples, as MoCo does."""

        def __init__(self, is_bounded=True):
            super().__init__()
            self.layer = nn.Linear(4, 1)
            self.is_bounded = is_bounded
            self.register_buffer("queue", torch.randn(48, 4))
            self.register_buffer("pointer", torch.zeros(1, dtype=torch.int64))

        def forward(self, features):
            x = features["x"]
            if self.training:
                start = int(self.pointer)
                if not self.is_bounded:
                    start %= 48
                self.queue[start : start + len(x)] = x
                self.pointer[0] = start + len(x)
                if self.is_bounded:
                    self.pointer[0] %= 48
            return self.layer(x)

    class PointerAlone(nn.Linear):
        def __init__(self, bound=48):
            super().__init__(4, 1)
            self.bound = bound
            self.register_buffer("pointer", torch.zeros(1, dtype=torch.int64))

        def forward(self, features):
            if self.training:
                self.pointer[0] = (self.pointer + len(features["x"])) % self.bound
            return super().forward(features["x"])

    class Sums(nn.Linear):
        """It keeps a moving sum over a batch, as the codebooks of a VQ-VAE do."""

        def __init__(self):
            super().__init__(4, 1)
            self.register_buffer("total", torch.zeros(4))

        def forward(self, features):
            if self.training:
                self.total.mul_(0.9).add_(features["x"].sum(0), alpha=0.1)
            return super().forward(features["x"])

    class Empty(nn.Module):
        def forward(self, features):
            return features["x"][:, :1]


def keeping(first, change):
    return lambda: KeepsState(first, change)


@pytest.mark.parametrize(
    ("create_model", "message"),
    [
        # What begins by the first batch.
        (lambda: ActNorm("buffer"), "'shift'.*adapt"),
        (lambda: ActNorm("attribute"), "'shift'.*adapt"),
        # State in an attribute: a count, a decay, a moving mean, a toggle, and tensors.
        (keeping(0, lambda value, x: value + 1), "attribute 'value'"),
        (keeping(1.0, lambda value, x: max(0.5, value * 0.999)), "attribute 'value'"),
        (keeping(0.0, lambda value, x: 0.9 * value + 0.1 * x.mean().item()), "attribute 'value'"),
        (keeping(True, lambda value, x: not value), "attribute 'value'"),
        (
            keeping(None, lambda value, x: x.mean() + (0.0 if value is None else value)),
            "attribute 'value'",
        ),
        (
            lambda: KeepsState(torch.zeros(()), lambda value, x: value.lerp(x.mean(), 0.1)),
            "attribute 'value'",
        ),
        # Buffers that no ring can keep.
        (later("Queue"), "buffer 'queue'"),
        (lambda: Queue(is_bounded=False), "buffer 'queue'"),
        (later("PointerAlone"), "buffer 'pointer'"),
        (lambda: PointerAlone(bound=3), "buffer 'pointer'"),
        (later("Sums"), "buffer 'total'"),
    ],
)
def test_state_that_no_ring_can_keep_is_refused(create_model, message):
    with pytest.raises(UserCodeError, match=message):
        make_step(tiny(create_model=create_model), EXAMPLE)


@pytest.mark.parametrize(
    ("create_model", "message"),
    [
        (later("Empty"), "no parameters.*Empty"),
        (lambda: nn.Linear, r"Received: type.*Linear\(...\)"),
        (lambda: None, "Received: NoneType"),
        (lambda: nn.Linear(4, 1), r"{'x': 'float32\[2, 4\]'}"),
    ],
)
def test_what_is_no_model_to_train_is_refused(create_model, message):
    # Its optimizer is made of what there is.
    tensor = nn.Parameter(torch.ones(1))
    loaded = tiny(
        create_model=create_model, create_optimizer=lambda: torch.optim.SGD([tensor], 0.1)
    )
    with pytest.raises(UserCodeError, match=message):
        make_step(loaded, EXAMPLE)


def test_a_rank_with_one_example_normalises_it():
    loaded = load(batch_norm=True)
    states, sums = ring_of(2, loaded, keep=lambda number: number < 3)
    assert {step_sums.num_examples for step_sums in sums[0]} == {3}
    assert_same(states[0], states[1], rtol=0, atol=0)
    # As the formula has it: without variance, an example is its own mean.
    (batch,) = batches(1)
    module = make_step(loaded, EXAMPLE).model.runner.module
    single = part_of(batch, 1, 2, lambda number: number < 3)
    hidden = module.norm.bias.expand(1, -1)
    expected = (module.output(torch.tanh(hidden)) - single.labels).square().mean()
    step = make_step(loaded, EXAMPLE)
    alone = run(step, single)
    assert alone.num_examples == 1
    assert alone.loss == pytest.approx(expected.item(), rel=1e-5)


if LATER:

    class Pictures(nn.Module):
        """A single example has four values of each feature."""

        def __init__(self):
            super().__init__()
            self.convolution, self.norm = nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3)
            self.dropout, self.output = nn.Dropout(0.5), nn.Linear(3, 1)
            self.sizes = []

        def forward(self, features):
            self.sizes.append(len(features["x"]))
            pictures = self.norm(self.convolution(features["x"].view(-1, 1, 2, 2)))
            return self.output(self.dropout(pictures.tanh().amax((2, 3))))


def test_one_example_is_a_step_of_a_plain_loop():
    loaded = tiny({"kind": "SGD"}, create_model=Pictures)
    step = make_step(loaded, EXAMPLE)
    module = step.model.runner.module
    plain = copy.deepcopy(module).train()
    single = part_of(next(batches()), 0, BATCH, lambda number: True)
    assert len(single.labels) == 1
    module.sizes.clear()
    sums = run(step, single)
    assert module.sizes == [1]
    assert not any("forward" in vars(layer) for layer in module.modules())
    assert math.isfinite(sums.loss)

    torch.manual_seed(step_seed(3, 0, 0))
    loss = nn.functional.mse_loss(plain(single.features), single.labels)
    assert sums.loss == loss.item()
    loss.backward()
    torch.optim.SGD(plain.parameters(), 0.05).step()
    for name, value in plain.state_dict().items():
        assert torch.equal(module.state_dict()[name], value), name


if LATER:

    class Hooked(nn.Module):
        """All kinds of hooks change gradients that are small, by what they are; and note them."""

        def __init__(self):
            super().__init__()
            self.hidden, self.output = nn.Linear(4, 8), nn.Linear(8, 1)
            self.seen = []
            self.hidden.weight.register_hook(self.changed)
            self.output.weight.register_post_accumulate_grad_hook(self.change_grad)
            self.output.register_full_backward_hook(self.note_outputs)

        def changed(self, gradient):
            self.seen.append(gradient.detach().clone())
            return gradient.clamp(-0.01, 0.01)

        def change_grad(self, parameter):
            parameter.grad.copy_(self.changed(parameter.grad))

        def note_outputs(self, _module, _inputs, gradients):
            self.seen.append(gradients[0].detach().clone())

        def forward(self, features):
            hidden = torch.tanh(self.hidden(features["x"]))
            if hidden.requires_grad:
                hidden.register_hook(lambda gradient: self.changed(gradient * 3))
            return self.output(hidden)


def gradients_by_hand(module, batch):
    """Those of a plain loop."""
    module.zero_grad()
    error_of(module, batch).backward()
    return [parameter.grad.clone() for parameter in module.parameters()]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_hooks_see_and_change_the_gradients_of_a_plain_loop(size):
    """On a ring those of the mean over a rank's own examples, of which each has another number."""
    loaded = tiny({"kind": "SGD"}, create_model=Hooked)
    steps = steps_of_ring(loaded, EXAMPLE, size)
    module = Hooked()
    module.load_state_dict(steps[0].model.runner.module.state_dict())
    optimizer = torch.optim.SGD(module.parameters(), 0.05)
    for step in steps:
        step.model.runner.module.seen.clear()

    def keep(number):
        return number < BATCH - 2

    train_in_ring(steps, lambda rank: [part_of(value, rank, size, keep) for value in batches()])
    seen_by_hand = [[] for _ in steps]
    for batch in batches():
        parts = [part_of(batch, rank, size, keep) for rank in range(size)]
        total = [torch.zeros_like(value) for value in module.parameters()]
        for part, seen in zip(parts, seen_by_hand, strict=True):
            for mean, gradient in zip(total, gradients_by_hand(module, part), strict=True):
                mean += gradient * part.num_examples / (BATCH - 2)
            seen += module.seen
            module.seen = []
        for parameter, gradient in zip(module.parameters(), total, strict=True):
            parameter.grad = gradient
        optimizer.step()
    expected = {name: value.detach().numpy() for name, value in module.named_parameters()}
    for step, by_hand in zip(steps, seen_by_hand, strict=True):
        state = state_of(step)
        assert_same({name: state[name] for name in expected}, expected, rtol=1e-5, atol=1e-7)
        seen = step.model.runner.module.seen
        assert len(seen) == len(by_hand) == 4 * STEPS
        for ours, gradient in zip(seen, by_hand, strict=True):
            torch.testing.assert_close(ours, gradient, rtol=1e-4, atol=1e-7)
