"""What starts with every job starts soon: it imports nothing that only the ranks need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import edl_horovod

ROOT = str(Path(edl_horovod.__file__).parent.parent)


@pytest.mark.parametrize(
    "module", ["edl_horovod.supervisor.run", "edl_horovod.coordinator.__main__"]
)
def test_neither_launcher_nor_coordinator_imports_numpy(module):
    code = f"import sys, {module}; print(*sorted({{'numpy', 'tensorflow'}} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": ROOT},
    )
    assert run.stdout == "\n"
