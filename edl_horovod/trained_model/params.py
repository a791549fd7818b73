"""The parameters of a model as files of named tensors, in the reference's layout."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from edl_horovod.errors import DataError, OutputError
from edl_horovod.frameworks.values import Variable, num_bytes
from edl_horovod.proto.trained_model_pb2 import Model, Tensor

MAX_FILE_BYTES = 1 << 30
"""Tensors are spread over files of about this size, in bytes."""
_MAX_MESSAGE_BYTES = (1 << 31) - 1
_MAX_TENSOR_BYTES = _MAX_MESSAGE_BYTES - (1 << 20)
_REFERENCE_DTYPE = "float32"


def write_params(
    folder: Path,
    variables: Mapping[str, Variable],
    *,
    version: int,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> list[str]:
    """Write `params-00000.pb` and as many more as it takes.

    Args:
        folder: Where to.
        variables: The model's weights, by name.
        version: Number of steps trained.
        max_file_bytes: Size of a file from which on the next one is begun, in bytes.

    Returns:
        The names of the files.

    Raises:
        OutputError: As for `require_writable`.
    """
    require_writable(variables)
    filenames: list[str] = []
    bytes_in_file = 0

    def begin_file() -> None:
        filenames.append(f"params-{len(filenames):05d}.pb")
        (folder / filenames[-1]).write_bytes(Model(version=version).SerializeToString())

    begin_file()
    for name, variable in variables.items():
        array = np.asarray(variable.numpy())
        if bytes_in_file and bytes_in_file + array.nbytes > max_file_bytes:
            begin_file()
            bytes_in_file = 0
        bytes_in_file += array.nbytes
        # Messages one after the other are one message with the parameters of all: so memory has to
        # hold one parameter at a time, and not the model several times over.
        with (folder / filenames[-1]).open("ab") as file:
            file.write(_serialized(name, array))
    return filenames


def require_writable(variables: Mapping[str, Variable]) -> None:
    """Look before a training whether all can be written after it.

    Raises:
        OutputError: One tensor alone is larger than a protobuf message may be.
    """
    for name, variable in variables.items():
        size = num_bytes(variable.shape, variable.dtype)
        if size > _MAX_TENSOR_BYTES:
            limit = f"a parameter file holds less than {_MAX_TENSOR_BYTES}"
            size_text = f"The parameter {name!r} takes {size} bytes"
            raise OutputError(f"{size_text}; {limit}. Split it into several variables.")


def read_params(files: Sequence[Path]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield each parameter of some files, one file in memory at a time.

    Raises:
        DataError: A file is missing or damaged.
    """
    for file in files:
        try:
            message = Model.FromString(file.read_bytes())
        except (OSError, DecodeError) as e:
            raise _damaged(file, str(e)) from e
        for name, tensor in message.param.items():
            try:
                value = _array(tensor)
            except (TypeError, ValueError) as e:
                raise _damaged(file, f"{name}: {e}") from e
            yield name, value


def _serialized(name: str, array: NDArray[Any]) -> bytes:
    """A `Model` of one parameter."""
    dtype = str(array.dtype)
    model = Model()
    tensor = model.param[name]
    tensor.dim.extend(array.shape)
    tensor.content = array.astype(_little_endian(array.dtype), order="C", copy=False).tobytes()
    tensor.dtype = "" if dtype == _REFERENCE_DTYPE else dtype
    return model.SerializeToString()


def _array(tensor: Tensor) -> NDArray[Any]:
    import ml_dtypes  # noqa: F401  Makes bfloat16 and its like known to NumPy.

    dtype = np.dtype(tensor.dtype or _REFERENCE_DTYPE)
    flat = np.frombuffer(tensor.content, dtype=_little_endian(dtype))
    return flat.astype(dtype, copy=False).reshape(tuple(tensor.dim))


def _little_endian(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.newbyteorder("<") if dtype.isbuiltin == 1 else dtype


def _damaged(file: Path, why: str) -> DataError:
    advice = "Copy the trained model again, or train it again."
    return DataError(f"The parameter file {file} is damaged: {why}. {advice}")
