"""The interactive prompt of `edl sql`, with multi-line statements, history and completion."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.output import Output

from edl_horovod.errors import ConfigError, DataError, EdlError, Interrupted, did_you_mean
from edl_horovod.sql.parser import is_complete
from edl_horovod.sql.session import Session
from edl_horovod.sql.statements import Result

KEYWORDS = (
    *("ALTER", "COLUMN", "DESCRIBE", "DROP", "EVALUATE", "EXISTS", "EXPLAIN"),
    *("FOR", "FROM", "GROUP", "HPARAM_CANDIDATES", "HPARAM_RANGE", "IF", "INTO", "JOBS"),
    *("JOIN", "KILL", "LABEL", "LIMIT", "LIVE", "LOG", "MODEL", "MODELS"),
    *("NOT", "ORDER", "PREDICT", "REPLACE", "SELECT", "SET", "SHOW"),
    *("TO", "TRAIN", "TRIALS", "USING", "WHERE", "WITH"),
)
_WORD = re.compile(r"[\w.]+")
_EXIT_COMMANDS = ("exit", "quit", "\\q", ".exit", ".quit")
_COMMAND_PREFIXES = ("\\", ".")
"""Prefixes of commands as in psql and sqlite3; no statement begins with them."""
_HELP = """\
A statement ends with a semicolon and may have several lines.
  SELECT ... TRAIN model [WITH ...] [COLUMN ...] [LABEL column] INTO name;
  SELECT ... PREDICT [table.column] USING name;
  SELECT ... EVALUATE name;    SELECT ... EXPLAIN name;
  SHOW MODELS;    DESCRIBE MODEL name;    SHOW JOBS;    KILL number;
  All other statements go to the database.
\\d or .tables lists the tables, and \\d TABLE or .schema TABLE the columns of one.
Tab completes names, Ctrl-C ends a statement, and \\q, exit or Ctrl-D ends the prompt."""
_HISTORY = "sql_history"


class Words(Completer):
    """Completes keywords, and names that are looked up when the user begins a word."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names

    def get_completions(self, document: Document, _: CompleteEvent) -> Iterator[Completion]:
        """Names and keywords that begin with the word before the cursor."""
        word = document.get_word_before_cursor(pattern=_WORD)
        if not word:
            return
        candidates = dict.fromkeys([*self._names(), *KEYWORDS])
        for name in candidates:
            if name.lower().startswith(word.lower()):
                yield Completion(name, start_position=-len(word))


def run_prompt(
    session: Session,
    show: Callable[[Result], None],
    show_error: Callable[[EdlError], None],
    *,
    source: Input | None = None,
    sink: Output | None = None,
) -> None:
    """Read statements and run them until the user enters Ctrl-D, `exit` or `quit`.

    Args:
        session: Runs the statements.
        show: Prints the result of a statement.
        show_error: Prints an error; the prompt goes on.
        source: Where keys are read from; None means the terminal.
        sink: Where the prompt is drawn; None means the terminal.
    """
    dialect = session.context.engine.dialect
    prompt: PromptSession[str] = PromptSession(
        "edl> ",
        multiline=Condition(lambda: _needs_more_lines(prompt.default_buffer.text, dialect)),
        prompt_continuation=lambda width, *_: "...> ".rjust(width),
        completer=Words(lambda: names_to_complete(session)),
        complete_in_thread=True,
        history=_history(),
        input=source,
        output=sink,
    )
    while True:
        try:
            text = prompt.prompt()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text.strip().rstrip(";").lower() in _EXIT_COMMANDS:
            return
        try:
            if (result := _run_command(session, text)) is not None:
                show(result)
                continue
            for statement in session.parse(text):
                show(session.run(statement))
        except KeyboardInterrupt:
            show_error(Interrupted("The statement was interrupted."))
        except EdlError as error:
            show_error(error)


def _needs_more_lines(text: str, dialect: str) -> bool:
    """Whether Enter begins another line, because the last statement has no semicolon yet."""
    stripped = text.strip()
    if stripped.lower() in (*_EXIT_COMMANDS, "help", "") or stripped.startswith(_COMMAND_PREFIXES):
        return False
    # This is asked at each key, so a text without a semicolon is not split into tokens.
    return ";" not in stripped or not is_complete(stripped, dialect)


def _run_command(session: Session, text: str) -> Result | None:
    """Run a command of the prompt, such as help; None if the text is no such command.

    Raises:
        ConfigError: The command is unknown.
        DataError: The table is unknown, or the database does not answer.
    """
    stripped = text.strip().rstrip(";").strip()
    engine = session.context.engine
    match stripped.split():
        case ["help" | "HELP" | ".help" | "\\?" | "\\h"]:
            return Result(message=_HELP)
        case ["\\d" | "\\dt" | ".tables"]:
            return Result(columns=("table",), rows=tuple((name,) for name in engine.tables()))
        case ["\\d" | ".schema", table]:
            tables = engine.tables()
            if table not in tables:
                hint = did_you_mean(table, tables).strip() or "\\d lists the tables."
                raise DataError("The table does not exist.", received=table, hint=hint)
            return Result(columns=("column",), rows=tuple((name,) for name in tables[table]))
    if stripped.startswith(_COMMAND_PREFIXES):
        raise ConfigError(
            "The prompt does not have this command.", received=stripped, hint="help lists them."
        )
    return None


def names_to_complete(session: Session) -> Iterator[str]:
    """Names of models, tables and columns; only of models if the database does not answer."""
    yield from session.context.store.names()
    try:
        tables = session.context.engine.tables()
    except EdlError:
        return
    yield from tables
    for columns in tables.values():
        yield from columns


def _history() -> History:
    """The history of this user, in a file that others cannot read; in memory if that fails."""
    root = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        folder = root if root.is_absolute() else Path.home() / ".local" / "state"
        file = folder / "edl_horovod" / _HISTORY
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
    except (OSError, RuntimeError):
        return InMemoryHistory()
    return FileHistory(file)
