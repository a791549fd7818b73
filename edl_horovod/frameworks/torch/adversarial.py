"""Adversarial examples of a PyTorch model; see `frameworks.adversarial`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from edl_horovod.config.schema import AdversarialConfig
from edl_horovod.frameworks.adversarial import Plan, names_to_change
from edl_horovod.frameworks.torch.noise import Noise
from edl_horovod.frameworks.values import Batch


class Attack:
    """Changes examples so that their loss rises."""

    def __init__(
        self, config: AdversarialConfig, features: Any, *, num_places: int, label: str
    ) -> None:
        """Choose the features to change.

        Args:
            config: The settings.
            features: The features of sample examples.
            num_places: Records of a full step.
            label: Names the model in messages.

        Raises:
            ConfigError: adversarial.inputs does not fit the features.
            UserCodeError: No feature can be changed.
        """
        self._plan, self._num_places = Plan.of(config, num_places), num_places
        self._names = names_to_change(features, config, _is_number, label)

    def __call__(self, batch: Batch, loss_of: Callable[[Batch], torch.Tensor]) -> Batch:
        """Return a batch with the changed features.

        Args:
            batch: The result of `with_noise`.
            loss_of: Computes the loss of a batch, with its graph.
        """
        plan, names = self._plan, self._names
        features, key = batch.features
        original = [features] if names is None else [features[name] for name in names]
        noise = Noise(key, self._num_places)

        def merged(values: list[torch.Tensor]) -> Batch:
            changed = (
                values[0]
                if names is None
                else {**features, **dict(zip(names, values, strict=True))}
            )
            return replace(batch, features=changed)

        values = [value.detach() for value in original]
        if plan.starts_at_random:
            values = [
                value + plan.epsilon * (2.0 * noise.uniform(*value.shape[1:]).to(value.dtype) - 1.0)
                for value in values
            ]
        values = self._bounded(values, original)
        for _ in range(plan.num_steps):
            for value in values:
                value.requires_grad_()
            with torch.enable_grad():
                loss = loss_of(merged(values))
            gradients = torch.autograd.grad(loss, values, allow_unused=True)
            moved = [
                value.detach()
                if gradient is None
                else value.detach() + plan.step_size * gradient.sign()
                for value, gradient in zip(values, gradients, strict=True)
            ]
            values = self._bounded(moved, original)
        is_changed = key[:, 2] < plan.num_changed
        return merged(
            [
                torch.where(is_changed.reshape(-1, *[1] * (value.ndim - 1)), value, start)
                for value, start in zip(values, original, strict=True)
            ]
        )

    def _bounded(
        self, values: list[torch.Tensor], original: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        lowest, highest = self._plan.bounds
        # A value that is out of bounds itself may stay as it is, but not move further.
        return [
            value.clamp(start - self._plan.epsilon, start + self._plan.epsilon).clamp(
                start.clamp(max=lowest), start.clamp(min=highest)
            )
            for value, start in zip(values, original, strict=True)
        ]


def _is_number(feature: Any) -> bool:
    return isinstance(feature, torch.Tensor) and feature.is_floating_point()
