"""Steps of PyTorch on all ranks of a ring in this process, and what a loop by hand gives."""

from pathlib import Path

import numpy as np
import pytest
import torch

from edl_horovod.frameworks.torch.structures import map_leaves
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.zoo import load_spec
from tests.jobs import NO_OPTIONS
from tests.specs import with_methods
from tests.torch_ring import Meeting, batches_of_sines, make_step, part_of, state_of, train_in_ring

ZOO = str(Path(__file__).parents[3] / "zoo")
BATCH, STEPS = 12, 8
EXAMPLE = Batch({"x": torch.ones(2, 4)}, torch.ones(2, 1), 2)


def batches(num_steps=STEPS):
    return batches_of_sines(num_steps, BATCH)


def load(**params):
    return load_spec(ZOO, "torch_tiny", params=params)


def tiny(params=None, **methods):
    """The model `torch_tiny` of the zoo with methods of a test."""
    return with_methods(load(**(params or {})), **methods)


def everything(number):
    return True


def every_fifth(number):
    return number % 5 == 0


def only_the_second(number):
    return number == 1


def ring_of(size, loaded=None, *, options=NO_OPTIONS, keep=everything, data=batches):
    """The states of all ranks after some steps, and what the steps gave."""
    steps = steps_of_ring(loaded or load(), EXAMPLE, size, options=options)
    sums = train_in_ring(steps, lambda rank: [part_of(batch, rank, size, keep) for batch in data()])
    return [state_of(step) for step in steps], sums


def chosen(batch, places):
    """A batch of the examples at some places of another one."""
    features, labels = (
        map_leaves(lambda tensor: tensor[places], part) for part in (batch.features, batch.labels)
    )
    return Batch(features, labels, len(places))


def share(batch, rank, size):
    """A rank's examples of a batch."""
    return chosen(batch, torch.arange(batch.num_examples)[rank::size])


def train_shares(steps, data):
    """Train all ranks on their shares; returns the state of all, and what the steps of one gave."""
    sums = train_in_ring(steps, lambda rank: [share(batch, rank, len(steps)) for batch in data])
    states = [state_of(step) for step in steps]
    for state in states[1:]:
        assert_state(state, states[0], rtol=0, atol=0)
    return states[0], sums[0]


def run(step, batch, *, salt=0):
    return step.step(batch, wants_change=False, is_alone=True, salt=salt)


def assert_same(ours, expected, **tolerance):
    assert list(ours) == list(expected)
    for name, value in ours.items():
        np.testing.assert_allclose(value, expected[name], err_msg=name, **tolerance)


def assert_ring_is_one_process(size, loaded, **settings):
    states, sums = ring_of(size, loaded, **settings)
    for state in states[1:]:
        assert_same(state, states[0], rtol=0, atol=0)
    (alone,), (single,) = ring_of(1, loaded, **settings)
    assert_same(states[0], alone, rtol=1e-4, atol=1e-6)
    for ours, expected in zip(sums[-1], single, strict=True):
        assert ours.num_examples == expected.num_examples
        assert ours.loss == pytest.approx(expected.loss, rel=1e-5)
        assert ours.metrics == pytest.approx(expected.metrics, rel=1e-5)


def steps_of_ring(loaded, example, size, **settings):
    meeting = Meeting(size)
    return [
        make_step(loaded, example, meeting=meeting, rank=rank, **settings) for rank in range(size)
    ]


def loop(module, optimizer, batches, loss_of):
    """Train as in PyTorch's own tutorials; gives the losses."""
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(module, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def losses_of(sums):
    return [step_sums.loss for step_sums in sums]


def assert_state(state, expected, **tolerance):
    """Compare values by the names that are expected: those of a module, or arrays."""
    if hasattr(expected, "state_dict"):
        expected = expected.state_dict()
    for name, value in expected.items():
        np.testing.assert_allclose(state[name], value, err_msg=name, **tolerance)
