"""BatchNorm over the examples of all ranks: what one process gives that has them all."""

import numpy as np
import pytest

from edl_horovod.frameworks.step_options import StepOptions
from tests.later import LATER, later

if LATER:
    import torch
    from torch import nn

    from edl_horovod.frameworks.torch.batch_norm import RingStatistics, with_ring_statistics
    from tests.component.frameworks.torch import rings
    from tests.component.frameworks.torch.rings import (
        BATCH,
        EXAMPLE,
        STEPS,
        assert_same,
        batches,
        load,
        ring_of,
        steps_of_ring,
    )
    from tests.torch_ring import make_step, state_of, train_in_ring

# With plain SGD: the bias before such a layer has a gradient of rounding errors, and Adam would
# magnify them.
SUMMED = StepOptions(sums_batch_norm=True)


@pytest.mark.parametrize(
    "keep", [later("rings.everything"), later("rings.every_fifth"), later("rings.only_the_second")]
)
@pytest.mark.parametrize("size", [2, 3])
def test_a_ring_gives_what_one_process_gives(size, keep):
    """Also where ranks have one example in a step, or none."""
    rings.assert_ring_is_one_process(
        size, load(batch_norm=True, kind="SGD"), options=SUMMED, keep=keep
    )


def test_one_process_gives_what_pytorch_gives():
    loaded = load(batch_norm=True, kind="SGD")
    (ours,), (losses,) = ring_of(1, loaded, options=SUMMED)
    (plain,), (expected,) = ring_of(1, loaded)
    assert_same(ours, plain, rtol=1e-4, atol=1e-6)
    assert [sums.loss for sums in losses] == pytest.approx([e.loss for e in expected], rel=1e-5)
    assert ours["norm.num_batches_tracked"] == STEPS


def test_own_statistics_are_another_training():
    loaded = load(batch_norm=True, kind="SGD")
    _, ours = ring_of(2, loaded, options=SUMMED)
    _, by_rank = ring_of(2, loaded)
    assert ours[0][-1].loss != pytest.approx(by_rank[0][-1].loss, rel=1e-5)


if LATER:

    class Shared(nn.Module):
        """One layer at two places and called twice, of pictures, with a plain mean of all steps."""

        def __init__(self):
            super().__init__()
            self.first = nn.BatchNorm2d(3, momentum=None)
            self.parts = nn.Sequential(
                nn.Conv2d(3, 3, 2), self.first, nn.BatchNorm2d(3, affine=False)
            )

        def forward(self, x):
            return self.parts(self.first(x)).flatten(1)


def test_layers_of_any_kind_keep_their_names_and_agree_with_pytorch_in_every_gradient():
    torch.manual_seed(2)
    plain, ours = Shared(), Shared()
    ours.load_state_dict(plain.state_dict())
    parameters = [id(parameter) for parameter in ours.parameters()]
    ours = with_ring_statistics(ours, RingStatistics())
    assert [id(parameter) for parameter in ours.parameters()] == parameters
    for _ in range(3):
        x = (torch.randn(5, 3, 4, 4) * 3 + 100).requires_grad_()
        again = x.detach().clone().requires_grad_()
        (plain(x) ** 3).sum().backward()
        (ours(again) ** 3).sum().backward()
        np.testing.assert_allclose(again.grad, x.grad, rtol=1e-3, atol=1e-3)
    for (name, parameter), other in zip(plain.named_parameters(), ours.parameters(), strict=True):
        np.testing.assert_allclose(other.grad, parameter.grad, rtol=1e-3, atol=1e-3, err_msg=name)
    assert list(ours.state_dict()) == list(plain.state_dict())
    for name, value in ours.state_dict().items():
        expected = plain.state_dict()[name]
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-7, err_msg=name)
    x = torch.randn(2, 3, 4, 4)
    with torch.no_grad():
        np.testing.assert_allclose(ours.eval()(x), plain.eval()(x), rtol=1e-4)


def test_a_model_that_is_such_a_layer_is_replaced_itself():
    layer = nn.BatchNorm1d(4)
    replaced = with_ring_statistics(layer, RingStatistics())
    assert replaced is not layer
    assert replaced.weight is layer.weight
    assert list(replaced.state_dict()) == list(layer.state_dict())


def test_numbers_of_a_rank_without_examples_do_not_reach_the_others():
    """It runs along on what may be anything: its own state may not have come yet."""
    loaded = load(batch_norm=True, kind="SGD")
    steps = steps_of_ring(loaded, EXAMPLE, 2, options=SUMMED)
    with torch.no_grad():
        steps[1].model.runner.module.hidden.weight.fill_(float("nan"))
    (batch,) = batches(1)
    results = train_in_ring(steps, lambda rank: [batch if rank == 0 else None])
    alone = make_step(loaded, EXAMPLE, options=SUMMED)
    expected = rings.run(alone, batch)
    assert [sums.loss for (sums,) in results] == pytest.approx([expected.loss] * 2)
    assert results[0][0].num_examples == BATCH
    assert_same(state_of(steps[0]), state_of(alone), rtol=1e-5, atol=1e-7)
