"""Losses that divide by something else than the number of examples, beside the loop by hand."""

import functools

import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.step_options import StepOptions
from edl_horovod.frameworks.values import Batch
from tests.later import LATER, later
from tests.specs import with_methods

if LATER:
    import torch
    from torch import nn

    from edl_horovod.frameworks.torch.model import TorchEvaluation
    from edl_horovod.frameworks.torch.plain_models import loss_part
    from tests.component.frameworks.torch.rings import (
        assert_state,
        chosen,
        loop,
        losses_of,
        share,
        steps_of_ring,
        tiny,
    )
    from tests.torch_ring import make_step, state_of, train_in_ring

    F = nn.functional
CLASSES, TOKENS, BATCH, STEPS = 5, 6, 11, 4
if LATER:
    CLASS_WEIGHT = torch.tensor([0.2, 3.0, 1.0, 0.5, 2.0])

    class Tagger(nn.Module):
        """Gives a class for each token, and one number for each example."""

        normalises = False

        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(TOKENS) if self.normalises else nn.Identity()
            self.tags = nn.Linear(3, CLASSES)
            self.number = nn.Linear(3 * TOKENS, 1)

        def forward(self, x):
            x = self.norm(x)
            return {"tags": self.tags(x).transpose(1, 2), "number": self.number(x.flatten(1))}

    class NormalisingTagger(Tagger):
        normalises = True


def batches():
    random = torch.Generator().manual_seed(5)
    for step in range(STEPS):
        x = torch.randn(BATCH, TOKENS, 3, generator=random)
        tags = torch.randint(0, CLASSES, (BATCH, TOKENS), generator=random)
        lengths = torch.randint(1, TOKENS + 1, (BATCH,), generator=random)
        if step == 1:
            lengths[::2] = 0  # All of a rank's, where there are two.
        mask = torch.arange(TOKENS) < lengths[:, None]
        labels = {
            "tags": torch.where(mask, tags, -100),
            "other_tags": torch.where(mask.flip(0), tags.flip(1), -100),
            "mask": mask.float(),
            "target": x.sum((1, 2), keepdim=False)[:, None],
            "weight": torch.rand(BATCH, generator=random) * (lengths > 1),
        }
        yield Batch(x, labels, BATCH)


def by_token(outputs, labels):
    return F.cross_entropy(outputs["tags"], labels["tags"].clamp(min=0), reduction="none")


def by_example(outputs, labels):
    return (outputs["number"] - labels["target"]).square().flatten()


def masked_mean(outputs, labels):
    return (by_token(outputs, labels) * labels["mask"]).sum() / labels["mask"].sum()


def clamped_mean(outputs, labels):
    total = (by_token(outputs, labels) * labels["mask"]).sum()
    return total / labels["mask"].sum().clamp(min=1)


def weighted_mean(outputs, labels):
    weight = labels["weight"]
    return torch.dot(by_example(outputs, labels), weight) / (weight.sum() + 1e-9)


def number_of(outputs, labels, loss):
    """A loss of the numbers of examples that have some weight."""
    counts = labels["weight"] > 0.3
    return loss(outputs["number"][counts], labels["target"][counts])


def cross_entropy(**options):
    return lambda outputs, labels: F.cross_entropy(outputs["tags"], labels["tags"], **options)


def two_with_other_labels(outputs, labels):
    other = F.cross_entropy(outputs["tags"], labels["other_tags"])
    return cross_entropy()(outputs, labels) + 0.3 * other


def masked_and_plain(outputs, labels):
    number = F.mse_loss(outputs["number"], labels["target"])
    return cross_entropy()(outputs, labels) + 0.1 * number


def smooth_and_weighted(outputs, labels):
    smooth = cross_entropy(label_smoothing=0.1)(outputs, labels)
    return smooth + clamped_mean(outputs, labels) + weighted_mean(outputs, labels)


def written_into(outputs, labels):
    outputs["tags"][:, 0] = -1e9
    outputs["number"] *= 2.0
    return by_example(outputs, labels).mean() + tag_errors(outputs, labels)[:, 1:].mean()


def tag_errors(outputs, labels):
    """Squares of differences, of shape (examples, classes)."""
    tags = F.one_hot(labels["tags"][:, 0].clamp(min=0), CLASSES)
    return (outputs["tags"][:, :, 0] - tags).square()


def mean_of_masked_tasks(outputs, labels):
    tasks = [F.cross_entropy(outputs["tags"][..., t], labels["tags"][:, t]) for t in range(3)]
    return torch.stack([*tasks, masked_mean(outputs, labels)]).mean()


