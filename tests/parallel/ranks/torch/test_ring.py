"""However gradients travel, a ring has the mean of one process on all examples (D17)."""

import copy

import numpy as np
import pytest
import torch

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.step_options import Reduction
from edl_horovod.frameworks.torch.collectives import PendingCollectives, sum_compressed
from edl_horovod.frameworks.torch.ring import Reducer
from edl_horovod.frameworks.torch.step import sparse_parameters
from tests.parallel.agreement import assert_rounded_twice_at_most, assert_same_everywhere

BATCH, STEPS, NUM_IDS = 12, 7, 40


class Net(torch.nn.Module):
    """Parameters of several types, some of which no example uses in some steps, or ever."""

    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Embedding(NUM_IDS, 3, sparse=True)
        self.first = torch.nn.Linear(3, 8)
        self.branch = torch.nn.Linear(8, 8)
        self.never = torch.nn.Linear(5, 5)
        self.nothing = torch.nn.Parameter(torch.empty(0, 4))
        self.frozen = torch.nn.Parameter(torch.ones(8), requires_grad=False)
        self.scale = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
        self.last = torch.nn.Linear(8, 2)

    def forward(self, ids, *, takes_branch):
        hidden = torch.tanh(self.first(self.rows(ids).sum(1))) * self.frozen
        if takes_branch:
            hidden = hidden + self.branch(hidden)
        return (self.last(hidden) * self.scale).square().sum()


def make_net(dtype=torch.float32):
    torch.manual_seed(5)
    net = Net()
    net.last.to(dtype)
    if dtype != torch.float32:
        net.last.register_forward_pre_hook(lambda _, args: tuple(arg.to(dtype) for arg in args))
    return net


def backward(net, ids, takes_branch, weight=1):
    loss = net(ids, takes_branch=takes_branch)
    (loss / weight).backward()
    return loss.item()


def examples(step, size):
    """For each rank its ids, and whether it takes the branch; some have none in some steps."""
    random = np.random.default_rng(step)
    ids = torch.from_numpy(random.zipf(1.5, (BATCH, 3)).clip(0, NUM_IDS - 1))
    owner = torch.from_numpy((np.arange(BATCH) + step) * (step % 3) % size)
    return [(ids[owner == rank], (rank + step) % 2 == 1) for rank in range(size)]


def train(world, options, *, num_parts=1, dtype=torch.float32):
    """Some steps on the ring and, beside them, the same with all examples in this process.

    Yields:
        The ring's means and those of one process, by the parameters' names, and both losses.
    """
    net, alone = make_net(dtype), make_net(dtype)
    reducer = Reducer(dict(net.named_parameters()), options, sparse=sparse_parameters(net))
    for step in range(STEPS):
        net.zero_grad(set_to_none=True)
        alone.zero_grad(set_to_none=True)
        of_all = examples(step, world.size)
        ids, takes_branch = of_all[world.rank]
        parts = [part for part in ids.chunk(num_parts) if len(part)]
        loss = 0.0
        for part in parts[:-1]:
            loss += backward(net, part, takes_branch, len(ids))
        reducer.begin(len(ids))
        for part in parts[-1:]:
            loss += backward(net, part, takes_branch, len(ids))
        count, loss = reducer.finish(np.array([len(ids), loss]), len(ids))
        assert count == BATCH
        expected = sum(backward(alone, *part, BATCH) for part in of_all if len(part[0]))
        yield gradients(net), gradients(alone), loss, expected
        with torch.no_grad():
            for ours, other in zip(net.parameters(), alone.parameters(), strict=True):
                if other.grad is not None:
                    ours -= 0.01 * ours.grad.to_dense()
                    other -= 0.01 * other.grad.to_dense()
    assert_same_everywhere([ours.detach().double().numpy() for ours in net.parameters()])


def gradients(net):
    return {name: parameter.grad for name, parameter in net.named_parameters() if parameter.numel()}


