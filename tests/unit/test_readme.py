"""CI's newcomer types the README: every indented block, in order, as it is printed."""

import importlib.util
import subprocess
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("readme", ROOT / ".ci" / "readme.py")
readme = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(readme)

PAGE = textwrap.dedent("""\
    # A page

    Do this:

        first one   # with a comment

        second \\
            --option

    - a list
      goes on
        and is no block

    <!-- newcomer: fixture cp -r samples images -->

        third images

    <!-- newcomer: python -->

        import json
        print(json.dumps({"a": 'b'}))

    <!-- newcomer: root -->

        fourth
    """)


def typed(text):
    return [command for block in readme.blocks(text) for command in readme.commands(block)]


def test_each_block_is_taken_in_the_order_of_the_page():
    first, second, fixture, third, python, fourth = typed(PAGE)

    assert first == "first one   # with a comment"
    assert second.split() == ["second", "--option"]
    assert [fixture, third, fourth] == ["cp -r samples images", "third images", "fourth"]
    assert subprocess.check_output(["bash", "-c", python], text=True) == '{"a": "b"}\n'
    kinds = [block.kind for block in readme.blocks(PAGE)]
    assert kinds == ["shell", "shell", "python", "root"]


@pytest.mark.parametrize(
    "text",
    [
        "<!-- newcomer: sudo -->\n\n    command\n",
        "<!-- newcomer: fixture -->\n\n    command\n",
        "<!-- newcomer: root -->\n\nA paragraph.\n\n    command\n",
        "    command\n\n<!-- newcomer: root -->\n",
    ],
)
def test_a_mark_that_says_nothing_about_a_block_is_an_error(text):
    with pytest.raises(ValueError, match="Received"):
        readme.blocks(text)


def test_no_indented_line_of_our_readme_is_left_out():
    text = (ROOT / "README.md").read_text()
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]

    assert [line.strip() for block in readme.blocks(text) for line in block.lines] == lines


def test_the_first_command_that_fails_ends_the_walk_with_its_exit_code(tmp_path):
    script = readme.script(["echo before", "(exit 3)", "touch after"])

    run = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)

    assert run.returncode == 3
    assert "before" in run.stdout
    assert not list(tmp_path.iterdir())
