"""CI's newcomer types README and CONTRIBUTING: every indented block, in order, as it is printed."""

import importlib.util
import re
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


def test_blocks_for_root_come_after_those_of_all_pages():
    walk = readme.walk_of([PAGE, "    fifth\n"])

    assert [block.kind for block in walk] == ["shell", "shell", "python", "shell", "root"]
    assert walk[-2].lines == ("fifth",)


@pytest.mark.parametrize("page", readme.PAGES)
def test_no_indented_line_of_our_pages_is_left_out(page):
    text = (ROOT / page).read_text()
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]

    assert [line.strip() for block in readme.blocks(text) for line in block.lines] == lines


def medians(event):
    """The middle one of the figures in each row of an event, by the side, on the page."""
    text = (ROOT / "docs" / "benchmarks-elastic.md").read_text()
    row = re.compile(rf"^\| {re.escape(event)} \| ([^|]+) \| [^/|]+ / ([^/|]+) / ", re.M)
    return dict(row.findall(text))


@pytest.mark.parametrize(
    ("label", "events"),
    [
        ("a worker joins", ["a worker joins: survivor's stall"]),
        ("a worker is killed", ["kill -9 of a worker: survivor's stall"]),
        (
            "completed steps",
            ["completed steps lost or redone, all events", "completed steps redone after a kill"],
        ),
    ],
)
def test_figures_of_the_readme_are_those_of_the_page(label, events):
    text = (ROOT / "README.md").read_text()
    _, *figures = re.search(rf"^\| {label}.*", text, re.M)[0].strip("| ").split(" | ")
    measured = {side: value for event in events for side, value in medians(event).items()}

    sides = ("edl_horovod", "plain Horovod", "TorchElastic")
    assert figures == [measured[side] for side in sides]


def test_links_of_the_front_pages_lead_somewhere():
    for page in (*readme.PAGES, "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md"):
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / page).read_text()):
            assert link.startswith("https://") or (ROOT / link).exists(), (page, link)


def test_help_fits_a_screen():
    printed = subprocess.check_output(
        ["make", "-s", "--no-print-directory", "help"], cwd=ROOT, text=True
    ).splitlines()

    assert len(printed) <= 24
    assert max(map(len, printed)) <= 100


def test_the_first_command_that_fails_ends_the_walk_with_its_exit_code(tmp_path):
    script = readme.script(["echo before", "(exit 3)", "touch after"])

    run = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)

    assert run.returncode == 3
    assert "before" in run.stdout
    assert not list(tmp_path.iterdir())
