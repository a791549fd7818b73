"""The hosts file: `host:slots` lines."""

import pytest

from edl_horovod.errors import ConfigError
from edl_horovod.job import hosts


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", {}),
        ("\n  \n# nobody\n", {}),
        ("localhost:2", {"localhost": 2}),
        (" a:1 # first\nb:0\r\n", {"a": 1, "b": 0}),
        ("fe80::1:4\n", {"fe80::1": 4}),
    ],
)
def test_lines_are_hosts_and_slots(text, wanted):
    assert hosts.parse(text) == wanted


@pytest.mark.parametrize(
    "line", ["a", "a:", ":2", "a:-1", "a:1.5", "a: two", "a:²", "a:" + "9" * 5000]
)
def test_a_bad_line_is_named(line):
    with pytest.raises(ConfigError, match="Line 2 "):
        hosts.parse(f"fine:1\n{line}\n")


def test_what_was_written_is_read(tmp_path):
    wanted = {"worker-0": 2, "worker-1": 0}
    hosts.write(tmp_path / "hosts", wanted)
    assert hosts.read(tmp_path / "hosts") == wanted
    assert list(hosts.read(tmp_path / "hosts")) == list(wanted)
    assert [path.name for path in tmp_path.iterdir()] == ["hosts"]


def test_a_file_that_is_no_text_is_a_config_error(tmp_path):
    (tmp_path / "hosts").write_bytes(b"a:1\xff\xfe\n")
    with pytest.raises(ConfigError, match="UTF-8"):
        hosts.read(tmp_path / "hosts")
