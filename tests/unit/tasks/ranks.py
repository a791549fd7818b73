"""Ranks of local rounds in threads, on the framework of the tests."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import numpy_framework


class CountingStep(numpy_framework.Step):
    """Counts the local steps with examples, each of which takes `seconds`."""

    num_steps, seconds = 0, 0.0

    def step(self, batch, **arguments):
        self.num_steps += batch is not None
        time.sleep(self.seconds)
        return super().step(batch, **arguments)


def on_all(ranks, act):
    """What an act on each rank, all at the same time, returns."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(act, ranks))


def assert_all_fail(ranks, error, match=None):
    """Run a round of all ranks, each of which raises this error."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        for failed in [pool.submit(rank.run) for rank in ranks]:
            with pytest.raises(error, match=match):
                failed.result()
