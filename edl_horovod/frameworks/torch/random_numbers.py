"""Random numbers of each step, seeded by the job's seed, the step, and the rank's lanes."""

import hashlib
import struct

import numpy as np
import torch

from edl_horovod.frameworks.values import Array

__all__ = ["RandomNumbers"]


class RandomNumbers:
    """Seeds PyTorch's generators, so that a resumed training draws the same random numbers."""

    def __init__(self) -> None:
        """Take the seed that was set in PyTorch before the user's code ran."""
        seed = torch.initial_seed() % (1 << 63)
        self.variable = Array(np.array([seed, 0], np.int64))
        """The seed, and the number of completed steps; part of the ring's state."""

    @property
    def num_steps(self) -> int:
        """The number of completed steps."""
        return int(self.variable.numpy()[1])

    def begin_step(self, salt: int) -> None:
        """Seed PyTorch's generators for a step.

        Args:
            salt: Part of the seed, different on each rank.
        """
        seed, step = self.variable.numpy().tolist()
        digest = hashlib.blake2b(struct.pack("<qqq", seed, step, salt), digest_size=8).digest()
        step_seed = int.from_bytes(digest, "little") >> 1
        # `torch.manual_seed` would be slow: it also queries unused devices, and formats a traceback
        # in each call.
        torch.default_generator.manual_seed(step_seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(step_seed)

    def end_step(self) -> None:
        """Count the step as completed."""
        seed, step = self.variable.numpy().tolist()
        self.variable.assign([seed, step + 1])
