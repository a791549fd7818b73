"""`edl sql`: run SQL statements from the command, a file or stdin, and print their results."""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edl_horovod import api
from edl_horovod.cli.arguments import VerbParser, config_files, packages_of
from edl_horovod.config.schema import JobConfig
from edl_horovod.displays.terminal import open_terminal
from edl_horovod.errors import ConfigError
from edl_horovod.files import json_text
from edl_horovod.job import log

if TYPE_CHECKING:
    from rich.console import Console

    from edl_horovod.sql.session import Session
    from edl_horovod.sql.statements import Result
    from edl_horovod.supervisor.run import JobResult

_LEAST_WIDTH = 30
"""To what a long text in a table on a terminal may be wrapped."""
_SETTING = re.compile(r"\+{0,2}[\w./@-]+=")
_EXAMPLES = """\
settings:
  db=URL       the database, as sqlite:///hr.db; without it the variable EDL_DB, which is the place
               for a URL with a password
  models=DIR   folder of the trained models; else ~/.local/share/edl_horovod/models
  key=value    any other setting of a job, as launch.np=2: see edl train --help

examples:
  edl sql "SELECT name, role, salary FROM employee TRAIN regressor.DNN
      WITH hidden_units=[10, 100, 20, 5], learning_rate=0.01 INTO my_trained_model" db=sqlite:///hr.db
  edl sql "SELECT name, role FROM testdata PREDICT testdata.predicted_salary
      USING my_trained_model" db=sqlite:///hr.db
  edl sql "SHOW MODELS" db=sqlite:///hr.db -o json
  edl sql db=sqlite:///hr.db        (a prompt: statements over several lines, completion, history)
  edl sql -f nightly.sql db=sqlite:///hr.db launch.np=2
"""


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl sql`.

    Raises:
        ConfigError: There is no statement, or more than one text of them.
        MissingDependency: The packages of the extra are not installed.
    """
    usage = '["STATEMENT; ..."] [-f FILE] [-o table|json] [--picture FILE] [--dry-run] [-q]\n'
    usage += f"{' ' * 15}[--debug] [--config-dir DIR] [--config-name NAME] db=URL [key=value ...]"
    parser = VerbParser(verb, summary, usage, epilog=lambda: _EXAMPLES, config_class=JobConfig)
    parser.add_file("-f", "--file", help="read the statements from this file")
    parser.add_file("--picture", help="draw the result of an EXPLAIN: .png, .svg or .pdf")
    parser.add_format()
    parser.add_dry_run("show the settings of the jobs that statements would start, and stop")
    parser.add_quiet()
    parser.add_config_files()
    flags, words = parser.parse_with_settings(argv)
    if flags.cfg:
        raise ConfigError(
            "--cfg shows the settings of one job.",
            received="--cfg",
            hint="--dry-run shows those of the jobs that statements would start.",
        )
    texts = [word for word in words if not _SETTING.match(word)]
    text = _text(texts, flags.file)
    with packages_of("sql", verb=verb):
        from edl_horovod.sql import prompt
        from edl_horovod.sql.session import open_session
        from edl_horovod.sql.settings import read_settings
        from edl_horovod.supervisor.forks import WarmServer
    overrides = [word for word in words if _SETTING.match(word)]
    settings = read_settings(overrides, {}, config_files(flags))
    log.setup("edl", level="error" if flags.quiet else "warning")
    show = _print_json if flags.format == "json" else _print_table

    def run_job(config: JobConfig) -> "JobResult":
        with open_terminal(is_quiet=flags.quiet) as on_events:
            log.setup("edl", level="error" if flags.quiet else config.log_level)
            return api.run(config, on_events=on_events, warm=warm)

    def tell(sentence: str) -> None:
        if not flags.quiet:
            print(sentence, file=sys.stderr, flush=True)

    with (
        WarmServer() as warm,
        open_session(settings, run_job, tell=tell, is_dry_run=flags.dry_run) as session,
    ):
        if text is not None:
            _run_all(session, text, show, flags.picture)
            return 0
        if flags.picture:
            raise ConfigError("--picture needs an EXPLAIN statement in the command or in a file.")
        prompt.run_prompt(session, show, lambda error: print(f"error: {error}", file=sys.stderr))
    return 0


def _run_all(
    session: "Session", text: str, show: Callable[["Result"], None], picture: Path | None
) -> None:
    from edl_horovod.sql import metrics
    from edl_horovod.sql.statements import Explain

    statements = session.parse(text)
    if not statements:
        raise ConfigError("There is no statement.", hint='Write edl sql "SELECT ...", or -f FILE.')
    if picture is not None:
        num_drawn = sum(isinstance(statement, Explain) for statement in statements)
        if num_drawn != 1:
            raise ConfigError(
                "--picture needs exactly one EXPLAIN statement.",
                received=f"{num_drawn} EXPLAIN statements",
                hint="Run that statement alone.",
            )
        metrics.require_drawing(picture)
    for statement in statements:
        result = session.run(statement)
        show(result)
        if picture is not None and result.importances:
            metrics.draw(result.importances, picture, title=result.model)


def _text(texts: Sequence[str], file: Path | None) -> str | None:
    """The text of the statements: a word of the command, a file, or stdin; None for the prompt."""
    if len(texts) + (file is not None) > 1:
        raise ConfigError(
            "The statements come from one place: one word of the command, or -f FILE.",
            received=" and ".join([*map(repr, texts), *([f"-f {file}"] if file else [])]),
            hint="Put the statements in quotes, so that the shell leaves them one word.",
        )
    if texts:
        return texts[0]
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as e:
            raise ConfigError("The file is not text in UTF-8.", received=f"-f {file}") from e
    return None if sys.stdin.isatty() else sys.stdin.read()


def _print_json(result: "Result") -> None:
    """One JSON object a line, one line a statement."""
    names = ("columns", "rows", "has_more_rows", "message", "model", "metrics")
    printed = {name: getattr(result, name) for name in names}
    print(json_text.dumps(printed, default=_plain, ensure_ascii=False), flush=True)


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)


def _print_table(result: "Result") -> None:
    from rich.console import Console

    if result.columns:
        # A table in a file is not cut at an arbitrary width.
        console = Console(width=None if sys.stdout.isatty() else _width(result.rows))
        if _is_readable(result, console.width):
            _print_rows(result, console)
        else:
            _print_expanded(result, console)
        more = "more than " if result.has_more_rows else ""
        print(f"{more}{len(result.rows):,} row{'' if len(result.rows) == 1 else 's'}")
    if result.message:
        print(result.message)
    if result.metrics and not result.columns:
        print(", ".join(f"{name} {value:.6g}" for name, value in result.metrics.items()))
    sys.stdout.flush()


def _is_readable(result: "Result", width: int) -> bool:
    """Whether the columns fit beside each other, where only long texts become narrower."""
    from rich.cells import cell_len

    columns = zip(result.columns, *(map(_cell, row) for row in result.rows), strict=True)
    widths = (min(max(map(cell_len, cells)), _LEAST_WIDTH) for cells in columns)
    return sum(column_width + 2 for column_width in widths) <= width


def _print_rows(result: "Result", console: "Console") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at, name in enumerate(result.columns):
        is_number = all(isinstance(row[at], int | float | None) for row in result.rows)
        table.add_column(Text(name), justify="right" if is_number else "left")
    for row in result.rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    console.print(table)


def _print_expanded(result: "Result", console: "Console") -> None:
    """A line for each value, as psql's expanded display has it."""
    from rich.table import Table
    from rich.text import Text

    if not result.rows:
        console.print(Text(", ".join(result.columns)))
    for number, row in enumerate(result.rows, start=1):
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(max_width=console.width // 2, overflow="fold")
        table.add_column()
        table.add_column(overflow="fold")
        for name, value in zip(result.columns, row, strict=True):
            table.add_row(Text(name), "|", Text(_cell(value)))
        console.print(Text(f"-[ row {number:,} ]".ljust(console.width, "-")))
        console.print(table)


def _width(rows: Iterable[Sequence[Any]]) -> int:
    longest = max((sum(len(_cell(value)) + 3 for value in row) for row in rows), default=0)
    return max(longest + 200, 200)


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value.hex() if isinstance(value, bytes) else str(value)
