"""A mistake: a layer whose width depends on which worker makes it."""

from torch import nn
from torch_tiny import TorchTinySpec


class TorchUnevenSpec(TorchTinySpec):
    def __init__(self, context=None):
        super().__init__(context)
        self._width = 8 + int(context["worker_id"])

    def create_model(self):
        net = super().create_model()
        net.hidden, net.output = nn.Linear(4, self._width), nn.Linear(self._width, 1)
        return net