def two_with_chosen_examples(outputs, labels):
    return tag_errors(outputs, labels).mean() + number_of(outputs, labels, F.l1_loss)


def sum_of_many(outputs, labels):
    loss = 0.0
    for number in range(40):
        example = number % 3
        loss = loss + F.cross_entropy(outputs["tags"][..., example], labels["tags"][:, example])
    return (loss + masked_mean(outputs, labels)) / 40


def pair(outputs, labels):
    return (by_token(outputs, labels) * labels["mask"]).sum(), labels["mask"].sum()


def pair_of_number(outputs, labels):
    weight = labels["weight"]
    return torch.dot(by_example(outputs, labels), weight), float(weight.sum())


def pairs(outputs, labels):
    return [pair(outputs, labels), pair_of_number(outputs, labels)]


if LATER:
    named = loss_part("crossentropyloss", label="loss")


LOSSES = {
    "ignored": cross_entropy(),
    "ignored 2": lambda o, y: F.cross_entropy(o["tags"], y["tags"].clamp(0), ignore_index=2),
    "class weights": later("cross_entropy(weight=CLASS_WEIGHT)"),
    "smooth": cross_entropy(label_smoothing=0.1),
    "smooth weighted": later("cross_entropy(label_smoothing=0.1, weight=CLASS_WEIGHT)"),
    "by name": lambda outputs, labels: named(outputs["tags"], labels["tags"]),
    "module": lambda o, y: nn.CrossEntropyLoss(weight=CLASS_WEIGHT)(o["tags"], y["tags"]),
    "a mean of examples": lambda o, y: by_example(o, y).mean(),
    "one value an example": by_example,
    "indexed mean": lambda o, y: by_token(o, y)[y["mask"] > 0].mean(),
    "indexed mse": lambda o, y: number_of(o, y, F.mse_loss),
    "with a penalty": lambda o, y: 0.5 * cross_entropy()(o, y) + 0.1 / 3,
    "two with the same labels": lambda o, y: (
        cross_entropy()(o, y) / 2 - F.nll_loss(o["tags"].softmax(1), y["tags"])
    ),
    "mean of tasks": lambda o, y: torch.stack(list(tag_errors(o, y).mean(0))).mean(),
    "mean of columns": lambda o, y: tag_errors(o, y).mean(0).mean(),
    "weighted columns": lambda o, y: (
        (CLASS_WEIGHT * tag_errors(o, y).mean(0)).sum() / CLASS_WEIGHT.sum()
    ),
    "list of one": lambda o, y: [pair(o, y)],
    **{
        loss.__name__: loss
        for loss in (
            *(masked_mean, clamped_mean, weighted_mean, two_with_other_labels, masked_and_plain),
            *(smooth_and_weighted, mean_of_masked_tasks, two_with_chosen_examples),
            *(sum_of_many, written_into, pair, pair_of_number, pairs),
        )
    },
}


SEVERAL_DIVISORS = (
    *(two_with_other_labels, masked_and_plain, smooth_and_weighted, pairs),
    *(mean_of_masked_tasks, two_with_chosen_examples, sum_of_many),
)


def scalar(value):
    if isinstance(value, tuple):
        return value[0] / value[1]
    if isinstance(value, list):
        return sum(total / weight for total, weight in value)
    return value.mean()


def by_hand(create_loss, create_model=None):
    """Losses and weights of a plain loop over the whole batches."""
    torch.manual_seed(3)
    model = (create_model or Tagger)()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)

    def loss_of(model, batch):
        return scalar(create_loss(model(batch.features), batch.labels))

    losses = loop(model, optimizer, batches(), loss_of)
    return losses, {name: value.detach() for name, value in model.named_parameters()}


def loaded_with(create_loss, create_model=None):
    return tiny(
        create_model=create_model or Tagger,
        create_loss=lambda outputs, labels: create_loss(outputs, labels),
        create_optimizer=lambda model: torch.optim.Adam(model.parameters(), 0.05),
        create_metrics=lambda mode: {},
        create_callbacks=list,
    )


def part(batch, rank, size):
    """The examples of a rank: very few of the last one."""
    if size == 1:
        return batch
    bounds = {2: [0, 9, 11], 3: [0, 6, 10, 11]}[size]
    places = torch.arange(BATCH).roll(1)
    return chosen(batch, torch.cat([places[::2], places[1::2]])[bounds[rank] : bounds[rank + 1]])


