"""Fill the marks of the pages with what the code says: commands, settings, events, errors, Python.

A line `<!-- generated: NAME -->` of a page stands for what the function of that name below returns,
as Markdown; words after the name are its arguments. Where a page is read as it is, without the
site, the mark is not shown.
"""

import contextlib
import inspect
import io
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import edl_horovod
from edl_horovod.cli.arguments import default_text
from edl_horovod.cli.main import VERBS, errors_of_verbs, main
from edl_horovod.config import fields
from edl_horovod.config.schema import ImageConfig, JobConfig, PrepareConfig
from edl_horovod.config.tasks import TASKS
from edl_horovod.job import events as job_events

MARK = re.compile(r"^<!-- generated: (\w+)(?: (.*))? -->$", re.MULTILINE)
PAGE_ABOVE = re.compile(r"\]\(((?:\.\./)+[^)#]+\.md)")
"""A link to a page above this one. MyST takes each for one of the site, unless told that it is a
file, of which the site has a copy."""
HERE = Path(__file__).resolve().parent
CONTENTS = {
    "Tutorials": ("tutorials/*",),
    "How-to": ("how-to/*", "how-to/coming-from/*"),
    "Reference": ("reference/*",),
    "Explanation": ("explanation/*",),
    "Benchmarks": ("benchmarks*",),
    "Earlier versions": ("changelog-*",),
    "Decisions": ("adr/*",),
}
"""The menu of the site: its captions, and the pages below each."""
CONFIGS = {(*TASKS.built_in,): JobConfig, ("prepare",): PrepareConfig, ("image",): ImageConfig}
"""The verbs with settings, and the class that has them."""
UNITS = (
    *("bytes", "checkpoints", "CPUs", "evaluations", "files", "GPUs", "lanes", "nodes", "parts"),
    *("passes", "processes", "ranks", "records", "seconds", "share", "steps", "threads", "workers"),
)
"""The meaning of a number names its unit in its first words, where it has one."""
FIRST_WORDS = 5
BENCHMARK = ("Event", "Side", "Min / median / max", "Of", "To reach", "Reached", "Behind it")
"""The columns of the tables of benchmarks."""
RESULTS = (
    *("supervisor.run.JobResult", "launch.target.SubmittedJob", "preparation.PrepareResult"),
    *("sweeps.run.SweepResult", "image.BuiltImage", "sql.statements.Result", "launch.jobs.JobRow"),
    *("launch.jobs.JobStatus", "launch.jobs.LogLine", "launch.jobs.EventLine"),
)
"""What the calls return."""


def setup(app: Any) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True}


def _fill(app: Any, page: str, source: list[str]) -> None:
    parts = (contents, commands, settings, errors, events, api, measured)
    by_name = {part.__name__: part for part in parts}
    text = MARK.sub(lambda mark: by_name[mark[1]](*shlex.split(mark[2] or "")), source[0])
    folder = Path(app.env.doc2path(page)).parent

    def copied(link: re.Match[str]) -> str:
        is_page = (folder / link[1]).resolve().is_relative_to(HERE)
        return link[0] if is_page else f"](path:{link[1]}"

    source[0] = PAGE_ABOVE.sub(copied, text)


def contents() -> str:
    """The menu, which shows every page."""
    return "\n".join(
        "\n".join(["```{toctree}", ":hidden:", ":glob:", f":caption: {caption}", "", *pages, "```"])
        for caption, pages in CONTENTS.items()
    )


def commands() -> str:
    """The help of every verb; the settings have a page of their own."""
    with_settings = {verb for verbs in CONFIGS for verb in verbs}
    texts = []
    for verb in sorted((*TASKS.built_in, *VERBS.built_in)):
        text = _help_of(verb)
        if verb in with_settings:
            text = re.sub(r"^settings:\n.*?\n\n", "", text, flags=re.DOTALL | re.MULTILINE)
        texts.append(f"## edl {verb}\n\n```text\n{text.strip()}\n```\n")
    return "\n".join(texts)


def _help_of(verb: str) -> str:
    os.environ["COLUMNS"] = "100"
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        main([verb, "--help"])
    return printed.getvalue()


def settings() -> str:
    """Every setting with its type, default, unit and meaning, a table for each section."""
    return "\n".join(
        line for verbs, schema in CONFIGS.items() for line in _settings_lines(verbs, schema)
    )


