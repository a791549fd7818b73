"""Federated training on the digits of scikit-learn, beside training on all of them at one place.

The figures are in docs/how-to/federated.md; `pytest --log-cli-level=INFO` shows them.
"""

import functools
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from edl_horovod.config.schema import DataConfig, FederatedConfig
from edl_horovod.models.zoo import load_spec
from edl_horovod.records.job_data import open_source, plan_of
from edl_horovod.spec import Mode
from edl_horovod.tasks.federated import Party, PartyRounds, local_config
from edl_horovod.tasks.local_rounds import LocalRounds, RoundBatches
from tests.jobs import training
from tests.later import LATER
from tests.thread_ring import Ring

if LATER:
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    from tests.torch_alone import FRAMEWORK

SPEC = """
import torch
from torch import nn

from edl_horovod import ElasticDLSpec


class Digits(ElasticDLSpec):
    def create_model(self):
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def create_dataset(self, rows, mode):
        return rows["x"], rows["y"]

    def create_loss(self, outputs, labels):
        return nn.functional.cross_entropy(outputs, labels)

    def create_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
"""
BATCH, NUM_PARTIES, SEEDS = 32, 10, range(3)
log = logging.getLogger(__name__)


@functools.cache
def digits():
    """The pictures and their classes, shuffled: those to train on, and every fifth to test on."""
    pictures, classes = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(classes))
    x, y = (pictures[order] / 16).astype(np.float32), classes[order].astype(np.int64)
    is_test = np.arange(len(y)) % 5 == 0
    return (x[~is_test], y[~is_test]), (x[is_test], y[is_test])


def of_any_label(number):
    return np.arange(len(digits()[0][1])) % NUM_PARTIES == number


def of_one_label(number):
    return digits()[0][1] == number


class Trained:
    """A party, or with `of=None` the training on all records, at the beginning of its rounds."""

    def __init__(self, folder, of, number, seed, collectives, rounds, **settings):
        x, y = digits()[0] if of is None else (part[of(number)] for part in digits()[0])
        np.savez(folder / f"{number}.npz", x=x, y=y)
        (folder / "digits_model.py").write_text(SPEC)
        federated = FederatedConfig(party=f"p{number}", rounds=rounds, **settings)
        job = training(BATCH, federated=federated, data_plan=DataConfig(seed=seed))
        FRAMEWORK.begin(slot=0, seed=seed)
        loaded = load_spec(
            str(folder), "digits_model", params={}, plain_models=FRAMEWORK.plain_models
        )
        self._stack = ExitStack()
        self._source = self._stack.enter_context(
            open_source(str(folder / f"{number}.npz"), job.data_plan)
        )
        plan = plan_of(
            self._source, job.data_plan, num_lanes=1, is_training=True, global_batch=BATCH
        )

        def batches():
            return FRAMEWORK.batches(self._source, plan, loaded, Mode.TRAINING, prefetch=1)

        self._first = batches()
        self._stack.callback(self._first.close)
        inner = FRAMEWORK.step(loaded, self._first.try_first(), job)
        self._step = LocalRounds(
            inner, collectives, local_config(job.federated), "none", Party(job)
        )
        of_rounds = PartyRounds(plan, job.federated)
        self._batches = RoundBatches(batches, of_rounds, warmup=self._first)
        self._stack.callback(self._batches.close)
        self._batches.restart(range(1), 0, rounds)
        self._is_alone = collectives is None

    def run(self):
        batch = self._batches.next_batch()
        self._step.step(batch, wants_change=False, is_alone=self._is_alone, salt=0)

    @property
    def accuracy(self):
        weights = {
            name: torch.from_numpy(np.array(value.numpy()))
            for name, value in self._step.model_variables.items()
        }
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        model.load_state_dict(weights)
        with torch.no_grad():
            x, y = digits()[1]
            outputs = model(torch.from_numpy(x)).numpy()
        return float((outputs.argmax(1) == y).mean())

    def close(self):
        self._stack.close()


def accuracy(folder, of, rounds, seed, **settings):
    """The accuracy on the test pictures after all rounds."""
    size = 1 if of is None else NUM_PARTIES
    ring = Ring(size)
    parties = [
        Trained(folder, of, at, seed, None if of is None else ring.of(at), rounds, **settings)
        for at in range(size)
    ]
    try:
        with ThreadPoolExecutor(size) as pool:
            for _ in range(rounds):
                list(pool.map(Trained.run, parties))
        return parties[0].accuracy
    finally:
        for party in parties:
            party.close()


@pytest.fixture
def mean_accuracy(tmp_path):
    """The mean over the seeds."""

    def measure(of, rounds, **settings):
        accuracies = [accuracy(tmp_path, of, rounds, seed, **settings) for seed in SEEDS]
        name = of.__name__ if of is not None else "central"
        log.info("%s, %d rounds, %s: %s", name, rounds, settings, np.round(accuracies, 4))
        return np.mean(accuracies)

    return measure


@pytest.mark.long
@pytest.mark.timeout(900)
def test_with_pictures_of_all_classes_each_the_parties_are_as_good_as_central_training(
    mean_accuracy,
):
    central = mean_accuracy(None, 30, local_epochs=1)
    assert central > 0.96
    assert mean_accuracy(of_any_label, 40, local_epochs=2) > central - 0.01


@pytest.mark.further
@pytest.mark.timeout(900)
def test_with_one_class_each_fedprox_and_fewer_local_steps_are_better_than_fedavg(mean_accuracy):
    fedavg = mean_accuracy(of_one_label, 30, local_epochs=10)
    assert fedavg < 0.85
    assert mean_accuracy(of_one_label, 30, local_epochs=10, proximal_mu=0.01) > fedavg + 0.05
    assert mean_accuracy(of_one_label, 30, local_epochs=2) > fedavg + 0.05
