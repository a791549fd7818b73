"""Tensors as the ring's state has them: a name, a shape, NumPy's type, and the bits."""

from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from edl_horovod.errors import UserCodeError

__all__ = ["TorchVariable", "bytes_of", "from_numpy", "numpy_dtype", "to_numpy"]

_NUMPY_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.float16: np.dtype(np.float16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e4m3fnuz: np.dtype(ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: np.dtype(ml_dtypes.float8_e5m2fnuz),
    torch.float8_e8m0fnu: np.dtype(ml_dtypes.float8_e8m0fnu),
}
_TORCH_DTYPES = {dtype: torch_dtype for torch_dtype, dtype in _NUMPY_DTYPES.items()}


class TorchVariable:
    """A tensor of a model or of its optimizer; see `frameworks.values.Variable`.

    The tensor is changed in place, so whoever else holds it sees the new value. It may be on any
    device and of any memory format; values come and go as C-contiguous arrays on the host.
    """

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        """Take a tensor.

        Args:
            name: Of the variable in the ring's state.
            tensor: What holds the value from now on, of any number of dimensions.

        Raises:
            UserCodeError: It is no array of numbers that can be stored and written to.
        """
        self.name = name
        self.tensor = tensor.detach()
        _require_storable(name, self.tensor)

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's sizes; () for a scalar."""
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's type; that of ml_dtypes where NumPy has none."""
        return numpy_dtype(self.tensor.dtype)

    def numpy(self) -> NDArray[Any]:
        """A copy of the present value."""
        return to_numpy(self.tensor)

    def assign(self, value: NDArray[Any]) -> None:
        """Write a value of the same shape and type into the tensor."""
        assert np.shape(value) == self.shape, (self.name, np.shape(value), self.shape)
        self.tensor.copy_(from_numpy(np.asarray(value, self.dtype)))


def _require_storable(name: str, tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise UserCodeError(
            f"{name!r} is a sparse tensor, and a checkpoint holds dense ones.",
            received=str(tensor.layout),
            cure="If training leaves it as it is, make it a buffer with persistent=False:"
            " self.register_buffer(name, tensor, persistent=False). Else keep it dense.",
        )
    if tensor.dtype not in _NUMPY_DTYPES:
        raise UserCodeError(
            f"{name!r} is of a type of numbers that a checkpoint cannot hold.",
            received=str(tensor.dtype),
            cure=f"Keep it as one of {', '.join(str(dtype)[6:] for dtype in _NUMPY_DTYPES)}.",
        )
    if any(size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True)):
        raise UserCodeError(
            f"{name!r} holds the same number in several places, as expand() gives it, so no value"
            " can be written into it.",
            received=f"shape {list(tensor.shape)}, strides {list(tensor.stride())}",
            cure="Write .expand(...).clone().",
        )


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """NumPy's type for one of PyTorch's."""
    return _NUMPY_DTYPES[dtype]


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """A copy of a tensor's value, whatever its type, device and memory format."""
    host = bytes_of(tensor).cpu().numpy()
    copy = np.empty(tuple(tensor.shape), numpy_dtype(tensor.dtype))
    copy.reshape(-1).view(np.uint8)[:] = host
    return copy


def from_numpy(array: NDArray[Any]) -> torch.Tensor:
    """A tensor on the host with an array's value; it may share the array's memory."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if not flat.flags.writeable:
        # PyTorch knows no memory that must not be written to.
        flat = flat.copy()
    return torch.from_numpy(flat).view(_TORCH_DTYPES[array.dtype]).reshape(array.shape)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a value in C order, as one row; a view where the tensor is in that order."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
