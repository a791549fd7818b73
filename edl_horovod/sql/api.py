"""Runs statements from Python, by one call."""

import datetime
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

from edl_horovod import api
from edl_horovod.api import FilePath
from edl_horovod.config.keywords import from_keywords
from edl_horovod.config.schema import JobConfig
from edl_horovod.displays.terminal import open_terminal
from edl_horovod.errors import ConfigError, Interrupted, did_you_mean
from edl_horovod.job.events import OnEvents
from edl_horovod.sql.session import Session, open_session
from edl_horovod.sql.settings import SqlSettings, read_settings
from edl_horovod.sql.statements import Result
from edl_horovod.sql.tokens import TokenKind, tokens_of
from edl_horovod.supervisor.forks import WarmServer
from edl_horovod.supervisor.run import JobResult


def sql(
    text: str,
    *,
    db: str = "",
    models: FilePath = "",
    parameters: Mapping[str, Any] | None = None,
    progress: bool = False,
    on_events: OnEvents | None = None,
    **settings: Any,
) -> Result:
    """Run statements one after the other, until one fails.

    They share a connection to the database, and so a transaction; another call has a new one.

    Args:
        text: Statements with semicolons between them; `:name` is a parameter.
        db: The database, an SQLAlchemy URL such as `sqlite:///hr.db`; if empty, the environment
            variable EDL_DB.
        models: Folder of the trained models; if empty, the default folder of the user.
        parameters: Values by name. Each becomes a literal with its quotes escaped, so that no value
            can change what a statement does.
        progress: Show decisions and the progress of jobs on stderr.
        on_events: Called with the new events of the jobs.
        settings: Settings of the jobs, as in `train`: `framework="torch"`, `**{"launch.np": 2}`.

    Returns:
        The result of the last statement.

    Raises:
        EdlError: A subclass says what went wrong; `Interrupted` after Ctrl-C or KILL.
    """
    sql_settings = settings_of({"db": db, "models": models, **settings})
    with open_program(sql_settings, progress=progress, on_events=on_events) as session:
        if parameters:
            text = bind(text, parameters, session.context.engine.dialect)
        return run_program(session, text)


def settings_of(keywords: Mapping[str, Any]) -> SqlSettings:
    """Convert keywords of `sql` to settings.

    Raises:
        ConfigError: A setting is wrong, or the database is missing.
    """
    jobs = {key: value for key, value in keywords.items() if key not in ("db", "models")}
    overrides, values = from_keywords(jobs, JobConfig)
    program_settings = {key: str(keywords[key]) for key in ("db", "models") if keywords.get(key)}
    return read_settings(overrides, {**values, **program_settings})


@contextmanager
def open_program(
    settings: SqlSettings, *, progress: bool, on_events: OnEvents | None = None
) -> Iterator[Session]:
    """Open a session whose jobs run on this machine, or where its settings say; see `sql`."""

    def run_job(config: JobConfig) -> JobResult:
        with open_terminal(is_quiet=not progress) as show:
            hooks = [hook for hook in (on_events, show if progress else None) if hook is not None]

            def call_hooks(events: Any) -> None:
                for hook in hooks:
                    hook(events)

            return api.run(config, on_events=call_hooks if hooks else None, warm=warm)

    def print_notice(sentence: str) -> None:
        if progress:
            sys.stderr.write(f"{sentence}\n")

    with WarmServer() as warm, open_session(settings, run_job, tell=print_notice) as session:
        yield session


def run_program(session: Session, text: str) -> Result:
    """Run statements one after the other, and return the result of the last one.

    Raises:
        EdlError: A subclass says what went wrong; `Interrupted` after Ctrl-C or KILL.
    """
    result = Result()
    try:
        for statement in session.parse(text):
            result = session.run(statement)
    except KeyboardInterrupt as error:
        raise Interrupted("The statement was interrupted.") from error
    return result


def bind(text: str, parameters: Mapping[str, Any], dialect: str) -> str:
    """Replace each `:name` in a program by the value of the parameter.

    Args:
        text: Statements with `:name` for parameters, outside quotes.
        parameters: The values by name.
        dialect: sqlglot's name of the database's SQL.

    Raises:
        ConfigError: A value has no literal in SQL, or a parameter is not used.
    """
    parts, end, unused = [], 0, dict.fromkeys(parameters)
    tokens = tokens_of(text, dialect)
    for colon, name in pairwise(tokens):
        is_name = colon.is_symbol(":") and name.kind is TokenKind.WORD and colon.end == name.start
        if not is_name or name.text not in parameters:
            continue
        literal = _literal(parameters[name.text], dialect, name.text)
        # Spaces, because -:x must not become the comment --1 for x=-1.
        parts += [text[end : colon.start], f" {literal} "]
        end = name.end
        unused.pop(name.text, None)
    if unused:
        first = next(iter(unused))
        words = [word for word in text.split() if word.startswith(":")]
        problem = f"No statement uses the parameter {first}."
        hint = f"Write :{first}, without quotes around it.{did_you_mean(f':{first}', words)}"
        raise ConfigError(problem, received=f"parameters={', '.join(parameters)}", hint=hint)
    return "".join([*parts, text[end:]])


def _literal(value: Any, dialect: str, name: str) -> str:
    """A value as a literal that the database, or a WITH clause, understands."""

    def nested(item: Any) -> str:
        return _literal(item, dialect, name)

    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case str():
            return _text(value, dialect, name)
        case Decimal() if value.is_finite():
            return f"{value:f}"
        case Integral():
            return str(int(value))
        case Real() if math.isfinite(value):
            return repr(float(value))
        case datetime.datetime() | datetime.date():
            return _text(str(value), dialect, name)
        case list() | tuple():
            return f"[{', '.join(map(nested, value))}]"
        case dict():
            items = (f"{nested(key)}: {nested(item)}" for key, item in value.items())
            return f"{{{', '.join(items)}}}"
    problem = f"The parameter {name} cannot be written as a literal of SQL."
    hint = "Give a text, a finite number, a boolean, a date, None, or for WITH a list or a dict."
    raise ConfigError(problem, received=f"{type(value).__name__} {value!r:.60}", hint=hint)


def _text(value: str, dialect: str, name: str) -> str:
    if "\0" in value:
        problem = f"The parameter {name} contains a NUL character, which databases refuse in texts."
        raise ConfigError(problem, received=repr(value[:60]))
    quoted = "'" + value.replace("'", "''") + "'"
    if "\\" not in value:
        return quoted
    if dialect == "postgres":
        # In E'...' a backslash does not depend on standard_conforming_strings.
        return "E" + quoted.replace("\\", "\\\\")
    return quoted.replace("\\", "\\\\") if dialect == "mysql" else quoted
