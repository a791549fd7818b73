"""Settings that are for another framework are refused, not passed over."""

import pytest

from edl_horovod.errors import ConfigError
from tests.later import LATER

if LATER:
    from edl_horovod.frameworks.keras.framework import FRAMEWORK


def test_processes_that_make_examples_are_refused():
    with pytest.raises(ConfigError, match="processes=2"):
        FRAMEWORK.batches(None, None, None, None, prefetch=1, processes=2)
