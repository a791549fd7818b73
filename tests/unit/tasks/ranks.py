"""Ranks of local rounds in threads, on the framework of the tests."""

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from edl_horovod.config.schema import FederatedConfig, PrivacyConfig
from tests import numpy_framework
from tests.jobs import training
from tests.memory_source import KIND


class CountingStep(numpy_framework.Step):
    """Counts the local steps with examples, each of which takes `seconds`."""

    num_steps, seconds = 0, 0.0

    def step(self, batch, **arguments):
        self.num_steps += batch is not None
        time.sleep(self.seconds)
        return super().step(batch, **arguments)


def numbers(count):
    """A source of so many records."""
    return KIND.open(SimpleNamespace(data=f"numbers:{count}"))


def on_all(ranks, act):
    """What an act on each rank, all at the same time, returns."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(act, ranks))


def run_counted(ranks):
    """Run a round of all ranks; the number of its examples, of which all have the same."""
    (num_examples,) = {sums.num_examples for sums in on_all(ranks, lambda rank: rank.run())}
    return num_examples


def run_and_see_who_trains(ranks):
    """Run a round; the sorted names of the parties that did local steps, and its examples."""
    before = [rank.inner.num_steps for rank in ranks]
    num_examples = run_counted(ranks)
    pairs = zip(ranks, before, strict=True)
    names = [rank.party.name for rank, num_steps in pairs if rank.inner.num_steps > num_steps]
    return sorted(names), num_examples


def assert_all_fail(ranks, error, match=None):
    """Run a round of all ranks, each of which raises this error."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        for failed in [pool.submit(rank.run) for rank in ranks]:
            with pytest.raises(error, match=match):
                failed.result()


def federated_training(sections=(), *, train=None, privacy=(), **federated):
    """A federated training with these settings, and with further sections of its job."""
    config = FederatedConfig(privacy=PrivacyConfig(**dict(privacy)), **federated)
    return training(12, train, federated=config, **dict(sections))