def assert_alike(totals, expected, **tolerance):
    assert set(totals) == set(expected)
    for name, total in totals.items():
        if expected[name] is None:
            assert total is None, name
            continue
        assert total.dtype == expected[name].dtype, name
        assert total.is_sparse == expected[name].is_sparse, name
        if total.is_sparse:
            rows = expected[name].coalesce().indices()
            assert torch.equal(total.coalesce().indices(), rows), name
        values = total.to_dense().double(), expected[name].to_dense().double()
        np.testing.assert_allclose(*values, **tolerance, err_msg=name)


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("bucket_bytes", [1, 300, pytest.param(1 << 20, marks=pytest.mark.long)])
def test_buckets_of_any_size_give_the_means_of_one_process(world, bucket_bytes, num_parts):
    options = Reduction(bucket_bytes=bucket_bytes, batch_size=BATCH)
    for totals, expected, loss, expected_loss in train(world, options, num_parts=num_parts):
        assert_alike(totals, expected, rtol=1e-5, atol=1e-5)
        assert loss == pytest.approx(expected_loss, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_gradients_of_other_types_are_added_without_losing_more_than_they_had(world, dtype):
    tolerance = {torch.bfloat16: 3e-2, torch.float16: 3e-3, torch.float64: 1e-5}[dtype]
    for totals, expected, *_ in train(world, Reduction(batch_size=BATCH), dtype=dtype):
        assert_alike(totals, expected, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("bucket_bytes", [1, 300])
@pytest.mark.parametrize("compression", ["bf16", "fp16"])
def test_compressed_sums_are_those_of_one_process_within_their_precision(
    world, compression, bucket_bytes
):
    options = Reduction(bucket_bytes=bucket_bytes, compression=compression, batch_size=BATCH)
    tolerance = {"bf16": 2e-2, "fp16": 4e-3}[compression]
    for totals, expected, *_ in train(world, options):
        assert_alike(totals, expected, rtol=tolerance, atol=5 * tolerance)


@pytest.mark.parametrize("compression", ["bf16", "fp16"])
def test_compressed_sums_are_rounded_twice_at_most(world, compression):
    def sum_up(values):
        totals, pending = [torch.from_numpy(value) for value in values], PendingCollectives()
        for number, total in enumerate(totals):
            pending.start(sum_compressed(total, f"test.{number}", compression))
        pending.wait()
        return [total.numpy() for total in totals]

    assert_rounded_twice_at_most(world, compression, sum_up)


def test_a_bucket_goes_out_before_the_backward_pass_is_done(world):
    """On all ranks its sum is there while the first layer's gradient is not."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(3)))
    options = Reduction(bucket_bytes=1, batch_size=world.size)
    reducer = Reducer(dict(layers.named_parameters()), options)
    seen = []

    def look(gradient):
        # All ranks have sent the last bucket: one that waits here ends no other's wait.
        reducer._pending.wait()
        seen.append(layers[2].weight.grad.clone())

    layers[0].weight.register_hook(look)
    reducer.begin(1)
    layers(torch.full((2, 4), float(world.rank + 1))).sum().backward()
    early = seen[0]
    reducer.finish(np.zeros(1), 1)
    torch.testing.assert_close(early / world.size, layers[2].weight.grad)
    assert_same_everywhere([early.numpy()])


def test_a_step_that_is_abandoned_amid_its_backward_pass_leaves_nothing_behind(world):
    """All ranks give it up alike, after some buckets: their sums reach no later step."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
    reducer = Reducer(dict(layers.named_parameters()), Reduction(bucket_bytes=1))
    stop = layers[0].weight.register_hook(_refuse)
    reducer.begin(1)
    with pytest.raises(ArithmeticError):
        layers(torch.ones(2, 4)).sum().backward()
    # The ring goes on, where a broken one would have ended what is on its way.
    reducer._pending.wait()
    reducer.abandon()
    stop.remove()
    assert all(parameter.grad is None for parameter in layers.parameters())
    twin = copy.deepcopy(layers)
    for _ in range(2):
        layers.zero_grad(set_to_none=True)
        twin.zero_grad(set_to_none=True)
        reducer.begin(1)
        layers(torch.ones(2, 4)).sum().backward()
        reducer.finish(np.zeros(0), 1)
        twin(torch.ones(2, 4)).sum().backward()
        for parameter, other in zip(layers.parameters(), twin.parameters(), strict=True):
            np.testing.assert_allclose(parameter.grad, other.grad, rtol=1e-5)


def _refuse(*_):
    raise ArithmeticError


def test_a_gradient_that_comes_again_after_its_bucket_is_told_with_the_hint(world):
    first, weight = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    reducer = Reducer({"first": first, "weight": weight}, Reduction(bucket_bytes=1))
    reducer.begin(1)
    weight.sum().backward()
    with pytest.raises(UserCodeError, match=r"weight .*use_reentrant"):
        weight.sum().backward()
    reducer.finish(np.zeros(0), 1)


@pytest.mark.parametrize("bucket_bytes", [24, 1 << 20])
def test_a_parameter_that_is_given_a_gradient_twice_before_its_bucket_goes_has_the_sum(
    world, bucket_bytes
):
    """As in a checkpoint with use_reentrant, here of a rank that counts more than the others."""
    first, weight, other = (torch.nn.Parameter(torch.ones(3)) for _ in range(3))
    named = {"first": first, "weight": weight, "other": other}
    reducer = Reducer(named, Reduction(bucket_bytes=bucket_bytes))
    reducer.begin(1 + world.rank)
    for _ in range(2):
        (weight.sum() * world.rank).backward()
    other.sum().backward()
    reducer.finish(np.zeros(0), 1 + world.rank)
    ranks = range(world.size)
    mean = sum(2 * rank * (1 + rank) for rank in ranks) / sum(1 + rank for rank in ranks)
    torch.testing.assert_close(weight.grad, torch.full((3,), mean))
    assert first.grad is None


def test_a_parameter_that_the_ring_cannot_add_is_refused_by_name():
    complex_one = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
    with pytest.raises(UserCodeError, match=r"phases .*=torch\.complex64"):
        Reducer({"phases": complex_one}, Reduction())
