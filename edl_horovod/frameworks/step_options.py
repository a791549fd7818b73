"""The options of a training step, from the settings of a job."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from edl_horovod.config.schema import AdversarialConfig, Compression, JobConfig, PrivacyConfig
from edl_horovod.frameworks.packing import NAME


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """How a step's gradients are summed over the ring."""

    name: str = NAME
    """Begins the names of the collectives; those of equal names should have equal shapes."""
    bucket_bytes: int = 4 << 20
    """Maximum size of a bucket of gradients."""
    compression: Compression = "none"
    """How float32 gradients are sent; `none` sends them as they are."""
    batch_size: int = 1
    """Approximate number of examples in a sum; it scales sums to means, which fit in float16."""
    is_timed: bool = False
    """Whether the begin and the end of each bucket's sum are measured."""


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """How a step's gradients are computed, clipped and reduced."""

    clip_norm: float = 0.0
    """Maximum global norm of the gradients; 0 disables clipping."""
    clip_value: float = 0.0
    """Maximum absolute value of a gradient's elements; 0 disables clipping."""
    num_parts: int = 1
    """The number of parts in which a rank processes its examples of a step."""
    scales_loss: bool = False
    """Whether the loss is scaled up so that float16 can hold its gradients."""
    sums_batch_norm: bool = False
    """Whether BatchNorm uses the examples of all ranks; then `num_parts` must be 1."""
    compiles: bool = False
    """Whether PyTorch compiles the model for training."""
    class_weight: Sequence[float] = ()
    """Weights of examples by class number; empty if all weigh the same."""
    reduction: Reduction = field(default_factory=Reduction)
    """How gradients are reduced over a ring."""
    adversarial: AdversarialConfig | None = None
    """How examples are changed before they are trained on; None if they are not."""
    proximal_mu: float = 0.0
    """Weight of the pull towards the weights at a round's begin; 0 disables it."""
    privacy: PrivacyConfig | None = None
    """How each example's gradient is clipped and noise is added; None without privacy. Then a step
    runs on one rank alone."""

    @classmethod
    def of(cls, job: JobConfig) -> Self:
        """Take the options from the settings of a training."""
        config = job.train
        return cls(
            adversarial=job.adversarial if job.adversarial.method != "none" else None,
            proximal_mu=job.federated.proximal_mu,
            privacy=job.federated.privacy if job.federated.privacy.clip else None,
            clip_norm=config.clip_norm,
            clip_value=config.clip_value,
            num_parts=config.accumulate_steps,
            scales_loss=config.precision == "mixed_float16",
            sums_batch_norm=config.batch_norm == "synchronized",
            compiles=config.compile,
            class_weight=config.class_weight,
            reduction=Reduction(
                bucket_bytes=config.bucket_bytes,
                # int8 is for rounds; it is too coarse for the gradients of the warm-up.
                compression="bf16" if config.compression == "int8" else config.compression,
                batch_size=config.batch_size,
                is_timed=job.debug.timeline,
            ),
        )
