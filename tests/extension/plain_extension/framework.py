"""A framework in NumPy; a test adds `numpy_framework.py`, which does what the ring needs of it."""

from edl_horovod.config.frameworks import FrameworkEntry

ENTRY = FrameworkEntry(module="plain_extension.ring", packages=("numpy",), extra="")
