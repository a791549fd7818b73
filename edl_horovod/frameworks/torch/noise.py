"""Random numbers of a step's examples that are the same on any ring."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from edl_horovod.frameworks.torch.batches import step_seed
from edl_horovod.frameworks.values import Batch


def with_noise(batch: Batch) -> Batch:
    """A batch with the key of its noise beside the features.

    The key has a row for each example, so that it is split and moved with them: the seed, the
    number of the pass, and the place of the example.
    """
    key = batch.noise
    assert key is not None
    places = torch.as_tensor(key.places)
    rows = torch.stack([torch.full_like(places, n) for n in (key.seed, key.number)] + [places], 1)
    return replace(batch, features=(batch.features, rows), noise=None, places=None)


class Noise:
    """Draws the noise of a batch's examples: a row of numbers for each place in the step."""

    def __init__(self, key: torch.Tensor, num_places: int) -> None:
        self._key, self._num_places, self._calls = key, num_places, 0

    def __call__(self, *shape: int) -> torch.Tensor:
        """Return standard normal numbers of shape (batch, *shape)."""
        return self._rows(torch.randn, shape)

    def uniform(self, *shape: int) -> torch.Tensor:
        """Return numbers between 0 and 1 of shape (batch, *shape)."""
        return self._rows(torch.rand, shape)

    def _rows(self, draw: Callable[..., torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
        seed, number = self._key[0, :2].tolist()
        places = self._key[:, 2]
        num_rows = max(int(places.max()) + 1, self._num_places)
        # On the CPU, so that the numbers are the same on any device.
        generator = torch.Generator().manual_seed(step_seed(seed, number, self._calls))
        self._calls += 1
        return draw(num_rows, *shape, generator=generator).to(places.device)[places]
