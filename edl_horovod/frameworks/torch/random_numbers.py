"""The random numbers of each step: by the job's seed, the step, and the rank's lanes."""

import hashlib
import struct

import numpy as np
import torch

from edl_horovod.frameworks.values import Array

__all__ = ["RandomNumbers"]


class RandomNumbers:
    """What dropout and its like draw from; a training that goes on draws what it would have."""

    def __init__(self) -> None:
        """Begin with the seed that PyTorch was given before the user's code ran."""
        seed = torch.initial_seed() % (1 << 63)
        self.variable = Array(np.array([seed, 0], np.int64))
        """The seed, and the steps that are done; for the ring's state."""

    @property
    def num_steps(self) -> int:
        """The steps that are done."""
        return int(self.variable.numpy()[1])

    def begin_step(self, salt: int) -> None:
        """Seed PyTorch's generators for a step.

        Args:
            salt: Sets this rank apart from the others.
        """
        seed, step = self.variable.numpy().tolist()
        digest = hashlib.blake2b(struct.pack("<qqq", seed, step, salt), digest_size=8).digest()
        number = int.from_bytes(digest, "little") >> 1
        # `torch.manual_seed` also asks for devices that are not used here, and formats a traceback
        # for each call.
        torch.default_generator.manual_seed(number)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(number)

    def end_step(self) -> None:
        """Go on to the next step."""
        seed, step = self.variable.numpy().tolist()
        self.variable.assign([seed, step + 1])