def _settings_lines(verbs: Sequence[str], schema: type) -> Iterator[str]:
    yield f"## {', '.join(f'edl {verb}' for verb in verbs)}\n"
    yield from (f"`edl {verb}` needs {_codes(fields.needed(verb))}.\n" for verb in verbs)
    sections: dict[str, list[fields.Setting]] = {}
    for setting in fields.settings(schema):
        if setting.key not in fields.SET_BY_US:
            sections.setdefault(setting.key.rpartition(".")[0], []).append(setting)
    for section, rows in sections.items():
        if section:
            yield f"\n### {section}\n\n{inspect.getdoc(rows[0].owner)}\n"
        lines = [
            (
                f"`{row.key}`",
                fields.type_name(row.annotation),
                f"`{default_text(row.default)}`",
                unit_of(row),
                row.meaning,
            )
            for row in rows
        ]
        yield _table(("setting", "type", "default", "unit", "meaning"), lines)


def unit_of(setting: fields.Setting) -> str:
    """The unit of a number, which is among the first words of its meaning."""
    if not re.search("int|float", fields.type_name(setting.annotation)):
        return ""
    words = re.findall(r"\w+", setting.meaning)[:FIRST_WORDS]
    spoken = {unit.lower(): unit for unit in UNITS}
    return next((spoken[word.lower()] for word in words if word.lower() in spoken), "")


def errors() -> str:
    """The exit codes, and the errors that have them in Python."""
    rows = [(kind.exit_code, said, f"`{kind.__name__}`") for kind, said in errors_of_verbs()]
    return _table(("code", "meaning", "in Python"), [(0, "Success.", ""), *rows])


def events() -> str:
    """The kinds of events and their fields."""
    texts = fields.meanings_in(job_events.__name__)
    parts = []
    for kind in job_events.Event.__subclasses__():
        rows = [
            (
                f"`{name}`",
                f"`{inspect.formatannotation(type_)}`",
                texts[kind.__name__].get(name, ""),
            )
            for name, type_ in kind.__annotations__.items()
        ]
        parts.append(f"## {kind.kind}\n\n`{kind.__name__}`: {inspect.getdoc(kind)}\n")
        parts.append(_table(("field", "type", "meaning"), rows) + "\n")
    return "\n".join(parts)


def api() -> str:
    """The public names and the results of calls, from their docstrings."""
    names = [f"edl_horovod.{name}" for name in edl_horovod.__all__ if not name.startswith("_")]
    names[names.index("edl_horovod.sql")] = "edl_horovod.sql.api.sql"
    results = [f"edl_horovod.{name}" for name in RESULTS]
    return f"## Names\n\n{_autodoc(names)}\n\n## Results\n\n{_autodoc(results)}\n"


def measured(page: str, heading: str) -> str:
    """What several sides did, from a part of a page of benchmarks; each side has a column."""
    text = (HERE / page).read_text()
    part = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    results: dict[str, dict[str, str]] = {}
    for row in part.splitlines():
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        if len(cells) == len(BENCHMARK) and cells[0] not in (BENCHMARK[0], "---"):
            event, side, spread, *_ = cells
            results.setdefault(event, {})[side] = spread
    if not results:
        raise ValueError(f"The page has no such part with results. Received: {page}, {heading}")
    compared = {event: row for event, row in results.items() if len(row) > 1 or "steps" in event}
    sides = list(dict.fromkeys(side for row in compared.values() for side in row))
    lines = [[event, *(row.get(side, "") for side in sides)] for event, row in compared.items()]
    dates = " and ".join(sorted(set(re.findall(r"Measured (\S+) ", part))))
    link = f"[{heading}](../{page}#{heading.lower().replace(' ', '-')})"
    table = _table((BENCHMARK[0], *sides), lines)
    return f"{link}, measured {dates}; {BENCHMARK[2].lower()}.\n\n{table}"


def _autodoc(names: Sequence[str]) -> str:
    lines = ["```{eval-rst}"]
    for name in names:
        module, _, attribute = name.rpartition(".")
        is_class = inspect.isclass(getattr(import_module(module), attribute))
        lines += [f".. auto{'class' if is_class else 'function'}:: {name}"]
        lines += ["   :members:", "   :undoc-members:", ""] if is_class else [""]
    return "\n".join([*lines, "```"])


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(_cell(str(cell)) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    """A text in a table: what Markdown would read otherwise is escaped, outside of code."""
    parts = " ".join(text.split()).split("`")
    parts[::2] = [re.sub(r"([*<\[])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts).replace("|", r"\|")


def _codes(keys: Sequence[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys)
