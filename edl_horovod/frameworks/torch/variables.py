"""Variables of the ring's state: tensors, or values that are stored elsewhere in another form.

Tensors are converted to and from NumPy's types and bytes.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.values import Array

_NUMPY_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    getattr(torch, name): np.dtype(getattr(ml_dtypes, name, name))
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128", "bfloat16"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
}
_TORCH_DTYPES = {dtype: torch_dtype for torch_dtype, dtype in _NUMPY_DTYPES.items()}


class TorchVariable:
    """A tensor of a model or its optimizer; implements `frameworks.values.Variable`.

    The tensor is changed in place, so other references to it see the new value. It may be on any
    device and have any memory format; values are C-contiguous arrays on the host.
    """

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        """Use a tensor as a variable.

        Args:
            name: Name of the variable in the ring's state.
            tensor: The tensor, which is shared, not copied.

        Raises:
            UserCodeError: The tensor cannot be stored in a checkpoint, or cannot be written to.
        """
        self.name = name
        self.tensor = tensor.detach()
        _require_storable(name, self.tensor)

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape; () for a scalar."""
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type in NumPy, or in ml_dtypes if NumPy has none."""
        return numpy_dtype(self.tensor.dtype)

    def numpy(self) -> NDArray[Any]:
        """A copy of the current value."""
        return to_numpy(self.tensor)

    def assign(self, value: NDArray[Any]) -> None:
        """Write a value of the same shape and type into the tensor."""
        assert np.shape(value) == self.shape, (self.name, np.shape(value), self.shape)
        self.tensor.copy_(from_numpy(np.asarray(value, self.dtype)))


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Return NumPy's type for a type of PyTorch."""
    return _NUMPY_DTYPES[dtype]


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Copy a tensor of any type, device and memory format to an array."""
    host = bytes_of(tensor).cpu().numpy()
    copy = np.empty(tuple(tensor.shape), numpy_dtype(tensor.dtype))
    copy.reshape(-1).view(np.uint8)[:] = host
    return copy


def from_numpy(array: NDArray[Any]) -> torch.Tensor:
    """Convert an array to a tensor on the host, which may share the array's memory."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if not flat.flags.writeable:
        # PyTorch does not support read-only memory.
        flat = flat.copy()
    return torch.from_numpy(flat).view(_TORCH_DTYPES[array.dtype]).reshape(array.shape)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes in C order, with one axis; a view if the tensor is contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


class LiveVariable(Array):
    """A variable whose value functions read from and write to another place."""

    def __init__(
        self,
        read: Callable[[], ArrayLike],
        write: Callable[[NDArray[Any]], None],
        dtype: Any = np.float64,
    ) -> None:
        """Create the variable.

        Args:
            read: Returns the current value, always with the same shape.
            write: Stores a new value.
            dtype: NumPy's type of the value.
        """
        super().__init__(np.array(read(), dtype))
        self._read, self._write = read, write

    def numpy(self) -> NDArray[Any]:
        """A copy of the current value."""
        return np.array(self._read(), self.dtype)

    def assign(self, value: ArrayLike) -> None:
        """Write a value of the same shape."""
        super().assign(value)
        self._write(super().numpy())


def _require_storable(name: str, tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise UserCodeError(
            f"{name!r} is a sparse tensor, but a checkpoint can store only dense ones.",
            received=str(tensor.layout),
            hint="If training does not change it, make it a buffer with persistent=False:"
            " self.register_buffer(name, tensor, persistent=False). Otherwise make it dense.",
        )
    if tensor.dtype not in _NUMPY_DTYPES:
        raise UserCodeError(
            f"{name!r} has a type that a checkpoint cannot store.",
            received=str(tensor.dtype),
            hint=f"Use one of {', '.join(str(dtype)[6:] for dtype in _NUMPY_DTYPES)}.",
        )
    if any(size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True)):
        raise UserCodeError(
            f"Several elements of {name!r} share the same memory, as after expand(), so no value"
            " can be written to it.",
            received=f"shape {list(tensor.shape)}, strides {list(tensor.stride())}",
            hint="Write .expand(...).clone().",
        )
