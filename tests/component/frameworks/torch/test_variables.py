import ml_dtypes
import numpy as np
import pytest

from edl_horovod.frameworks.values import Array, checksum, num_bytes
from tests.later import LATER

if LATER:
    import torch

    from edl_horovod.frameworks.torch.variables import TorchVariable, bytes_of

DTYPES = [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "bool",
    "uint8",
    "int64",
    "uint32",
    "complex64",
]


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (2, 3)])
def test_a_value_of_any_type_and_shape_comes_back_bit_by_bit(name, shape):
    dtype = getattr(torch, name)
    tensor = torch.arange(6).reshape(2, 3).to(dtype) if shape == (2, 3) else torch.ones(shape)
    tensor = tensor.to(dtype)
    variable = TorchVariable("a", tensor)
    value = variable.numpy()
    assert (variable.dtype.name, value.dtype.name) == (name, name)
    assert variable.shape == value.shape == shape
    assert num_bytes(variable.shape, variable.dtype) == tensor.numel() * tensor.element_size()
    other = TorchVariable("b", torch.zeros(shape, dtype=dtype))
    other.assign(value)
    assert torch.equal(bytes_of(other.tensor), bytes_of(tensor))


def test_bfloat16_keeps_what_no_float16_could():
    variable = TorchVariable("a", torch.tensor([1e30, -1.5], dtype=torch.bfloat16))
    assert variable.numpy().dtype == np.dtype(ml_dtypes.bfloat16)
    np.testing.assert_allclose(variable.numpy().astype(np.float32), [1e30, -1.5], rtol=1e-2)


def test_assigning_changes_the_parameter_itself_and_no_earlier_value():
    layer = torch.nn.Linear(2, 1)
    variable = TorchVariable("kernel", layer.weight)
    before = variable.numpy()
    copied = before.copy()
    variable.assign(np.full((1, 2), 7, np.float32))
    np.testing.assert_array_equal(before, copied)
    assert layer.weight.tolist() == [[7.0, 7.0]]
    assert layer.weight.requires_grad


def test_a_value_that_must_not_be_written_to_is_taken_and_left_alone():
    variable = TorchVariable("a", torch.zeros(3))
    value = Array(np.arange(3, dtype=np.float32)).numpy()
    variable.assign(value)
    variable.tensor += 1
    np.testing.assert_array_equal(value, [0, 1, 2])
    assert variable.numpy().tolist() == [1, 2, 3]


def test_the_order_of_a_tensor_in_memory_does_not_show():
    plain = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    pictures = plain.to(memory_format=torch.channels_last)
    variable = TorchVariable("kernel", pictures)
    np.testing.assert_array_equal(variable.numpy(), plain.numpy())
    variable.assign(plain.numpy() + 1)
    assert variable.tensor.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(pictures, plain + 1)
    assert checksum(bytes_of(pictures).numpy()) == checksum(plain.numpy() + 1)
