"""Numbers that travel in 16 bits while their sums are made in 32."""

import torch

__all__ = ["COMPRESSIONS", "lengthen", "shorten"]

COMPRESSIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_TRAVELS_AS = torch.int16
"""Horovod moves it as it is; it knows no bfloat16, and adds float16 in float16."""


def shorten(values: torch.Tensor, compression: str, scale: int = 1) -> torch.Tensor:
    """Round float32 numbers to 16 bits.

    Args:
        values: Left as they are.
        compression: `bf16` or `fp16`.
        scale: What they are divided by on their way as float16. That ends at 65,504; numbers beyond
            that become the largest one.

    Returns:
        int16 with the same bits, of the same shape.
    """
    short = COMPRESSIONS[compression]
    if short == torch.float16:
        values = values / scale
        most = torch.finfo(short).max
        # What is not finite must stay so: the loss scaling looks for it.
        values = torch.where(values.isfinite(), values.clamp(-most, most), values)
    return values.to(short).view(_TRAVELS_AS)


def lengthen(values: torch.Tensor, compression: str, scale: int = 1) -> torch.Tensor:
    """Give the float32 numbers that `shorten` made these of."""
    short = COMPRESSIONS[compression]
    numbers = values.view(short).to(torch.float32)
    return numbers.mul_(scale) if short == torch.float16 else numbers
