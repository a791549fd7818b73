"""Statements as one Python call, as the verbs have one each."""

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
    """Run statements, one after the other, until one fails.

    They share a connection to the database, and so a transaction; the next call has another one.

    Args:
        text: Statements with semicolons between them; `:name` stands for a parameter.
        db: The database, an SQLAlchemy URL as `sqlite:///hr.db`; empty takes the environment
            variable EDL_DB.
        models: Folder of the trained models; empty takes the user's own.
        parameters: Values by name. Each becomes a literal with its quotes escaped, so that no text
            of a user changes what a statement does.
        progress: Show on stderr what was decided, and where a job is.
        on_events: Called with the new events of the jobs.
        settings: Of the jobs, as in `train`: `framework="torch"`, `**{"launch.np": 2}`.

    Returns:
        What the last statement gave.

    Raises:
        EdlError: A subclass says what went wrong; `Interrupted` after Ctrl-C or KILL.
    """
    read = settings_of({"db": db, "models": models, **settings})
    with open_program(read, progress=progress, on_events=on_events) as session:
        if parameters:
            text = bind(text, parameters, session.work.engine.dialect)
        return run_program(session, text)


def settings_of(keywords: Mapping[str, Any]) -> SqlSettings:
    """The settings that keywords of `sql` say.

    Raises:
        ConfigError: One is wrong, or there is no database.
    """
    jobs = {key: value for key, value in keywords.items() if key not in ("db", "models")}
    overrides, values = from_keywords(jobs, JobConfig)
    places = {key: str(keywords[key]) for key in ("db", "models") if keywords.get(key)}
    return read_settings(overrides, {**values, **places})


@contextmanager
def open_program(
    settings: SqlSettings, *, progress: bool, on_events: OnEvents | None = None
) -> Iterator[Session]:
    """A session whose jobs run on this machine, or where its settings say; see `sql`."""

    def run_job(config: JobConfig) -> JobResult:
        with open_displays(is_quiet=not progress) as show:
            hooks = [hook for hook in (on_events, show if progress else None) if hook is not None]

            def shown(events: Any) -> None:
                for hook in hooks:
                    hook(events)

            return api.run(config, on_events=shown if hooks else None, warm=warm)

    def tell(sentence: str) -> None:
        if progress:
            sys.stderr.write(f"{sentence}\n")

    with WarmServer() as warm, open_session(settings, run_job, tell=tell) as session:
        yield session


def run_program(session: Session, text: str) -> Result:
    """Run statements, one after the other; what the last one gave.

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
