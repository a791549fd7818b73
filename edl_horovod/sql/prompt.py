"""The prompt of `edl sql`: statements over several lines, with a history and completion."""

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
from edl_horovod.sql.hparams import HPARAM_WORDS
from edl_horovod.sql.problems import StatementError
from edl_horovod.sql.results import Result
from edl_horovod.sql.session import Session

__all__ = ["KEYWORDS", "Words", "names_of", "run_prompt"]

KEYWORDS = (
    *("ALTER", "COLUMN", "DESCRIBE", "DROP", "EVALUATE", "EXISTS", "EXPLAIN"),
    *("FOR", "FROM", "GROUP", "IF", "INTO", "JOBS"),
    *("JOIN", "KILL", "LABEL", "LIMIT", "LIVE", "LOG", "MODEL", "MODELS"),
    *("NOT", "ORDER", "PREDICT", "REPLACE", "SELECT", "SET", "SHOW"),
    *("TO", "TRAIN", "TRIALS", "USING", "WHERE", "WITH", *HPARAM_WORDS),
)
_WORD = re.compile(r"[\w.]+")
_ENDS = ("exit", "quit", "\\q", ".exit", ".quit")
_SHORT = ("\\", ".")
"""What the commands of other prompts begin with, and no statement does."""
_HELP = """\
A statement ends with a semicolon and may have several lines.
  SELECT ... TRAIN model [WITH ...] [COLUMN ...] [LABEL column] INTO name;
  SELECT ... PREDICT [table.column] USING name;
  SELECT ... EVALUATE name;    SELECT ... EXPLAIN name;
  SHOW MODELS;    DESCRIBE MODEL name;    SHOW JOBS;    KILL number;
  All others go to the database.
\\d or .tables lists the tables, and \\d TABLE or .schema TABLE the columns of one.
Tab completes names, Ctrl-C ends a statement, and \\q, exit or Ctrl-D ends the prompt."""
_HISTORY = "sql_history"


class Words(Completer):
    """Completes keywords, and the names that are looked up when a word is begun."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names

    def get_completions(self, document: Document, _: CompleteEvent) -> Iterator[Completion]:
        """What may be meant by the word before the cursor."""
        word = document.get_word_before_cursor(pattern=_WORD)
        if not word:
            return
        known = dict.fromkeys([*self._names(), *KEYWORDS])
        for name in known:
            if name.lower().startswith(word.lower()):
                yield Completion(name, start_position=-len(word))


def run_prompt(
    session: Session,
    show: Callable[[Result], None],
    complain: Callable[[EdlError], None],
    *,
    source: Input | None = None,
    sink: Output | None = None,
) -> None:
    """Read statements and run them until the user ends it by Ctrl-D, `exit` or `quit`.

    Args:
        session: Runs the statements.
        show: Prints what one gave.
        complain: Prints what went wrong; the prompt goes on.
        source: Where keys come from; None takes the terminal.
        sink: Where the prompt is drawn; None takes the terminal.
    """
    prompt: PromptSession[str] = PromptSession(
        "edl> ",
        multiline=Condition(lambda: _goes_on(session, prompt.default_buffer.text)),
        prompt_continuation=lambda width, *_: "...> ".rjust(width),
        completer=Words(lambda: names_of(session)),
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
        if text.strip().rstrip(";").lower() in _ENDS:
            return
        try:
            if (result := _run_short(session, text)) is not None:
                show(result)
                continue
            for statement in session.parse(text):
                show(session.run(statement))
        except KeyboardInterrupt:
            complain(Interrupted("The statement was interrupted."))
        except EdlError as error:
            complain(error)


def _goes_on(session: Session, text: str) -> bool:
    """Whether Enter begins another line: the last statement has no semicolon yet."""
    stripped = text.strip()
    if not stripped or stripped.lower() in (*_ENDS, "help") or stripped.startswith(_SHORT):
        return False
    try:
        session.parse(text)
    except StatementError:
        # Perhaps a quote that is open; a mistake in a whole statement is told when it is run.
        return not stripped.endswith(";")
    return not stripped.endswith(";")


def _run_short(session: Session, text: str) -> Result | None:
    """Run a command of the prompt itself; None for statements.

    Raises:
        ConfigError: There is no such command.
        DataError: There is no such table, or the database does not answer.
    """
    stripped = text.strip().rstrip(";").strip()
    engine = session.work.engine
    match stripped.split():
        case ["help" | "HELP" | ".help" | "\\?" | "\\h"]:
            return Result(message=_HELP)
        case ["\\d" | "\\dt" | ".tables"]:
            return Result(columns=("table",), rows=tuple((name,) for name in engine.tables()))
        case ["\\d" | ".schema", table]:
            tables = engine.tables()
            if table not in tables:
                hint = did_you_mean(table, tables).strip() or "\\d lists the tables."
                raise DataError("There is no such table.", received=table, hint=hint)
            return Result(columns=("column",), rows=tuple((name,) for name in tables[table]))
    if stripped.startswith(_SHORT):
        raise ConfigError(
            "The prompt has no such command.", received=stripped, hint="help lists them."
        )
    return None


def names_of(session: Session) -> Iterator[str]:
    """Tables, their columns and models; none of the tables where the database does not answer."""
    yield from session.work.store.names()
    try:
        tables = session.work.engine.tables()
    except EdlError:
        return
    yield from tables
    for columns in tables.values():
        yield from columns


def _history() -> History:
    """What was typed before, in a file of this user alone; only in memory where none can be."""
    root = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        folder = root if root.is_absolute() else Path.home() / ".local" / "state"
        file = folder / "edl_horovod" / _HISTORY
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
    except (OSError, RuntimeError):
        return InMemoryHistory()
    return FileHistory(file)
