"""PyTorch as the only rank of its ring: a framework without Horovod."""

from edl_horovod.frameworks.torch.framework import TorchFramework
from tests.torch_ring import Reducer

FRAMEWORK = TorchFramework(None, None, lambda parameters, config: Reducer(parameters, None, 0))
