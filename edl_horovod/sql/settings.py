"""The settings of a program in SQL: its database, its models, and those of its jobs."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edl_horovod.config.compose import compose
from edl_horovod.config.conf_files import NO_FILES, ConfigFiles, zoo_dir
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError
from edl_horovod.image.plan import ZOO
from edl_horovod.launch import target
from edl_horovod.sql.models import default_folder

__all__ = ["DATABASE_VARIABLE", "SqlSettings", "read_settings"]

DATABASE_VARIABLE = "EDL_DB"
"""Names the database where `db` does not: a command line is no place for a password."""
_BY_STATEMENT = {
    "data": "the SELECT",
    "output": "INTO",
    "job_dir": "the folder of models",
    "model_def": "TRAIN",
    "model": "TRAIN",
    "model_spec": "TRAIN",
    "params": "WITH",
    "trained_model": "USING",
    "init_from": "USING",
    "validation_data": "WITH train.split",
    "resume": "nothing: a statement begins anew",
    "overwrite": "nothing: each training makes a version",
}
"""Settings of a job that are not the command's to set, and what says them."""
_SOME_JOB = {"data": "rows", "output": "model", "model_def": "regressor.DNN"}
"""Completes settings where only the others matter."""


@dataclass(frozen=True, kw_only=True)
class SqlSettings:
    """What is the same for all statements of a program."""

    db: str
    """The database: an SQLAlchemy URL. It may hold a password, so it is written nowhere."""
    models: Path
    """The folder of trained models."""
    overrides: tuple[str, ...] = ()
    """Settings of jobs as typed in a command."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Settings of jobs as values."""
    files: ConfigFiles = NO_FILES
    is_confined: bool = False
    """Whether the statements are those of others, who may reach the database alone, and of the
    settings of jobs only those in `attributes.PERMITTED`."""

    def __repr__(self) -> str:
        return f"SqlSettings(models={str(self.models)!r}, overrides={self.overrides!r})"

    def job(self, task: str, values: Mapping[str, Any]) -> JobConfig:
        """The settings of a job of a statement, as the command line composes them.

        Args:
            task: `train`, `evaluate` or `predict`.
            values: What the statement says, by keys with dots.

        Raises:
            ConfigError: A setting is unknown, malformed or contradicts another.
        """
        return compose(task, self.overrides, values=self.given(values), files=self.files)

    def given(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What a statement says, with the settings of jobs that are values already."""
        zoo = {} if self._has_zoo else {"model_zoo": self._zoo(values)}
        return {**zoo, **self.values, **values}

    @property
    def model_zoo(self) -> str:
        """The folder of models, or the Git URL of one."""
        return self._some_job().model_zoo

    def _zoo(self, values: Mapping[str, Any]) -> str:
        """The models that come with the package; in pods of a given image those of the image."""
        some = self._some_job()
        kind = values.get("launch.kind", some.launch.kind)
        is_of_image = some.image and target.find(kind).is_detached
        return ZOO if is_of_image else str(zoo_dir())

    def _some_job(self) -> JobConfig:
        zoo = {} if self._has_zoo else {"model_zoo": str(zoo_dir())}
        values = {**zoo, **self.values, **_SOME_JOB}
        return compose("train", self.overrides, values=values, files=self.files)

    def check(self) -> None:
        """See that the settings are right for a training, before there is one.

        Raises:
            ConfigError: A setting is unknown, malformed or contradicts another.
        """
        self.job("train", _SOME_JOB)

    @property
    def _has_zoo(self) -> bool:
        typed = (text.partition("=")[0] for text in self.overrides)
        return "model_zoo" in {*typed, *self.values}


def read_settings(
    overrides: Sequence[str], values: Mapping[str, Any], files: ConfigFiles = NO_FILES
) -> SqlSettings:
    """Sort the settings of `edl sql`: `db` and `models` are the program's, others its jobs'.

    Raises:
        ConfigError: There is no database, or a statement says what a setting would say.
    """
    typed = [text.partition("=") for text in overrides]
    own = {key: value for key, _, value in typed if key in ("db", "models")}
    own |= {key: os.fspath(value) for key, value in values.items() if key in ("db", "models")}
    keys = [*(key.lstrip("+") for key, _, _ in typed), *values]
    for key in keys:
        if key.partition(".")[0] in _BY_STATEMENT:
            raise ConfigError(
                f"{key} is no setting of a statement: {_BY_STATEMENT[key.partition('.')[0]]} says"
                " it.",
                received=key,
                hint="Leave it out.",
            )
    db = own.get("db") or os.environ.get(DATABASE_VARIABLE, "")
    if not db:
        raise ConfigError(
            "A program in SQL needs a database.",
            hint=f"Write db=sqlite:///FILE, or set the variable {DATABASE_VARIABLE}, which is the"
            " place for a URL with a password.",
        )
    folder = own.get("models", "")
    return SqlSettings(
        db=db,
        models=Path(folder).expanduser().absolute() if folder else default_folder(),
        overrides=tuple(text for text in overrides if text.partition("=")[0] not in own),
        values={key: value for key, value in values.items() if key not in own},
        files=files,
    )
