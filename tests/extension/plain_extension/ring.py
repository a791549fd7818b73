"""The framework on rings, by whichever half of Horovod is installed."""

from plain_extension.numpy_framework import Framework

try:
    from edl_horovod.frameworks.torch.collectives import HOROVOD
    from edl_horovod.frameworks.torch.collectives import TorchCollectives as Collectives
except ImportError:
    from edl_horovod.frameworks.keras.collectives import HOROVOD
    from edl_horovod.frameworks.keras.collectives import KerasCollectives as Collectives

FRAMEWORK = Framework(Collectives())
FRAMEWORK.name, FRAMEWORK.horovod = "plain", HOROVOD
