"""The site of docs/ builds without network and without a warning, and works from files alone."""

import importlib.util
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import edl_horovod
from edl_horovod.cli.main import VERBS, errors_of_verbs
from edl_horovod.config.fields import SET_BY_US, settings
from edl_horovod.config.schema import ImageConfig, JobConfig, PrepareConfig
from edl_horovod.config.tasks import TASKS
from edl_horovod.job.events import Event

DOCS = Path(__file__).parents[2] / "docs"
BUILD = """
import socket, sys
from sphinx.cmd.build import main

def refuse(*_):
    raise OSError("the site is built without network")

socket.socket.connect = socket.getaddrinfo = refuse
sys.exit(main(sys.argv[1:]))
"""
LOADING = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src")}
CONFIGS = (JobConfig, PrepareConfig, ImageConfig)


class Page(HTMLParser):
    """The anchors of a page, where its links lead, and what it loads."""

    def __init__(self, path):
        super().__init__()
        self.path = path
        self.anchors, self.links, self.loads = {""}, [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.anchors.add(values.get("id") or "")
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        self.loads += [url for name, url in attrs if url and (tag, name) in LOADING]


def broken_links(pages):
    """Links within the site whose file or anchor is not there."""
    by_path = {page.path: page for page in pages}
    for page in pages:
        for link in page.links:
            url = urlsplit(link)
            if url.scheme:
                continue
            target = (page.path.parent / unquote(url.path)).resolve() if url.path else page.path
            known = by_path.get(target)
            if not target.is_file() or (known and unquote(url.fragment) not in known.anchors):
                yield f"{page.path}: {link}"


def foreign_parts(pages, folder):
    """Scripts, styles, pictures and fonts that are not of the site's folder."""
    for page in pages:
        yield from (f"{page.path}: {url}" for url in page.loads if urlsplit(url).netloc)
    for style in folder.rglob("*.css"):
        loaded = re.findall(r"(?:url\(|@import\s*)[\"']?(?:https?:)?//[^\"')]+", style.read_text())
        yield from (f"{style}: {url}" for url in loaded)


def pages_with(term, folder):
    """The names of the pages that the index of the search has for a word."""
    text = (folder / "searchindex.js").read_text()
    index = json.loads(text[text.index("{") : text.rindex("}") + 1])
    hits = [index[part].get(term, []) for part in ("terms", "titleterms")]
    numbers = [at for value in hits for at in (value if isinstance(value, list) else [value])]
    return {index["docnames"][at] for at in numbers}


@pytest.mark.further
def test_the_site_builds_without_network_and_works_from_files(tmp_path):
    folder = tmp_path / "site"
    command = [sys.executable, "-c", BUILD, "-q", "-E", "-W", "--keep-going", DOCS, folder]
    built = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert built.returncode == 0, built.stderr

    pages = [Page(path) for path in folder.rglob("*.html")]
    assert len(pages) > 70
    assert list(broken_links(pages)) == []
    assert list(foreign_parts(pages, folder)) == []

    # A page of file:// can load a script, but neither fetch an index nor a page for an excerpt.
    search = next(page for page in pages if page.path.name == "search.html")
    assert "searchindex.js" in search.loads
    options = (folder / "_static" / "documentation_options.js").read_text()
    assert re.search(r"SHOW_SEARCH_SUMMARY: false", options)
    assert "how-to/horovodrun" in pages_with("horovodrun", folder)

    reference = folder / "reference"
    shown = (reference / "settings.html").read_text()
    for setting in (setting for config in CONFIGS for setting in settings(config)):
        assert setting.key in SET_BY_US or f">{setting.key}<" in shown, setting.key
    shown = (reference / "commands.html").read_text()
    for verb in (*TASKS.built_in, *VERBS.built_in):
        assert f'id="edl-{verb}"' in shown, verb
    shown = (reference / "events.html").read_text()
    for kind in Event.__subclasses__():
        assert f'id="{kind.kind}"' in shown, kind
    shown = (reference / "python-api.html").read_text()
    for name in edl_horovod.__all__:
        assert name == "__version__" or re.search(rf'id="edl_horovod\.(\w+\.)*{name}"', shown), name
    shown = (reference / "cli.html").read_text()
    for kind, _ in errors_of_verbs():
        assert f">{kind.__name__}<" in shown, kind
    shown = (folder / "explanation" / "comparison.html").read_text()
    tables = re.findall(r"<table.*?</table>", shown, re.DOTALL)
    measured = [table for table in tables if re.search(r"\d s / [\d.]+ s / [\d.]+ s", table)]
    assert any("torchft" in table for table in measured)


def test_a_number_has_the_unit_that_its_name_has():
    spec = importlib.util.spec_from_file_location("from_code", DOCS / "from_code.py")
    from_code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(from_code)
    named = {
        setting.key: (setting.key.rpartition("_")[2], from_code.unit_of(setting))
        for config in CONFIGS
        for setting in settings(config)
        if re.search(r"_(seconds|bytes|steps)$", setting.key)
    }
    assert len(named) > 15
    assert named.pop("train.accumulate_steps")[1] == "parts"
    assert {key: pair for key, pair in named.items() if pair[0] != pair[1]} == {}
