"""The store of trained models: names with numbered versions, in a folder.

A model is a folder of its name with a folder for each version, `1`, `2`, ..., and a file that holds
the number of the live version. One rename makes a complete version appear, and another, of that
file, makes it live. If a process dies in between, the live version is the old or the new one, and
complete.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from edl_horovod.errors import DataError, OutputError, did_you_mean, hint_of
from edl_horovod.files import json_text, marker
from edl_horovod.files.whole_file import sync, write_text
from edl_horovod.models.trained_model_file import read_adapted
from edl_horovod.sql.statements import ModelName, StatementError

MODEL = "model"
"""The trained model in the folder of a version."""
_STORE, _MODEL, _VERSION = "folder of models", "model of statements", "version of a model"
_ABOUT, _LIVE, _LOCK = "about.json", "live", ".lock"
LOG = "log.json"
"""The log of the training in the folder of a version, a list of `LogRow`."""
_CANNOT_WRITE = "The folder of models cannot be written"
_REMOVED = ".removed-"
"""Prefix of the folder of a version that is being removed."""


class ModelNotFound(StatementError):
    """A statement names a model or a version that does not exist."""


@dataclass(frozen=True, kw_only=True)
class ModelColumn:
    """A column that a model was trained with."""

    name: str
    kind: str
    """`integer`, `number`, `text`, `date`, `timestamp`, `bytes` or `boolean`."""
    declared_type: str
    """The database's name of the type; empty if it did not report one."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One of several trainings of a statement, of which the best became a version."""

    chosen: dict[str, str]
    """The values of the attributes that differ between trials."""
    state: str
    """`finished` or `failed`."""
    metrics: dict[str, float]
    """Metrics of the last evaluation; empty if the trial failed."""
    seconds: float
    error: str


@dataclass(frozen=True, kw_only=True)
class LogRow:
    """The state of a training after a step."""

    step: int
    epoch: int | None = None
    """Counted from 1; None, like the loss, in rows that hold only an evaluation."""
    seconds: float
    """Time since the first step."""
    loss: float | None = None
    validation: dict[str, float] = field(default_factory=dict)
    """The metrics of an evaluation; empty without one."""


@dataclass(frozen=True, kw_only=True)
class About:
    """How a version was trained, in addition to the trained model itself."""

    statement: str
    """The whole TRAIN statement."""
    select: str
    model_def: str
    framework: str
    label: str
    columns: tuple[ModelColumn, ...]
    """The columns that the model reads, and the label."""
    nulls: dict[str, Any]
    """The values that replace NULLs, by column name."""
    split: str
    """How the rows for the validation were selected, in words."""
    num_rows: int
    """Number of training rows, without those for the validation."""
    metrics: dict[str, float]
    """Metrics of the last evaluation of the training."""
    database: str
    """The URL of the database without user and password."""
    trained: str
    """Time of the training in ISO 8601."""
    seconds: float
    notes: tuple[str, ...] = ()
    """Sentences about decisions that the statement left to us."""
    chosen: dict[str, str] = field(default_factory=dict)
    """The attributes of the best trial; empty without trials."""
    trials: tuple[Trial, ...] = ()
    """The trials in the order in which they ran."""
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    """Metrics of `model`, `constant` and `linear` on the rows for the validation."""

    @property
    def features(self) -> tuple[str, ...]:
        """The columns that a prediction reads."""
        return tuple(column.name for column in self.columns if column.name != self.label)

    @property
    def dates(self) -> dict[str, Any]:
        """The columns of dates and timestamps, with their kind."""
        kinds = {column.name: column.kind for column in self.columns}
        return {name: kind for name, kind in kinds.items() if kind in ("date", "timestamp")}


@dataclass(frozen=True, kw_only=True)
class StoredModel:
    """One version of a model."""

    name: str
    version: int
    is_live: bool
    folder: Path
    about: About

    @property
    def trained_model(self) -> Path:
        """The trained model, for `edl predict`."""
        return self.folder / MODEL

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


def read_summary(trained_model: Path) -> Mapping[str, Any]:
    """The model's summary of its training data; empty if its `adapt` returned none.

    Raises:
        DataError: The file is damaged.
    """
    adapted = read_adapted(trained_model)
    return adapted if isinstance(adapted, Mapping) else {}