def assert_trains_as_by_hand(
    create_loss, create_model=None, *, size, cut, example=None, atol=2e-6, **settings
):
    """Train on the parts that `cut` makes of the batches for each rank, and compare all ranks."""
    losses, weights = by_hand(create_loss, create_model)
    example = example or next(batches())
    steps = steps_of_ring(loaded_with(create_loss, create_model), example, size, **settings)
    sums = train_in_ring(steps, lambda rank: [cut(batch, rank) for batch in batches()])
    for step, sums_of_rank in zip(steps, sums, strict=True):
        assert losses_of(sums_of_rank) == pytest.approx(losses, rel=max(2e-6, atol))
        assert_state(state_of(step), weights, rtol=0, atol=atol)


@pytest.mark.long(after=1)
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("create_loss", LOSSES.values(), ids=LOSSES)
def test_any_number_of_ranks_trains_as_the_loop_by_hand(create_loss, size, caplog):
    # One rank alone computes what the loop does, bit for bit.
    tolerance = 0 if size == 1 else 2e-6
    cut = functools.partial(part, size=size)
    assert_trains_as_by_hand(create_loss, size=size, cut=cut, atol=tolerance)
    assert "(sum, weight)" not in caplog.text


@pytest.mark.parametrize(
    "create_loss", [cross_entropy(), masked_and_plain, pairs, LOSSES["list of one"]]
)
def test_a_rank_without_examples_takes_part(create_loss):
    def cut(batch, rank):
        return part(batch, rank, 2) if rank < 2 else None

    assert_trains_as_by_hand(create_loss, size=3, cut=cut)


def test_examples_that_do_not_count_have_a_part_in_synchronised_norms():
    """Those of the first rank do not count at all in one of the steps."""
    cut = functools.partial(share, size=2)
    settings = {"atol": 1e-5, "options": StepOptions(sums_batch_norm=True)}
    assert_trains_as_by_hand(cross_entropy(), NormalisingTagger, size=2, cut=cut, **settings)


@pytest.mark.parametrize(
    "create_loss", [later("cross_entropy(weight=CLASS_WEIGHT)"), pair, masked_mean]
)
def test_parts_of_a_batch_train_as_the_whole(create_loss):
    options = StepOptions(num_parts=3)
    cut = functools.partial(part, size=1)
    assert_trains_as_by_hand(create_loss, size=1, cut=cut, options=options)


if LATER:

    class Distribution(Tagger):
        """Its outputs are no tensors."""

        def forward(self, x):
            return torch.distributions.Normal(super().forward(x)["number"], 2.0)

    class TimeFirst(Tagger):
        """Its outputs have the shape (tokens, examples, classes)."""

        def forward(self, x):
            return super().forward(x)["tags"].permute(2, 0, 1).log_softmax(2)


def likelihood(outputs, labels):
    return -outputs.log_prob(labels["target"]).mean()


def masked_likelihood(outputs, labels):
    mask = labels["mask"][:, :1]
    return -(outputs.log_prob(labels["target"]) * mask).sum() / mask.sum()


def alignment(outputs, labels):
    count = len(labels["tags"])
    sizes = torch.full((count,), TOKENS), torch.full((count,), 2)
    return F.ctc_loss(outputs, labels["tags"][:, :2].clamp(min=1), *sizes, zero_infinity=True)


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("create_loss", "create_model"),
    [
        (likelihood, later("Distribution")),
        (masked_likelihood, later("Distribution")),
        (alignment, later("TimeFirst")),
    ],
)
@pytest.mark.parametrize("num_examples", [BATCH, TOKENS, 2])
def test_outputs_that_cannot_be_cut_train_and_evaluate(
    create_loss, create_model, num_examples, caplog
):
    spec, batch = loaded_with(create_loss, create_model), next(batches())
    example = chosen(batch, torch.arange(BATCH)[-num_examples:])
    evaluation = TorchEvaluation(make_step(spec, example).model.runner, example)
    parts = [evaluation.sums(part(batch, rank, 3)) for rank in range(3)]
    loss = evaluation.values(sum(parts, evaluation.zeros))["loss"]
    assert loss == pytest.approx(by_hand(create_loss, create_model)[0][0], rel=1e-5)
    cut = functools.partial(part, size=2)
    assert_trains_as_by_hand(create_loss, create_model, size=2, cut=cut, example=example)
    assert "(sum, weight)" not in caplog.text


