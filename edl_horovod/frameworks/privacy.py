"""What differentially private steps of all frameworks have in common.

A step clips the gradient of each example, adds noise to the sum, and divides by the setting
train.batch_size: DP-SGD, M. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016,
algorithm 1. The batches are not drawn at random as there: each record is in one step of a pass
(`tasks.privacy` accounts for that).
"""

import math
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.values import Batch

GRADIENT_BYTES = 256 << 20
"""Memory for the gradients of single examples, of which so many are computed at once."""


def examples_at_once(num_bytes: int) -> int:
    """The number of examples whose gradients are in memory together.

    Args:
        num_bytes: Size of the trained variables.
    """
    return max(1, GRADIENT_BYTES // max(1, num_bytes))


def noise(shape: Sequence[int], deviation: float) -> NDArray[np.float64]:
    """Draw normal numbers from the random source of the operating system, which has no seed.

    Noise that can be predicted can be removed, and the generators of NumPy and the frameworks can
    be predicted. The method is that of G. Box and M. Muller, "A Note on the Generation of Random
    Normal Deviates", 1958.

    Args:
        shape: The shape of the result.
        deviation: The standard deviation of each number.
    """
    size = math.prod(shape)
    num_pairs = (size + 1) // 2
    words = np.frombuffer(os.urandom(16 * num_pairs), np.uint64).reshape(2, num_pairs)
    radius_part, angle_part = (words >> np.uint64(11)) * 2.0**-53  # From 0 to below 1.
    radius = deviation * np.sqrt(-2.0 * np.log1p(-radius_part))
    angle = 2.0 * np.pi * angle_part
    numbers = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return numbers[:size].reshape(shape)


def refuse_weights(label: str) -> UserCodeError:
    """Create the error for examples with weights."""
    return UserCodeError(
        f"create_dataset of {label} returns weights of the examples, which federated.privacy cannot"
        " keep: it clips the gradient of each example to the same norm.",
        hint="Leave the weights out, or federated.privacy.",
    )


def refuse_loss_scale(label: str) -> UserCodeError:
    """Create the error for a model whose steps are left out if its gradients overflow float16."""
    return UserCodeError(
        f"The optimizer of {label} scales the loss for float16 and leaves out steps that overflow,"
        " which the noise of federated.privacy does not hide.",
        hint="Use the policy mixed_bfloat16 or float32 in the model, and no LossScaleOptimizer.",
    )


def refuse_shared_state(names: Sequence[str], label: str) -> UserCodeError:
    """Create the error for layers or variables that a step computes from all its examples.

    Args:
        names: The layers or variables.
        label: The spec.
    """
    return UserCodeError(
        f"federated.privacy protects gradients, but the model of {label} also keeps statistics of"
        " its examples, which would leave the party without noise.",
        received=", ".join(names),
        hint="Replace BatchNorm by GroupNorm or LayerNorm, which use one example at a time.",
    )


def require_one_each(batch: Batch, label: str) -> None:
    """Check that no record has become several examples.

    Raises:
        UserCodeError: There are more examples than records.
    """
    num_records = batch.num_examples if batch.places is None else len(batch.places())
    if batch.num_examples > num_records:
        raise UserCodeError(
            f"create_dataset of {label} makes several examples of a record, but federated.privacy"
            " protects single examples.",
            received=f"{batch.num_examples} examples of {num_records} records",
            hint="Return one example for each record, for instance by preparing records that each"
            " hold one example.",
        )
