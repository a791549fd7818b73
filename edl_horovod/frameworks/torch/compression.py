"""Compression of float32 numbers to 16 bits for transfers; sums are computed in float32."""

import torch

__all__ = ["COMPRESSIONS", "compress", "decompress"]

COMPRESSIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_TRANSFER_DTYPE = torch.int16
"""Horovod copies integers unchanged; it does not support bfloat16, and sums float16 in float16."""


def compress(values: torch.Tensor, compression: str, scale: int = 1) -> torch.Tensor:
    """Round float32 numbers to 16 bits.

    Args:
        values: The numbers, which are not changed.
        compression: `bf16` or `fp16`.
        scale: Divisor of the numbers for `fp16`, whose largest number is 65,504; larger ones are
            clamped to it.

    Returns:
        The bits of the 16-bit numbers as int16, of the same shape.
    """
    dtype = COMPRESSIONS[compression]
    if dtype == torch.float16:
        values = values / scale
        largest = torch.finfo(dtype).max
        # Infinite numbers and NaN must stay: loss scaling checks for them.
        values = torch.where(values.isfinite(), values.clamp(-largest, largest), values)
    return values.to(dtype).view(_TRANSFER_DTYPE)


def decompress(values: torch.Tensor, compression: str, scale: int = 1) -> torch.Tensor:
    """Return the rounded float32 numbers for the result of `compress`."""
    dtype = COMPRESSIONS[compression]
    numbers = values.view(dtype).to(torch.float32)
    return numbers.mul_(scale) if dtype == torch.float16 else numbers
