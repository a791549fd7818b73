"""Processes that make a rank's examples: the same ones in the same order, and they end with it."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.spec import Mode
from tests.later import LATER
from tests.waiting import is_running, wait_until

if LATER:
    import torch

    from edl_horovod.frameworks.torch.batches import TorchBatches
    from tests.component.frameworks.torch.rings import tiny
    from tests.component.frameworks.torch.test_batches import (
        COLUMNS,
        LANES,
        Numbers,
        all_of,
        plan_of,
        tensors,
    )

REPOSITORY = Path(__file__).parents[4]


@pytest.fixture
def make():
    opened = []

    def make_it(create_dataset, processes=2, layout=None):
        data = (Numbers(layout), plan_of(), tiny(create_dataset=create_dataset))
        batches = TorchBatches(*data, Mode.TRAINING, prefetch=4, processes=processes)
        opened.append(batches)
        return batches

    yield make_it
    for batches in opened:
        batches.close()


def slow_at_times(records, mode):
    """The second step takes longest, so the others are ready before it."""
    time.sleep(0.3 if int(records[0]) in (2, 4) else 0.0)
    return tensors(records, mode)


def test_the_examples_are_those_of_a_thread_in_the_same_order(make):
    alone, processes = make(slow_at_times, processes=0), make(slow_at_times, processes=3)
    assert all_of(processes) == all_of(alone)
    # Other lanes, from another step on, while some are made ready.
    processes.next_batch()
    assert all_of(processes, range(1, 2), 2, 6) == all_of(alone, range(1, 2), 2, 6)


def test_every_process_has_its_share_and_none_of_them_is_the_rank(make):
    def pids(records, mode):
        time.sleep(0.1)
        return torch.full((len(records), 1), os.getpid()), torch.zeros(len(records))

    batches = make(pids)
    batches.restart(range(LANES), 0, 8)
    process_ids = {int(batches.next_batch().features[0]) for _ in range(8)}
    assert len(process_ids) == 2
    assert os.getpid() not in process_ids


def test_columns_nested_features_and_any_type_come_back(make):
    def nested(columns, mode):
        x = columns["x"].bfloat16()
        many = torch.tensor([len(numbers) for numbers in columns["many"]])
        return {"x": [x, (many, many > 1)]}, x.double(), x[:, 0].float()

    streams = [make(nested, processes, COLUMNS) for processes in (2, 0)]
    for batches in streams:
        batches.restart(range(LANES), 0, 4)
    ours, expected = (batches.next_batch() for batches in streams)
    assert ours.num_examples == expected.num_examples
    for name in ("labels", "weights"):
        assert torch.equal(getattr(ours, name), getattr(expected, name))
    (x, counts), (expected_x, expected_counts) = ours.features["x"], expected.features["x"]
    assert x.dtype == torch.bfloat16
    assert torch.equal(x, expected_x)
    assert all(
        torch.equal(tensor, other) for tensor, other in zip(counts, expected_counts, strict=True)
    )


@pytest.mark.long
def test_random_transforms_follow_from_step_and_lanes_not_from_the_process(make):
    def drawn(records, mode):
        values = [torch.rand(1).item(), random.random(), np.random.random()]
        return torch.tensor([values] * len(records)), torch.zeros(len(records))

    def rows(processes, lanes=range(LANES)):
        batches = make(drawn, processes)
        batches.restart(lanes, 0, 6)
        return [batches.next_batch().features[0].tolist() for _ in range(6)]

    torch.manual_seed(3)
    first = rows(1)
    torch.manual_seed(3)
    assert rows(3) == first
    assert len({value for row in first for value in row}) == 18
    torch.manual_seed(3)
    assert not set(map(tuple, rows(2, range(1, 3)))) & set(map(tuple, first))


def test_an_error_is_the_users_with_its_line(make):
    def broken(records, mode):
        raise ArithmeticError("no such picture")

    batches = make(broken)
    batches.restart(range(LANES), 0, 4)
    with pytest.raises(UserCodeError, match=r"step 0 .*picture"):
        batches.next_batch()


def test_a_process_that_was_killed_is_told(make):
    def ends(records, mode):
        os.kill(os.getpid(), signal.SIGKILL)

    batches = make(ends)
    batches.restart(range(LANES), 0, 4)
    with pytest.raises(ChildProcessError, match=r"process \d+ "):
        batches.next_batch()


HANGING_RANK = """
import os, signal
from edl_horovod.frameworks.torch.batches import Decoders

def make(step, records):
    print(os.getpid(), flush=True)
    signal.pause()

Decoders(make, 1).make(0, [b"x"], salt=0)
"""


@pytest.mark.long
def test_a_process_ends_with_its_rank_also_amid_the_users_code():
    rank = subprocess.Popen(
        [sys.executable, "-c", HANGING_RANK],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    pid = int(rank.stdout.readline())
    rank.kill()
    rank.wait()
    rank.stdout.close()
    wait_until(lambda: not is_running(pid), "the end of the process")
