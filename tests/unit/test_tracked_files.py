import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "tracked_files.py"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def check(tmp_path):
    """Check a repository that tracks these files; returns the exit code and what was printed."""

    def run(**files):
        subprocess.run(["git", "init", "-q", tmp_path], check=True)
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
        subprocess.run(["git", "-C", tmp_path, "add", "."], check=True)
        return script(tmp_path)

    return run


def script(folder):
    done = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_texts_and_pictures_are_taken(check):
    code, printed = check(text="Größe".encode(), empty=b"", picture=PNG + b"\0\xff")
    assert code == 0
    assert "3 tracked files" in printed


@pytest.mark.parametrize("content", [b"PK\3\4\0\0", b"\xff\xfe", b"text\0"])
def test_a_binary_that_is_no_picture_is_refused(check, content):
    code, printed = check(planted=content, text=b"x")
    assert code == 1
    assert printed.startswith("planted: The file is a binary")
    assert printed.count("\n") == 1


@pytest.mark.parametrize("start", [b"", PNG])
def test_a_large_file_is_refused_whatever_it_is(check, start):
    code, printed = check(planted=start.ljust(500_001, b"x"))
    assert code == 1
    assert printed.startswith("planted: ")
    assert "Received: 500001" in printed


def test_a_file_that_is_not_tracked_is_nobodys_business(check, tmp_path):
    check(text=b"x")
    (tmp_path / "built").write_bytes(b"\0" * 600_000)
    assert script(tmp_path)[0] == 0


def test_this_repository_has_neither_and_sources_without_a_repository_are_not_checked(tmp_path):
    code, printed = script(SCRIPT.parents[1])
    assert code == 0, printed
    code, printed = script(tmp_path)
    assert code == 0
    assert "not checked" in printed