def test_metrics_see_what_the_loss_writes_into_the_outputs():
    def highest(outputs):
        return {"highest": outputs["tags"][:, 0].max()}

    spec = with_methods(loaded_with(written_into), create_metrics=highest)
    batch = next(batches())
    step = make_step(spec, batch)
    evaluation = TorchEvaluation(step.model.runner, batch)
    assert evaluation.values(evaluation.sums(batch))["highest"] == pytest.approx(-1e9)


def test_chosen_examples_are_counted_if_all_sample_examples_are_chosen():
    example = next(batches())
    rows = (example.labels["weight"] > 0.3).nonzero().flatten()[:4]
    example, cut = chosen(example, rows), functools.partial(part, size=2)
    assert_trains_as_by_hand(two_with_chosen_examples, size=2, cut=cut, example=example)


def test_a_loss_that_is_nested_too_deeply_is_refused():
    def create_loss(outputs, labels):
        loss = masked_mean(outputs, labels)
        for _ in range(150):
            loss = 0.99 * loss
        return loss

    with pytest.raises(UserCodeError, match=r"nested.*stack"):
        make_step(loaded_with(create_loss), next(batches()))


def test_parts_of_a_batch_do_not_know_several_divisors():
    with pytest.raises(UserCodeError, match=r"accumulate_steps=1"):
        make_step(loaded_with(masked_and_plain), next(batches()), options=StepOptions(num_parts=3))


@pytest.mark.long(after=1)
@pytest.mark.parametrize("create_loss", LOSSES.values(), ids=LOSSES)
def test_an_evaluation_has_the_loss_of_all_examples(create_loss):
    spec = loaded_with(create_loss)
    batch = next(batches())
    step = make_step(spec, batch)
    evaluation = TorchEvaluation(step.model.runner, batch)
    whole = evaluation.values(evaluation.sums(batch))["loss"]
    with torch.no_grad():
        outputs = step.model.runner.module(batch.features)
        assert whole == pytest.approx(float(scalar(create_loss(outputs, batch.labels))), rel=1e-5)
    if create_loss not in SEVERAL_DIVISORS:
        parts = [evaluation.sums(part(batch, rank, 3)) for rank in range(3)]
        assert evaluation.values(sum(parts, evaluation.zeros))["loss"] == pytest.approx(
            whole, rel=1e-5
        )


def test_a_batch_of_which_nothing_counts_is_no_number():
    step = make_step(loaded_with(cross_entropy()), next(batches()))
    batch = next(batches())
    none = Batch(batch.features, {**batch.labels, "tags": batch.labels["tags"] * 0 - 100}, BATCH)
    assert not step.step(none, wants_change=False, is_alone=True, salt=0).is_finite


def contrastive(outputs, labels):
    numbers = outputs["number"].flatten()
    return (numbers[:, None] - numbers[None]).square().mean()


def ratio_of_means(outputs, labels):
    return (by_example(outputs, labels) * labels["weight"]).mean() / labels["weight"].mean()


def root(outputs, labels):
    return by_example(outputs, labels).mean().sqrt()


@pytest.mark.parametrize("create_loss", [contrastive, ratio_of_means, root])
def test_what_depends_on_the_batch_in_another_way_is_told(create_loss, caplog):
    make_step(loaded_with(create_loss), next(batches()))
    assert "(sum, weight)" in caplog.text


@pytest.mark.parametrize(
    ("create_loss", "message"),
    [
        (lambda o, y: (by_example(o, y).sum(), -1), r"weight.*Received: -1"),
        (lambda o, y: (by_example(o, y).sum(), o["number"].sum()), r"depends on the model"),
        (lambda o, y: (by_example(o, y), y["weight"]), r"Received: tuple"),
        (lambda o, y: [], r"Received: list"),
    ],
)
def test_a_pair_is_a_sum_and_a_number(create_loss, message):
    with pytest.raises(UserCodeError, match=message):
        make_step(loaded_with(create_loss), next(batches()))


def test_a_loss_with_other_terms_later_is_refused():
    calls = []

    def create_loss(outputs, labels):
        calls.append(None)
        loss = cross_entropy()(outputs, labels)
        return loss if len(calls) < 20 else loss + masked_mean(outputs, labels)

    step = make_step(loaded_with(create_loss), next(batches()))
    calls.extend([None] * 20)
    with pytest.raises(UserCodeError, match="2 means"):
        step.step(next(batches()), wants_change=False, is_alone=True, salt=0)
