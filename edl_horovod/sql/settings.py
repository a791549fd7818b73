"""The settings of a program in SQL: its database, its folder of models, and settings of jobs."""

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edl_horovod.config.compose import compose
from edl_horovod.config.conf_files import NO_FILES, ConfigFiles, zoo_dir
from edl_horovod.config.schema import MODEL_KEYS, JobConfig
from edl_horovod.errors import ConfigError
from edl_horovod.image.plan import ZOO
from edl_horovod.launch import target
from edl_horovod.sql.models import default_folder

DATABASE_VARIABLE = "EDL_DB"
"""The environment variable of the database, so that no password is on a command line."""
_SET_BY_STATEMENT = {
    "data": "the SELECT sets it",
    "output": "INTO sets it",
    "job_dir": "the folder of models sets it",
    **dict.fromkeys(MODEL_KEYS, "TRAIN sets it"),
    "params": "WITH sets it",
    "trained_model": "USING sets it",
    "init_from": "USING sets it",
    "validation_data": "WITH train.split sets it",
    "resume": "a statement always starts from the beginning",
    "overwrite": "each training makes a new version",
}
"""Settings of a job that the command cannot set, and why."""
_EXAMPLE_SETTINGS = {"data": "rows", "output": "model", "model_def": "regressor.DNN"}
"""Required settings of a job, for when only its other settings matter."""


@dataclass(frozen=True, kw_only=True)
class SqlSettings:
    """The settings that all statements of a program share."""

    db: str
    """The database: an SQLAlchemy URL. It may hold a password, so it is never logged or stored."""
    models: Path
    """The folder of trained models."""
    overrides: tuple[str, ...] = ()
    """Settings of jobs as typed on the command line."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Other settings of jobs, by keys with dots."""
    files: ConfigFiles = NO_FILES
    is_confined: bool = False
    """Whether the statements come from clients of a service, who may access only the database, and
    set only those settings of jobs that `attributes` permits."""

    def __repr__(self) -> str:
        return f"SqlSettings(models={str(self.models)!r}, overrides={self.overrides!r})"

    def job(self, task: str, values: Mapping[str, Any]) -> JobConfig:
        """The settings of a job of a statement, as the command line composes them.

        Args:
            task: `train`, `evaluate` or `predict`.
            values: The settings from the statement, by keys with dots.

        Raises:
            ConfigError: A setting is unknown, malformed or contradicts another.
        """
        return compose(task, self.overrides, values=self.complete(values), files=self.files)

    def complete(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The settings from a statement, completed by those of the program."""
        zoo = {} if self._has_zoo else {"model_zoo": self._default_zoo(values)}
        return {**zoo, **self.values, **values}

    @property
    def model_zoo(self) -> str:
        """The folder of models, or the Git URL of one."""
        return self._example_job.model_zoo

    def _default_zoo(self, values: Mapping[str, Any]) -> str:
        """The zoo of the package; in pods with a prebuilt image, the zoo in that image."""
        example = self._example_job
        kind = values.get("launch.kind", example.launch.kind)
        uses_image = example.image and target.find(kind).is_detached
        return ZOO if uses_image else str(zoo_dir())

    @functools.cached_property
    def _example_job(self) -> JobConfig:
        zoo = {} if self._has_zoo else {"model_zoo": str(zoo_dir())}
        values = {**zoo, **self.values, **_EXAMPLE_SETTINGS}
        return compose("train", self.overrides, values=values, files=self.files)

    def check(self) -> None:
        """Check the settings as for a training, before there is one.

        Raises:
            ConfigError: A setting is unknown, malformed or contradicts another.
        """
        self.job("train", _EXAMPLE_SETTINGS)

    @property
    def _has_zoo(self) -> bool:
        typed = (text.partition("=")[0] for text in self.overrides)
        return "model_zoo" in {*typed, *self.values}


def read_settings(
    overrides: Sequence[str], values: Mapping[str, Any], files: ConfigFiles = NO_FILES
) -> SqlSettings:
    """Sort the settings of `edl sql`: `db` and `models` are for the program, others for its jobs.

    Raises:
        ConfigError: The database is missing, or a setting is one that statements set.
    """
    typed = [text.partition("=") for text in overrides]
    program_settings = {key: value for key, _, value in typed if key in ("db", "models")}
    for key in ("db", "models"):
        if key in values:
            program_settings[key] = os.fspath(values[key])
    keys = [*(key.lstrip("+") for key, _, _ in typed), *values]
    for key in keys:
        if reason := _SET_BY_STATEMENT.get(key.partition(".")[0]):
            problem = f"{key} is not a setting of statements: {reason}."
            raise ConfigError(problem, received=key, hint="Leave it out.")
    db = program_settings.get("db") or os.environ.get(DATABASE_VARIABLE, "")
    if not db:
        raise ConfigError(
            "A program in SQL needs a database.",
            hint=f"Write db=sqlite:///FILE, or set the environment variable {DATABASE_VARIABLE},"
            " which is safer for a URL with a password.",
        )
    folder = program_settings.get("models", "")
    others = (text for text in overrides if text.partition("=")[0] not in program_settings)
    return SqlSettings(
        db=db,
        models=Path(folder).expanduser().absolute() if folder else default_folder(),
        overrides=tuple(others),
        values={key: value for key, value in values.items() if key not in program_settings},
        files=files,
    )
