"""Statements as one Python call, as the verbs have one each."""

import sys
from collections.abc import Mapping
from pathlib import Path
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
from edl_horovod.sql.session import open_session
from edl_horovod.sql.settings import read_settings
from edl_horovod.supervisor.run import JobResult

__all__ = ["sql"]


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
    overrides, values = from_keywords(settings, JobConfig)
    own = {"db": db} if db else {}
    own |= {"models": str(Path(models))} if models else {}
    read = read_settings(overrides, {**values, **own})

    def run_job(config: JobConfig) -> JobResult:
        with open_displays(is_quiet=not progress) as show:
            hooks = [hook for hook in (on_events, show if progress else None) if hook is not None]

            def shown(events: Any) -> None:
                for hook in hooks:
                    hook(events)

            return api.run(config, on_events=shown if hooks else None)

    def tell(sentence: str) -> None:
        if progress:
            sys.stderr.write(f"{sentence}\n")

    result = Result()
    try:
        with open_session(read, run_job, tell=tell) as session:
            if parameters:
                text = bind(text, parameters, session.work.engine.dialect)
            for statement in session.parse(text):
                result = session.run(statement)
    except KeyboardInterrupt as error:
        raise Interrupted("The statement was interrupted.") from error
    return result
