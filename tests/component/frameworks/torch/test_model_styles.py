"""Modules that are called, and that return things, as other libraries have it."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from pathlib import Path

import numpy as np
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

    from edl_horovod.frameworks.torch.model import TorchEvaluation
    from edl_horovod.frameworks.torch.plain_models import PLAIN_MODELS
    from edl_horovod.frameworks.torch.running import ModuleRunner
    from tests.component.frameworks.torch.rings import (
        assert_state,
        loop,
        losses_of,
        share,
        steps_of_ring,
        tiny,
        train_shares,
    )
    from tests.torch_ring import CPU
    from tests.zoo import torch_styles

ZOO = str(Path(__file__).parents[3] / "zoo")
BATCH, STEPS = 12, 6
SIZES = [1, 2, 3]


def load(symbol, **params):
    return load_spec(ZOO, f"torch_styles.{symbol}", params=params, plain_models=PLAIN_MODELS)


def with_parts(module, loss, metrics=dict):
    """A spec of a module and functions; its optimizer is Adam."""
    return tiny(create_model=module, create_loss=loss, create_metrics=metrics)


def squares(outputs, labels):
    return nn.functional.mse_loss(outputs, labels)


def in_ring(loaded, data, size, options=NO_OPTIONS):
    """The state after some steps, the same on all ranks, and what the steps gave."""
    steps = steps_of_ring(loaded, share(data[0], 0, BATCH // 2), size, options=options)
    return train_shares(steps, data)


def assert_same(state, sums, module, losses):
    assert losses_of(sums) == pytest.approx(losses, rel=1e-5)
    assert_state(state, module, rtol=1e-4, atol=1e-6)


def assert_trains_as_by_hand(kind, data, size, loss_of, options=NO_OPTIONS):
    """A ring trains a module of the zoo as a loop does on the same batches."""
    state, sums = in_ring(load(kind.__name__), data, size, options)
    torch.manual_seed(3)
    module = kind()
    losses = loop(module, module.configure_optimizers(), data, loss_of)
    assert_same(state, sums, module, losses)


def texts():
    random = torch.Generator().manual_seed(7)
    shape = (BATCH, torch_styles.LENGTH)
    for _ in range(STEPS):
        ids = torch.randint(torch_styles.NUM_WORDS, shape, generator=random)
        mask = torch.randint(2, shape, generator=random)
        labels = torch.randint(torch_styles.NUM_CLASSES, (BATCH,), generator=random)
        yield Batch({"input_ids": ids, "attention_mask": mask}, labels, BATCH)


def returned_loss(module, batch):
    return module(**batch.features, labels=batch.labels).loss


@pytest.mark.parametrize("options", [NO_OPTIONS, StepOptions(num_parts=2)], ids=["whole", "parts"])
@pytest.mark.parametrize("size", SIZES)
def test_a_module_that_returns_its_loss_trains_as_in_a_loop(size, options):
    kind = torch_styles.Classifier
    assert_trains_as_by_hand(kind, list(texts()), size, returned_loss, options)


@pytest.mark.parametrize("size", SIZES)
def test_labels_among_the_features_are_handed_to_forward(size):
    data = [Batch({**b.features, "labels": b.labels}, None, BATCH) for b in texts()]
    assert_trains_as_by_hand(
        torch_styles.Classifier, data, size, lambda module, batch: module(**batch.features).loss
    )


@pytest.mark.parametrize("size", SIZES)
def test_labels_that_a_loss_of_outputs_leaves_out_are_not_counted(size):
    data = list(texts())
    for batch in data:
        batch.labels[:5] = -100
    assert_trains_as_by_hand(torch_styles.Classifier, data, size, returned_loss)


def test_an_evaluation_does_not_count_labels_that_a_loss_of_outputs_leaves_out():
    data = list(texts())
    torch.manual_seed(3)
    running = ModuleRunner(load("Classifier"), share(data[0], 0, BATCH // 2), CPU)
    evaluation = TorchEvaluation(running, share(data[0], 0, BATCH // 2))
    data[1].labels[:5] = -100
    sums = sum((evaluation.sums(share(data[1], rank, 3)) for rank in range(3)), evaluation.zeros)
    loss = returned_loss(running.module, data[1])
    assert evaluation.values(sums)["loss"] == pytest.approx(loss.item(), rel=1e-6)


if LATER:

    class NoLoss(torch_styles.Classifier):
        def forward(self, input_ids=None, attention_mask=None, labels=None):
            return super().forward(input_ids, attention_mask)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (StepOptions(compiles=True), r"train\.compile"),
        (StepOptions(class_weight=[1.0, 2.0]), "class_weight"),
    ],
)
def test_settings_that_a_loss_of_outputs_does_not_bear_are_refused(options, message):
    with pytest.raises(UserCodeError, match=message):
        in_ring(load("Classifier"), list(texts()), 1, options)


@pytest.mark.parametrize(
    ("load_classifier", "message"),
    [
        (lambda: load("Classifier", reduction="sum"), "the sum"),
        (lambda: with_methods(load("Classifier"), create_model=NoLoss), "lacks loss"),
    ],
)
def test_a_loss_of_outputs_that_is_a_sum_or_missing_is_refused(load_classifier, message):
    loaded = load_classifier()
    with pytest.raises(UserCodeError, match=message):
        in_ring(loaded, list(texts()), 1)


Named = namedtuple("Named", ["logits", "more"])


if LATER:

    @dataclass
    class Fields:
        logits: torch.Tensor
        extra: object = None


class Items(OrderedDict):
    @property
    def logits(self):
        return self["logits"]


KINDS = {
    "a model output": lambda logits: torch_styles.ClassifierOutput(logits=logits),
    "a named tuple": lambda logits: Named(logits, [None]),
    "a dataclass": later("Fields"),
    "a dataclass that is frozen": lambda logits: Fields(torch_styles.Restored(logits, logits)),
    "a dict of one's own": lambda logits: Items(logits=logits),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_outputs_keep_their_classes(kind):
    seen = []

    class Net(nn.Linear):
        def forward(self, x):
            return kind(super().forward(x))

    def logits(outputs):
        return getattr(outputs.logits, "code", outputs.logits)

    def loss(outputs, labels):
        return nn.functional.cross_entropy(logits(outputs), labels)

    def metrics(outputs, labels):
        seen.append(type(outputs))
        return {"accuracy": (logits(outputs).argmax(1) == labels).float()}

    random = torch.Generator().manual_seed(7)
    data = [
        Batch(torch.randn(BATCH, 4, generator=random), torch.arange(BATCH) % 3, BATCH)
        for _ in range(STEPS)
    ]
    state, sums = in_ring(with_parts(lambda: Net(4, 3), loss, metrics), data, 2)
    torch.manual_seed(3)
    module = Net(4, 3)
    optimizer = torch.optim.Adam(module.parameters(), 0.05)
    losses = loop(
        module, optimizer, data, lambda module, batch: loss(module(batch.features), batch.labels)
    )
    assert_same(state, sums, module, losses)
    assert set(seen) == {type(kind(torch.zeros(1)))}


FORWARDS = {
    "keywords": lambda net, left, right=None: nn.Linear.forward(net, left + right),
    "one dict": lambda net, left: nn.Linear.forward(net, left["left"] + left["right"]),
    "places": lambda net, first, other: nn.Linear.forward(net, first + other),
    "any keywords": lambda net, **inputs: nn.Linear.forward(net, inputs["left"] + inputs["right"]),
}


@pytest.mark.parametrize("features", FORWARDS)
def test_features_go_to_forward_as_its_signature_has_it(features):
    kind = type("Net", (nn.Linear,), {"forward": FORWARDS[features]})
    left, right = torch.ones(BATCH, 4), torch.arange(BATCH * 4.0).reshape(BATCH, 4)
    inputs = (left, right) if features == "places" else {"right": right, "left": left}
    loaded = with_parts(lambda: kind(4, 1), squares)
    _, sums = in_ring(loaded, [Batch(inputs, torch.ones(BATCH, 1), BATCH)], 1)
    torch.manual_seed(3)
    loss = squares(nn.Linear(4, 1)(left + right), torch.ones(BATCH, 1))
    assert sums[0].loss == pytest.approx(loss.item(), rel=1e-6)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_program_of_torchscript_is_called_with_its_features():
    class Net(nn.Linear):
        def forward(self, features):
            return super().forward(features["x"])

    def traced():
        return torch.jit.trace(Net(4, 1), ({"x": torch.ones(2, 4)},))

    data = [Batch({"x": torch.ones(BATCH, 4)}, torch.ones(BATCH, 1), BATCH)]
    _, sums = in_ring(with_parts(traced, squares), data, 1)
    assert np.isfinite(sums[0].loss)


def test_a_feature_that_forward_does_not_have_is_told():
    data = [Batch({**b.features, "token_type_ids": b.labels}, b.labels, BATCH) for b in texts()]
    with pytest.raises(UserCodeError, match=r"unexpected keyword argument 'token_type_ids'"):
        in_ring(load("Classifier"), data, 1)


@pytest.mark.parametrize("size", SIZES)
def test_a_module_without_labels_trains_as_in_a_loop(size):
    random = torch.Generator().manual_seed(7)
    data = [Batch(torch.randn(BATCH, 4, generator=random), None, BATCH) for _ in range(STEPS)]
    assert_trains_as_by_hand(
        torch_styles.Autoencoder,
        data,
        size,
        lambda module, batch: module.loss(module(batch.features), batch.features),
    )


@pytest.mark.long
@pytest.mark.parametrize("processes", [0, 1])
def test_data_without_labels_train_evaluate_and_predict(run, use_trained, processes):
    data = "data=dataset:torch_styles.points"
    settings = (f"validation_{data}", "train.epochs=3", f"data_plan.processes={processes}")
    done = run("train", "model_def=torch_styles.Autoencoder", data, *settings)
    assert done.losses[12] < done.losses[1]
    evaluated, features = use_trained(done, data)
    assert sorted(evaluated.metrics) == ["furthest", "loss"]
    assert features.keys() >= {"code", "values"}


def test_the_example_of_the_page_trains_evaluates_and_predicts(
    run, use_trained, write_zoo, tmp_path
):
    page = Path(ZOO).parents[1] / "docs" / "reference" / "pytorch.md"
    code = (
        page.read_text().partition("It is `classifier.py`:\n\n```python\n")[2].partition("```")[0]
    )
    random = np.random.default_rng(5)
    labels = np.arange(96) % 3
    words = np.where(random.random((96, 6)) < 0.3, 0, 1 + 30 * labels[:, None])
    np.savez(tmp_path / "words.npz", input_ids=words, labels=labels)
    data = f"data={tmp_path}/words.npz"
    module = (write_zoo(classifier=code), "model_def=classifier.Classifier")
    done = run("train", *module, data, f"validation_{data}", "train.epochs=8")
    assert done.result.metrics["accuracy"] > 0.9
    _, features = use_trained(done, data)
    assert features["logits"]["shape"] == [3]


def bags(num_words=20, longest=4):
    """Words of each example in a row, padded with 0; some examples have none."""
    random = torch.Generator().manual_seed(7)
    for _ in range(STEPS):
        words = torch.randint(1, num_words, (BATCH, longest), generator=random)
        lengths = torch.randint(0, longest + 1, (BATCH, 1), generator=random)
        words[torch.arange(longest).expand_as(words) >= lengths] = 0
        yield Batch(words, torch.randn(BATCH, 3, generator=random), BATCH)


@pytest.mark.parametrize("size", SIZES)
def test_padded_bags_are_those_of_flat_words_and_offsets(size):
    def module():
        return nn.EmbeddingBag(20, 3, mode="mean", padding_idx=0)

    state, sums = in_ring(with_parts(module, squares), list(bags()), size)
    torch.manual_seed(3)
    flat = nn.EmbeddingBag.from_pretrained(module().weight.detach(), freeze=False, mode="mean")

    def loss_of(module, batch):
        words = batch.features
        ends = (words > 0).sum(1).cumsum(0)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), ends[:-1]])
        return squares(module(words[words > 0], offsets), batch.labels)

    optimizer = torch.optim.Adam(flat.parameters(), 0.05)
    assert_same(state, sums, flat, loop(flat, optimizer, list(bags()), loss_of))
