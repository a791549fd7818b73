from pathlib import Path

import pytest

from tests.programs import run_python

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "plain_words.py"
PLAIN = '''
def step_of(text: str) -> int:
    """The number of a checkpoint's step."""
    name, _, number = text.partition("-")  # What stands before the hyphen is the same for all.
    return int(number)
'''


def check(folder, text):
    (folder / "module.py").write_text(text)
    done = run_python(SCRIPT, folder)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_plain_names_and_docstrings_pass(tmp_path):
    code, printed = check(tmp_path, PLAIN)
    assert code == 0, printed


@pytest.mark.parametrize(
    "text",
    [
        "found = 1\n",
        "def f(each):\n    pass\n",
        "numbers = [one for one in range(3)]\n",
        'SIZE = 3\n"""Of a batch."""\n',
        'def f():\n    """See base.Step."""\n',
        "x = 1  # Nobody reads it anew.\n",
    ],
)
def test_what_says_nothing_is_refused_with_its_line(tmp_path, text):
    code, printed = check(tmp_path, f"{PLAIN}\n\n{text}")
    assert code == 1
    assert {int(line.split(":")[1]) for line in printed.splitlines()} <= {8, 9}
