"""Several arrays against several others, as the weights of two trainings."""

import numpy as np


def assert_close(arrays, expected, **tolerance):
    """Each array is the expected one, as `numpy.testing.assert_allclose` has it."""
    for array, other in zip(arrays, expected, strict=True):
        np.testing.assert_allclose(array, other, **tolerance)