def default_folder() -> Path:
    """The default of the setting `models`, after the XDG Base Directory Specification.

    Raises:
        RuntimeError: This user has no home directory.
    """
    root = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (root if root.is_absolute() else Path.home() / ".local" / "share") / (
        "edl_horovod/models"
    )


class ModelStore:
    """The models in a folder."""

    def __init__(self, folder: Path) -> None:
        """Open the store of a folder, which need not exist."""
        self.folder = folder

    def claim(self) -> None:
        """Create the folder, or check that it is a folder of models.

        Raises:
            OutputError: The folder holds other files or cannot be created.
        """
        with write_errors(_CANNOT_WRITE, self.folder):
            marker.claim(self.folder, _STORE, received=f"models={self.folder}")

    def names(self) -> tuple[str, ...]:
        """The names of the models with a live version, sorted."""
        paths = sorted(self.folder.iterdir()) if self.folder.is_dir() else ()
        folders = (path for path in paths if path.is_dir() and marker.kind_of(path) == _MODEL)
        return tuple(folder.name for folder in folders if self.exists(folder.name))

    def all(self) -> tuple[StoredModel, ...]:
        """All versions of the models with a live version, sorted by name and version."""
        return tuple(
            self._read(name, version) for name in self.names() for version in self.versions(name)
        )

    def versions(self, name: str) -> tuple[int, ...]:
        """The versions of a model in ascending order."""
        home = self.folder / name
        paths = [path for path in home.iterdir() if path.name.isdecimal()] if home.is_dir() else []
        return tuple(sorted(int(path.name) for path in paths if marker.kind_of(path) == _VERSION))

    def find(self, named: ModelName) -> StoredModel:
        """A version of a model; the live version if the statement names no number.

        Raises:
            StatementError: The model or the version does not exist.
            DataError: The version is damaged.
        """
        live, versions = self._live(named.name), self.versions(named.name)
        if named.version is None and live is not None:
            return self._read(named.name, live)
        if named.version in versions:
            return self._read(named.name, named.version)
        if named.version is None or not versions:
            names = self.names()
            hint = did_you_mean(named.name, names) or (
                f"Models: {', '.join(names)}." if names else "This folder has no models."
            )
            problem = f"There is no model {named.name!r} in {self.folder}."
        else:
            hint = f"Versions: {', '.join(f'{named.name}@{version}' for version in versions)}."
            problem = f"The model {named.name!r} has no version {named.version}."
        raise ModelNotFound(problem, named.position, hint=hint)

    def log(self, stored: StoredModel) -> tuple[LogRow, ...]:
        """The log of a version's training; empty if an earlier release trained it.

        Raises:
            DataError: The log is damaged.
        """
        try:
            rows = json.loads((stored.folder / LOG).read_bytes())
            return tuple(LogRow(**row) for row in rows)
        except FileNotFoundError:
            return ()
        except (ValueError, TypeError) as e:
            problem = f"The log of {stored} is damaged: {e}."
            hint = "Train the model again."
            raise DataError(problem, received={"file": stored.folder / LOG}, hint=hint) from e

    def exists(self, name: str) -> bool:
        """Whether a model has a live version."""
        return self._live(name) is not None

    def add(
        self, name: str, new_version: Path, about: About, *, replace: bool = False
    ) -> StoredModel:
        """Make a folder the next version of a model, and make that version live.

        Args:
            name: The name of the model.
            new_version: A folder on the same file system with the trained model in `MODEL`. It is
                moved.
            about: How the version was trained.
            replace: Whether to remove the earlier versions once the new one is live.

        Raises:
            OutputError: The store cannot be written, or its folder holds other files.
        """
        home = self.folder / name
        with write_errors(_CANNOT_WRITE, home):
            self.claim()
            (new_version / _ABOUT).write_text(json_text.dumps(_to_json(about)), encoding="utf-8")
            marker.write(new_version, _VERSION)
            sync(new_version / _ABOUT)
            sync(new_version)
            with self._locked():
                marker.claim(home, _MODEL, received=f"models={self.folder}", may_hold=(_LOCK,))
                if self._live(name) is None:  # A DROP or a training was killed.
                    self._remove(home, self.versions(name))
                version = max(self.versions(name), default=0) + 1
                while (home / str(version)).exists():
                    version += 1
                new_version.rename(home / str(version))
                sync(home)
                write_text(home / _LIVE, str(version))
                if replace:
                    self._remove(home, self.versions(name)[:-1])
                # A DROP beside this one may remove it as soon as the lock is free.
                return self._read(name, version)

    def set_live(self, named: ModelName) -> StoredModel:
        """Make a version the live one.

        Raises:
            StatementError: The model or the version does not exist.
            OutputError: The folder cannot be written.
        """
        self.find(named)
        home = self.folder / named.name
        with write_errors(_CANNOT_WRITE, home), self._locked():
            # It may have been dropped while this process waited for the lock.
            stored = self.find(named)
            write_text(home / _LIVE, str(stored.version))
        return replace(stored, is_live=True)

    def drop(self, named: ModelName) -> None:
        """Remove a model, or one version of it that is not live.

        Raises:
            StatementError: The model or the version does not exist, or the version is live.
            OutputError: The folder cannot be written.
        """
        self.find(named)
        home = self.folder / named.name
        with write_errors(_CANNOT_WRITE, home), self._locked():
            # It may have been dropped while this process waited for the lock.
            stored = self.find(named)
            if named.version is None:
                # Without a live version the model does not exist, even if this process dies here.
                (home / _LIVE).unlink(missing_ok=True)
                self._remove(home, self.versions(named.name))
                self._remove_home(home)
            elif stored.is_live:
                hint = f"DROP MODEL {named.name} removes the model with all of its versions."
                raise named.error(f"The version {named} is the live one.", hint)
            else:
                self._remove(home, (stored.version,))

    def _remove(self, home: Path, versions: tuple[int, ...]) -> None:
        self._remove_renamed(home)  # A killed process may have left such a folder.
        for version in versions:
            (home / str(version)).rename(home / f"{_REMOVED}{version}")
        self._remove_renamed(home)

    @staticmethod
    def _remove_renamed(home: Path) -> None:
        """Delete the versions that were renamed for their removal."""
        for folder in home.glob(f"{_REMOVED}*"):
            rest = [path for path in folder.iterdir() if path.name != marker.NAME]
            if marker.kind_of(folder) == _VERSION:
                # The marker is deleted last: an incomplete folder must still be recognized as ours.
                for path in [*rest, folder / marker.NAME]:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            elif rest:
                continue
            folder.rmdir()

    @staticmethod
    def _remove_home(home: Path) -> None:
        """Remove the folder of a model, unless it holds other files."""
        for path in (*home.glob(f".{_LIVE}.*.partial"), home / _LOCK):
            path.unlink(missing_ok=True)
        if [path.name for path in home.iterdir()] == [marker.NAME]:
            (home / marker.NAME).unlink()
            home.rmdir()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the exclusive lock for changes of versions.

        All models share one lock, because a lock file in a model's folder would be removed with it.
        """
        with (self.folder / _LOCK).open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def _live(self, name: str) -> int | None:
        try:
            text = (self.folder / name / _LIVE).read_text(encoding="ascii")
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not text.isdecimal():
            problem = f"{self.folder / name / _LIVE} is damaged."
            hint = "Write the number of the version that should be live into this file."
            raise DataError(problem, received=repr(text[:40]), hint=hint)
        return int(text)

    def _read(self, name: str, version: int) -> StoredModel:
        folder = self.folder / name / str(version)
        try:
            about = _from_json(json.loads((folder / _ABOUT).read_bytes()))
        except (OSError, ValueError, KeyError, TypeError) as e:
            problem = f"The model {name}@{version} is damaged: {e}."
            hint = "Train the model again."
            raise DataError(problem, received={"folder": folder}, hint=hint) from e
        is_live = version == self._live(name)
        return StoredModel(name=name, version=version, is_live=is_live, folder=folder, about=about)


def _to_json(about: About) -> dict[str, Any]:
    values = asdict(about)
    # Releases before this one wrote the notes under this key.
    values["told"] = values.pop("notes")
    return values


def _from_json(values: dict[str, Any]) -> About:
    columns = tuple(ModelColumn(**column) for column in values.pop("columns"))
    trials = tuple(Trial(**trial) for trial in values.pop("trials", ()))
    notes = tuple(values.pop("told"))
    return About(**values, columns=columns, trials=trials, notes=notes)


@contextlib.contextmanager
def write_errors(problem: str, folder: Path) -> Iterator[None]:
    """Replace errors of the file system by an `OutputError` that begins with a problem."""
    try:
        yield
    except OSError as e:
        raise OutputError(f"{problem}: {e}.", received={"models": folder}, hint=hint_of(e)) from e
