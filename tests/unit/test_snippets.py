"""Each snippet of a page is run by a test, or listed with a reason; its commands exist anyway."""

import contextlib
import functools
import io
import re

import pytest

from edl_horovod.cli.main import VERBS, main
from edl_horovod.config.tasks import TASKS
from tests.snippets import NOT_RUN, PAGES, ROOT, WALKED, snippets_in

WITH_SETTINGS = {*TASKS.built_in, "prepare", "image"}
FILES_OF_SETTINGS = {"--config-dir", "--config-name"}
VERBS_OF_PAGES = {*TASKS.built_in, *VERBS.built_in}


@functools.cache
def all_snippets():
    return [snippet for page in PAGES for snippet in snippets_in(page)]


def commands_of(page):
    """Our commands on a page, each with its line."""
    return [
        (f"line {snippet.line}", words)
        for snippet in snippets_in(page)
        for words in snippet.commands
        if words[0] in VERBS_OF_PAGES
    ]


def test_every_snippet_is_run_or_listed_with_a_reason():
    missing = [
        f"{snippet.page}:{snippet.line}"
        for snippet in all_snippets()
        if not snippet.listed and snippet.page not in WALKED
    ]
    assert missing == [], "walk the page, or list the snippet with a reason, in tests/snippets.py"


@pytest.mark.parametrize("page", NOT_RUN)
def test_what_is_listed_is_there(page):
    texts = [snippet.text for snippet in all_snippets() if snippet.page == page]
    reasons = NOT_RUN[page]
    assert texts, "the page has no snippet"
    if isinstance(reasons, dict):
        for start in reasons:
            assert any(text.startswith(start) for text in texts), start
    for reason in reasons.values() if isinstance(reasons, dict) else [reasons]:
        for path in re.findall(r"(?:tests|\.ci)/[\w/]+(?:\.py)?", reason):
            assert (ROOT / path).exists(), path


def test_pages_that_are_walked_have_snippets_to_run():
    run = {snippet.page for snippet in all_snippets() if not snippet.listed}
    assert run == WALKED


def test_the_pages_have_commands():
    assert sum(len(commands_of(page)) for page in PAGES) > 60


@pytest.fixture(scope="module")
def flags_of():
    """The flags of a verb, from its help."""

    @functools.cache
    def flags(verb):
        with contextlib.redirect_stdout(io.StringIO()) as shown, pytest.raises(SystemExit):
            main([verb, "--help"])
        return set(re.findall(r"(?<![\w-])--?\w[\w-]*", shown.getvalue()))

    return flags


@pytest.mark.long(after=1)
@pytest.mark.parametrize("page", PAGES)
def test_the_flags_of_a_command_exist(page, flags_of):
    for line, (verb, *tail) in commands_of(page):
        flags = {word.partition("=")[0] for word in tail if re.match(r"--?[a-z]", word)}
        assert flags <= flags_of(verb), line


@pytest.mark.long(after=1)
@pytest.mark.parametrize("page", PAGES)
def test_the_settings_of_a_command_exist_and_have_such_values(page, capsys, monkeypatch):
    monkeypatch.setenv("HOME", "/home/anybody")
    for line, words in commands_of(page):
        if words[0] not in WITH_SETTINGS or FILES_OF_SETTINGS.intersection(words):
            continue
        verb, *tail = [word for word in words if word != "..." and not word.startswith("--dry-run")]
        if "-m" in tail:  # Each setting has several values, between commas.
            tail = [re.sub(r"=(?!tag)(.*?),(?![^\[]*\]).*", r"=\1", word) for word in tail]
            tail = [word for word in tail if not re.match(r"-m|hydra|[\w.]+=tag", word)]
        assert main([verb, *tail, "--cfg", "job"]) == 0, (line, capsys.readouterr().err)
