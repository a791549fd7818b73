"""Sums of arrays over a ring, sent as numbers of 8 or 16 bits.

Each rank sums one part of the numbers of all ranks in float64, and sends the sum to all ranks. So a
number is rounded twice for any number of ranks, and all ranks receive the same bits. What travels
is what a ring allreduce of such numbers would send.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.config.schema import Compression
from edl_horovod.frameworks.base import Collectives

_BLOCK = 256
"""Numbers with a common scale. A block belongs to one array, so that arrays do not share scales."""

_LARGEST_INT8 = 127


def sum_compressed(
    arrays: Mapping[str, NDArray[np.float32]],
    collectives: Collectives,
    compression: Compression,
    *,
    num_ranks: int,
    name: str,
) -> dict[str, NDArray[np.float32]]:
    """Sum arrays over the ring; all ranks call it with the same names and shapes.

    Args:
        arrays: The summands of this rank, by name.
        collectives: The ring.
        compression: Any choice but `none`.
        num_ranks: The ranks of the ring.
        name: Begins the names of the collectives.

    Raises:
        CollectiveFailed: A member was lost.
    """
    blocks = _in_blocks(arrays, num_ranks)
    sent = _encode(blocks, compression).reshape(num_ranks, -1)
    parts = collectives.exchange(sent, f"{name}.parts").reshape(len(blocks), -1)
    summands = _decode(parts, compression).reshape(num_ranks, -1, _BLOCK)
    # NaN and infinite numbers spread to the sum, and are reported as such.
    with np.errstate(invalid="ignore", over="ignore"):
        total = summands.sum(0, dtype=np.float64).astype(np.float32)
    sent = np.repeat(_encode(total, compression).reshape(1, -1), num_ranks, 0)
    whole = collectives.exchange(sent, f"{name}.whole").reshape(len(blocks), -1)
    return _from_blocks(_decode(whole, compression), arrays)


def _in_blocks(arrays: Mapping[str, NDArray[np.float32]], num_ranks: int) -> NDArray[np.float32]:
    """Cut arrays into blocks, filled up with zeros; as many for each rank."""
    counts = [_num_blocks(array) for array in arrays.values()]
    blocks = np.zeros((-(-sum(counts) // num_ranks) * num_ranks, _BLOCK), np.float32)
    starts = np.cumsum([0, *counts])
    for array, start, count in zip(arrays.values(), starts, counts, strict=False):
        blocks[start : start + count].reshape(-1)[: array.size] = array.reshape(-1)
    return blocks


def _from_blocks(
    blocks: NDArray[np.float32], arrays: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[np.float32]]:
    """Put blocks together to arrays of these names and shapes."""
    values, start = {}, 0
    for name, array in arrays.items():
        end = start + _num_blocks(array)
        values[name] = blocks[start:end].reshape(-1)[: array.size].reshape(array.shape)
        start = end
    return values


def _num_blocks(array: NDArray[Any]) -> int:
    return math.ceil(array.size / _BLOCK)


def _encode(blocks: NDArray[np.float32], compression: Compression) -> NDArray[np.uint8]:
    """Round blocks to bytes, a row for each block; with a scale, except for bf16."""
    if compression == "bf16":
        bits = blocks.view(np.uint32)
        nearest_even = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        short = np.where(np.isnan(blocks), 0x7FC0, nearest_even).astype(np.uint16)
        return short.view(np.uint8)
    scales = np.abs(blocks).max(1, keepdims=True)
    is_usable = np.isfinite(scales) & (scales > 0)
    # A block with a NaN or an infinite number has a scale that makes all of it NaN.
    scaled = np.divide(blocks, scales, out=np.zeros_like(blocks), where=is_usable)
    codes = (
        np.rint(scaled * np.float32(_LARGEST_INT8)).astype(np.int8)
        if compression == "int8"
        else scaled.astype(np.float16)
    )
    return np.concatenate([scales.view(np.uint8), codes.view(np.uint8)], 1)


def _decode(rows: NDArray[np.uint8], compression: Compression) -> NDArray[np.float32]:
    """Return the numbers of `_encode`, shape (blocks, block)."""
    rows = np.ascontiguousarray(rows)
    if compression == "bf16":
        return (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    scales, codes = rows[:, :4].copy().view(np.float32), rows[:, 4:].copy()
    is_int8 = compression == "int8"
    numbers = codes.view(np.int8 if is_int8 else np.float16).astype(np.float32)
    with np.errstate(invalid="ignore"):
        decoded: NDArray[np.float32] = scales * numbers
    if is_int8:
        decoded /= _LARGEST_INT8
    return decoded
