"""How much memory there is."""

import os

import pytest

from edl_horovod.files.memory import total_bytes

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("memory.max", "1048576\n", 1 << 20),
        ("memory.max", "max\n", MACHINE),
        ("memory/memory.limit_in_bytes", "1048576\n", 1 << 20),
        ("memory/memory.limit_in_bytes", f"{1 << 62}\n", MACHINE),
        ("memory/other", "", MACHINE),
    ],
)
def test_the_control_group_limits_what_the_machine_has(tmp_path, name, text, expected):
    (tmp_path / "memory").mkdir()
    (tmp_path / name).write_text(text)
    assert total_bytes(tmp_path) == expected
