"""Creates the framework for PyTorch on a ring of Horovod workers."""

from collections.abc import Mapping

from torch import nn

from edl_horovod.config.schema import TrainConfig
from edl_horovod.frameworks.base import Framework
from edl_horovod.frameworks.buckets import Reduction
from edl_horovod.frameworks.torch.collectives import HOROVOD, TorchCollectives
from edl_horovod.frameworks.torch.framework import TorchFramework
from edl_horovod.frameworks.torch.reduction import Reducer

__all__ = ["FRAMEWORK"]


def _make_reducer(
    parameters: Mapping[str, nn.Parameter], sparse: set[str], config: TrainConfig
) -> Reducer:
    options = Reduction(
        bucket_bytes=config.bucket_bytes,
        compression=config.compression,
        batch_size=config.batch_size,
    )
    return Reducer(parameters, options, sparse=sparse)


FRAMEWORK: Framework = TorchFramework(HOROVOD, TorchCollectives(), _make_reducer)
