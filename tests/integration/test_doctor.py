"""`edl doctor` with a real ring."""

import json
import re
import subprocess
import sys

from tests.frameworks import HALVES, is_there


def test_two_ranks_of_each_framework_add_their_numbers():
    command = [sys.executable, "-m", "edl_horovod", "doctor", "frameworks", "ring", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    set_up = [name for name, half in HALVES.items() if is_there(half)]
    rings = [it["text"] for it in found if it["check"] == "ring"]
    assert [text.partition(":")[0] for text in rings] == set_up
    assert all(
        re.fullmatch(r"\w+: two ranks of Horovod.* patch \d+ add up to 3", it) for it in rings
    )
