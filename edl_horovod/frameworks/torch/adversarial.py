"""Adversarial examples of a PyTorch model; see `frameworks.adversarial`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from edl_horovod.frameworks.adversarial import BaseAttack
from edl_horovod.frameworks.torch.noise import Noise
from edl_horovod.frameworks.values import Batch


class Attack(BaseAttack):
    """Changes examples of a PyTorch model."""

    def __call__(self, batch: Batch, loss_of: Callable[[Batch], torch.Tensor]) -> Batch:
        """Return a batch with the changed features.

        Args:
            batch: The result of `with_noise`.
            loss_of: Computes the loss of a batch, with its graph.
        """
        features, key = batch.features
        original = self._selected(features)

        def merged(values: list[torch.Tensor]) -> Batch:
            return replace(batch, features=self._merged(features, values))

        values = [value.detach() for value in original]
        if self._starts_at_random:
            noise = Noise(key, self._num_places)
            values = [
                value
                + self._epsilon * (2.0 * noise.uniform(*value.shape[1:]).to(value.dtype) - 1.0)
                for value in values
            ]
        values = self._bounded(values, original)
        for _ in range(self._num_steps):
            for value in values:
                value.requires_grad_()
            with torch.enable_grad():
                loss = loss_of(merged(values))
            gradients = torch.autograd.grad(loss, values, allow_unused=True)
            moved = [
                value.detach()
                if gradient is None
                else value.detach() + self._step_size * gradient.sign()
                for value, gradient in zip(values, gradients, strict=True)
            ]
            values = self._bounded(moved, original)
        is_changed = key[:, 2] < self._num_changed
        return merged(
            [
                torch.where(is_changed.reshape(-1, *[1] * (value.ndim - 1)), value, start)
                for value, start in zip(values, original, strict=True)
            ]
        )

    def _bounded(
        self, values: list[torch.Tensor], original: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        # A value that is out of bounds itself may stay as it is, but not move further.
        return [
            value.clamp(start - self._epsilon, start + self._epsilon).clamp(
                start.clamp(max=self._lowest), start.clamp(min=self._highest)
            )
            for value, start in zip(values, original, strict=True)
        ]

    @staticmethod
    def _is_number(feature: Any) -> bool:
        return isinstance(feature, torch.Tensor) and feature.is_floating_point()
