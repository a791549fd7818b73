"""Loss and metrics of a PyTorch model as sums over examples; what has no mean is refused."""

import logging

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.values import Batch
from edl_horovod.spec import ElasticDLSpec, Mode
from tests.later import LATER, later

if LATER:
    import torch
    from torch import nn

    from edl_horovod.frameworks.torch.objective import Objective
    from tests.component.frameworks.torch.rings import load, tiny

    OUTPUTS, LABELS = torch.tensor([[1.0], [4.0], [2.0]]), torch.tensor([[0.0], [0.0], [1.0]])
    BATCH = Batch(OUTPUTS, LABELS, 3)
    F = nn.functional

    def tried(
        create_loss=F.mse_loss, create_metrics=None, *, batch=BATCH, outputs=OUTPUTS, **options
    ):
        """What an objective of a loss and metrics, which was tried, gives for a batch."""

        def loss(outputs, labels):
            return create_loss(outputs, labels)

        metrics = {} if create_metrics is None else {"create_metrics": create_metrics}
        loaded = tiny(create_loss=loss, **metrics)
        objective = Objective(loaded, nn.Linear(1, 1), Mode.TRAINING, **options)
        objective.begin(batch, outputs)
        with torch.no_grad():
            return objective.of_batch(batch, outputs)


@pytest.mark.parametrize(
    "loss",
    [
        later("F.mse_loss"),
        lambda outputs, labels: F.mse_loss(outputs, labels, reduction="none"),
        lambda outputs, labels: ((outputs - labels) ** 2).flatten(),
    ],
)
def test_a_mean_and_one_value_an_example_give_the_same_sum(loss):
    assert float(tried(loss).loss_sum) == pytest.approx(18)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda o, y: F.mse_loss(o, y, reduction="sum"), r"the sum over the batch.*reduction"),
        (lambda o, y: F.mse_loss(o, y, reduction="sum") / 16, "the sum over the batch"),
        (lambda o, y: F.l1_loss(o, y) + 0.1 * (o**2).sum(), "the sum over the batch"),
        (lambda o, y: (o - y).expand(-1, 5), r"Received: shape \[3, 5\].*flatten\(1\)"),
        (lambda o, y: torch.ones(5), r"Received: shape \[5\]"),
        (lambda o, y: 3.0, "Received: float"),
        (lambda o, y: None, r"Received: NoneType"),
        (lambda o, y: nn.MSELoss(), r"Received: MSELoss"),
        (lambda o, y: o @ y, r"create_loss of .* failed: RuntimeError"),
    ],
)
def test_a_loss_without_a_mean_is_refused(loss, message):
    with pytest.raises(UserCodeError, match=message):
        tried(loss)


def test_a_loss_of_the_whole_batch_is_told(caplog):
    caplog.set_level(logging.WARNING)
    tried(lambda outputs, labels: outputs.std() + labels.mean())
    assert "(sum, weight)" in caplog.text


def test_labels_that_are_broadcast_are_told(caplog):
    caplog.set_level(logging.WARNING)
    with pytest.warns(UserWarning, match="broadcasting"):  # As each step does into the log.
        tried(lambda outputs, labels: F.mse_loss(outputs, labels[:, 0]))
    (warning,) = [message for message in caplog.messages if "broadcasting" in message]
    assert warning.startswith("create_loss of ")


def test_metrics_are_means_or_one_value_an_example():
    outcome = tried(
        create_metrics=lambda outputs, labels: {
            "mean": (outputs - labels).mean(),
            "each": (outputs - labels).flatten(),
            "parts": (outputs - labels).expand(-1, 4),
            "number": 0.5,
            "pair": ((outputs - labels).sum(), 2),
        }
    )
    means = np.divide(outcome.metric_sums[::2], outcome.metric_sums[1::2])
    assert means == pytest.approx([2.0, 2.0, 0.5, 3.0, 2.0])


def needs_both_classes(outputs, labels):
    if len(set(labels.flatten().tolist())) < 2:
        raise ValueError("one class")
    return (outputs - labels).mean()


@pytest.mark.parametrize(
    ("metric", "is_told"),
    [
        (lambda outputs, labels: (outputs - labels).square().mean().sqrt(), True),
        (lambda outputs, labels: outputs.std(), True),
        (lambda outputs, labels: (outputs > labels).float().mean(), False),
        (lambda outputs, labels: ((outputs - labels).sum(), len(labels)), False),
        (needs_both_classes, False),
    ],
)
def test_a_metric_that_is_no_mean_over_the_examples_is_told(caplog, metric, is_told):
    tried(create_metrics=lambda outputs, labels: {"m": metric(outputs, labels)})
    warnings = [text for _, level, text in caplog.record_tuples if level == logging.WARNING]
    assert len(warnings) == is_told
    assert all("metric m of " in message for message in warnings)


@pytest.mark.parametrize(
    ("create_metrics", "message"),
    [
        (lambda outputs, labels: {"m": torch.ones(5)}, r"m of create_metrics .*float32\[5\]"),
        (lambda outputs, labels: {"m": "good"}, r"m of create_metrics .*Received: str"),
        (lambda outputs, labels: [1.0], "Received: list"),
        (lambda outputs, other: {}, r"requires the parameter 'other'"),
    ],
)
def test_a_metric_without_a_mean_is_refused(create_metrics, message):
    with pytest.raises(UserCodeError, match=message):
        tried(create_metrics=create_metrics)


def test_weights_of_examples_weigh_what_has_one_value_an_example():
    batch = Batch(OUTPUTS, LABELS, 3, torch.tensor([1.0, 0.5, 0.0]))
    outcome = tried(lambda o, y: F.mse_loss(o, y, reduction="none"), batch=batch)
    assert float(outcome.loss_sum) == pytest.approx(9)
    with pytest.raises(UserCodeError, match="one number"):
        tried(batch=batch)


@pytest.mark.parametrize(
    "labels",
    [
        later("torch.tensor([0, 0, 1])"),
        later("torch.tensor([[0], [0], [1]])"),
        later("F.one_hot(torch.tensor([0, 0, 1]))"),
    ],
)
def test_classes_weigh_as_they_are_set(labels):
    loss = lambda o, y: (o.flatten() - 0) ** 2  # noqa: E731
    batch = Batch(OUTPUTS, labels, 3)
    assert float(tried(loss, batch=batch, class_weight=[1.0, 5.0]).loss_sum) == pytest.approx(37)
    assert float(tried(loss, batch=batch, class_weight=[2.0]).loss_sum) == pytest.approx(38)


def test_weights_of_classes_need_classes():
    with pytest.raises(UserCodeError, match="class_weight"):
        tried(batch=Batch(OUTPUTS, torch.ones(3, 1, 1), 3), class_weight=[1.0])
    with pytest.raises(UserCodeError, match="class_weight"):
        tried(batch=Batch(OUTPUTS, LABELS, 3, torch.ones(3)), class_weight=[1.0])


def test_a_model_without_a_loss_is_told_what_to_write():
    loaded = load()

    class Spec(ElasticDLSpec):
        create_model = create_dataset = None

    loaded = type(loaded)(**{**vars(loaded), "spec": object.__new__(type("S", (Spec,), {}))})
    with pytest.raises(UserCodeError, match=r"lacks loss.*training_step"):
        Objective(loaded, nn.Linear(1, 1), Mode.TRAINING)
