"""Modules whose passes ask for more than a plain forward pass: they train as in a loop by hand."""

import pytest

from edl_horovod.errors import UserCodeError
from tests.later import LATER

if LATER:
    import torch

    from tests.component.frameworks.torch.rings import assert_state, loop

MODULE = """
import torch
from torch import nn

from edl_horovod.callbacks import Callback


class Derivatives(nn.Module):
    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        x = x.detach().requires_grad_()
        (force,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
        return force.sum(1, keepdim=True)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.up, self.down = nn.Linear(1, 8), nn.Linear(8, 1)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x):
        hidden = self.encoder(self.up(x[:, :, None]), src_key_padding_mask=x > 1)
        return self.down(hidden[:, 0])


class Turning(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("turn", torch.polar(torch.ones(4), torch.arange(4.0)))
        self.register_buffer("edges", torch.eye(4).to_sparse(), persistent=False)

    def forward(self, x):
        return self.layer((self.edges @ (x * self.turn).real.T).T)


def loss(outputs, labels):
    return nn.functional.mse_loss(outputs, labels)


def optimizer(model):
    return torch.optim.SGD(model.parameters(), 0.05)


class Looking(Callback):
    writes = WRITES

    def on_train_batch_end(self, batch, logs):
        if self.writes:
            self.model.turn.data.mul_(1j)


def callbacks():
    return [Looking()]
"""
POINTS = "dataset:tests.zoo.torch_modules.Points"
CASES = {
    "derivatives": ("Derivatives", "float32", 1e-6),
    "attention": ("Attention", "float32", 1e-6),
    "attention in bfloat16": ("Attention", "mixed_bfloat16", 5e-3),
}


@pytest.fixture
def train(run, write_zoo):
    def train_it(kind, *settings, writes=False):
        zoo = write_zoo(net=MODULE.replace("WRITES", str(writes)))
        data = (f"data={POINTS}", f"validation_data={POINTS}", "train.epochs=2")
        steps = "callbacks.per_step=true"
        return run("train", zoo, f"model_def=net.{kind}", *data, steps, *settings)

    return train_it


@pytest.mark.long(after=1)
@pytest.mark.parametrize(("kind", "precision", "tolerance"), CASES.values(), ids=CASES)
def test_they_train_as_in_a_loop_by_hand(train, use_trained, kind, precision, tolerance):
    done = train(kind, f"train.precision={precision}")
    module = done.module.train()
    optimizer = torch.optim.SGD(module.parameters(), 0.05)

    def loss_of(module, batch):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision != "float32"):
            outputs = module(batch.features)
        return torch.nn.functional.mse_loss(outputs.float(), batch.labels)

    loop(module, optimizer, done.batches.values(), loss_of)
    assert_state(done.state, module, atol=tolerance)

    use_trained(done, f"data={POINTS}", rel=1e-5 if precision == "float32" else 0.05)


def test_callbacks_may_look_at_a_module_with_complex_and_sparse_buffers(train):
    assert train("Turning").result.steps == 8


def test_a_callback_that_turns_a_complex_buffer_is_found(train):
    with pytest.raises(UserCodeError, match="per_step"):
        train("Turning", writes=True)
