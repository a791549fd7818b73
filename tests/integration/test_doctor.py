"""`edl doctor` with a real ring."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.frameworks import HALVES, NEEDS_KERAS, is_there


@pytest.mark.long
def test_two_ranks_of_each_framework_add_their_numbers():
    command = [sys.executable, "-m", "edl_horovod", "doctor", "frameworks", "ring", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)

    assert done.returncode == 0, done.stdout + done.stderr
    checks = json.loads(done.stdout)
    set_up = [name for name, half in HALVES.items() if is_there(half)]
    rings = [check["text"] for check in checks if check["check"] == "ring"]
    assert [text.partition(":")[0] for text in rings] == set_up
    assert all(
        re.fullmatch(r"\w+: two ranks of Horovod.* patch \d+ add up to 3", ring) for ring in rings
    )


@pytest.mark.long
@NEEDS_KERAS
def test_a_framework_that_cannot_be_imported_is_told_with_its_own_error(tmp_path):
    (tmp_path / "keras").mkdir()
    text = "raise ImportError('libcudart.so: cannot open shared object file')"
    (tmp_path / "keras" / "__init__.py").write_text(text)
    command = [sys.executable, "-m", "edl_horovod", "doctor", "ring", "--json"]
    variables = {**os.environ, "PYTHONPATH": f"{tmp_path}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=variables)

    assert done.returncode == 1, done.stdout + done.stderr
    levels = {check["level"]: check["text"] for check in json.loads(done.stdout)}
    assert "libcudart.so" in levels["FAIL"]
