"""What starts with every job starts soon: it imports nothing that only the ranks need."""

import pytest

from tests.programs import python


@pytest.mark.parametrize(
    "module", ["edl_horovod.supervisor.run", "edl_horovod.coordinator.__main__"]
)
def test_neither_launcher_nor_coordinator_imports_numpy(module):
    code = f"import sys, {module}; print(*sorted({{'numpy', 'tensorflow'}} & set(sys.modules)))"
    assert python(code) == "\n"
