"""Runs statements from Python, by one call."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from edl_horovod import api
from edl_horovod.api import FilePath
from edl_horovod.config.keywords import from_keywords
from edl_horovod.config.schema import JobConfig
from edl_horovod.displays import open_displays
from edl_horovod.errors import Interrupted
from edl_horovod.job.events import OnEvents
from edl_horovod.sql.parameters import bind
from edl_horovod.sql.results import Result
from edl_horovod.sql.session import Session, open_session
from edl_horovod.sql.settings import SqlSettings, read_settings
from edl_horovod.supervisor.forks import WarmServer
from edl_horovod.supervisor.run import JobResult

__all__ = ["open_program", "run_program", "settings_of", "sql"]


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
            text = bind(text, parameters, session.work.engine.dialect)
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
        with open_displays(is_quiet=not progress) as show:
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
