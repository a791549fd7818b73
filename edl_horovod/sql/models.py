"""Trained models as objects with a name and versions, in a folder.

A model is a folder of its name with one folder a version, `1`, `2`, ..., and a small file that says
which version is live. A version appears whole, by a rename; it becomes live by another, of that
file. Whatever dies in between, the live version is the old one or the new one, and is whole.
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
from edl_horovod.sql.statements import ModelName, StatementError

__all__ = [
    "LOG",
    "MODEL",
    "About",
    "LogRow",
    "ModelColumn",
    "ModelNotFound",
    "ModelStore",
    "StoredModel",
    "Trial",
    "adapted_of",
    "default_folder",
]

MODEL = "model"
"""The trained model in the folder of a version."""
_ADAPTED = "adapted.json"
_STORE, _MODEL, _VERSION = "folder of models", "model of statements", "version of a model"
_ABOUT, _LIVE, _LOCK = "about.json", "live", ".lock"
LOG = "log.json"
"""How the training went, in the folder of a version: a list of `LogRow`."""
_REMOVED = ".removed-"
"""Begins the name of a version that is being removed."""


class ModelNotFound(StatementError):
    """There is no model, or no version, of the name that a statement says."""


@dataclass(frozen=True, kw_only=True)
class ModelColumn:
    """A column that a model was trained with."""

    name: str
    kind: str
    """`integer`, `number`, `text`, `date`, `timestamp`, `bytes` or `boolean`."""
    declared_type: str
    """As the database called it; empty where it did not say."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training of a statement with several, of which the best became a version."""

    chosen: dict[str, str]
    """Attributes to the values that it had."""
    state: str
    """`finished` or `failed`."""
    metrics: dict[str, float]
    """Of its last evaluation; empty where it failed."""
    seconds: float
    error: str


@dataclass(frozen=True, kw_only=True)
class LogRow:
    """Where a training was after a step."""

    step: int
    epoch: int | None = None
    """Counted from 1; like the loss unknown where only an evaluation is told."""
    seconds: float
    """Since its first step."""
    loss: float | None = None
    validation: dict[str, float] = field(default_factory=dict)
    """The metrics of an evaluation; empty without one."""


@dataclass(frozen=True, kw_only=True)
class About:
    """What is known of a version of a model, beside what is in the trained model itself."""

    statement: str
    """The whole TRAIN statement."""
    select: str
    model_def: str
    framework: str
    label: str
    columns: tuple[ModelColumn, ...]
    """Those that it reads, and the label."""
    nulls: dict[str, Any]
    """What a NULL of a column counts as."""
    split: str
    """How rows for the validation were set apart, in words."""
    num_rows: int
    """That it learned from; those that were held back are none of them."""
    metrics: dict[str, float]
    """Of the last evaluation of the training."""
    database: str
    """Its URL without user and password."""
    trained: str
    """When, in ISO 8601."""
    seconds: float
    told: tuple[str, ...] = ()
    """What was decided for the user."""
    chosen: dict[str, str] = field(default_factory=dict)
    """Attributes to the values of the best trial; empty without trials."""
    trials: tuple[Trial, ...] = ()
    """In the order in which they ran."""
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    """Metrics of `model`, `constant` and `linear` on the rows that were held back."""

    @property
    def features(self) -> tuple[str, ...]:
        """The columns that a prediction reads."""
        return tuple(column.name for column in self.columns if column.name != self.label)

    @property
    def dates(self) -> dict[str, Any]:
        """Columns of dates or timestamps, with which of the two they are."""
        return {it.name: it.kind for it in self.columns if it.kind in ("date", "timestamp")}


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
        """What `edl predict` takes."""
        return self.folder / MODEL

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


def adapted_of(trained_model: Path) -> Mapping[str, Any]:
    """What a model keeps of its training's data; empty where it keeps nothing.

    Raises:
        DataError: It is damaged.
    """
    file = trained_model / _ADAPTED
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as e:
        raise DataError(f"{file} is damaged: {e}.", hint="Train the model again.") from e
    return found if isinstance(found, Mapping) else {}


def default_folder() -> Path:
    """Where models are without the setting `models`, after the XDG Base Directory Specification.

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
        """Take a folder, which may not be there yet."""
        self.folder = folder

    def claim(self) -> None:
        """Make the folder, or see that it is one of models.

        Raises:
            OutputError: It holds something else, or cannot be made.
        """
        with _writing(self.folder):
            marker.claim(self.folder, _STORE, received=f"models={self.folder}")

    def names(self) -> tuple[str, ...]:
        """The models that have a live version, sorted."""
        return tuple(name for name in self._homes() if self._live(name) is not None)

    def all(self) -> tuple[StoredModel, ...]:
        """All versions of the models that have a live one, sorted by name and version."""
        return tuple(
            self._read(name, version) for name in self.names() for version in self.versions(name)
        )

    def versions(self, name: str) -> tuple[int, ...]:
        """The versions of a model, rising."""
        home = self.folder / name
        found = home.iterdir() if home.is_dir() else ()
        return tuple(
            sorted(
                int(path.name)
                for path in found
                if path.name.isdecimal() and marker.kind_of(path) == _VERSION
            )
        )

    def find(self, named: ModelName) -> StoredModel:
        """A version of a model; without a number the live one.

        Raises:
            StatementError: There is none.
            DataError: It is damaged.
        """
        live, versions = self._live(named.name), self.versions(named.name)
        if named.version is None and live is not None:
            return self._read(named.name, live)
        if named.version in versions:
            return self._read(named.name, named.version)
        if named.version is None or not versions:
            known = self.names()
            hint = did_you_mean(named.name, known) or (
                f"Models: {', '.join(known)}." if known else "No model has been trained here."
            )
            what = f"There is no model {named.name!r} in {self.folder}."
        else:
            hint = f"It has {', '.join(f'{named.name}@{each}' for each in versions)}."
            what = f"The model {named.name!r} has no version {named.version}."
        raise ModelNotFound(what, named.position, hint=hint)

    def log(self, stored: StoredModel) -> tuple[LogRow, ...]:
        """How the training of a version went; empty where an earlier release trained it.

        Raises:
            DataError: It is damaged.
        """
        try:
            rows = json.loads((stored.folder / LOG).read_bytes())
            return tuple(LogRow(**row) for row in rows)
        except FileNotFoundError:
            return ()
        except (ValueError, TypeError) as e:
            raise DataError(
                f"The log of {stored} is damaged: {e}.",
                received={"file": stored.folder / LOG},
                hint="Train it again.",
            ) from e

    def exists(self, name: str) -> bool:
        """Whether a model has a live version."""
        return self._live(name) is not None

    def add(self, name: str, made: Path, about: About, *, replace: bool = False) -> StoredModel:
        """Make a folder the next version of a model, and that version the live one.

        Args:
            name: Of the model.
            made: A folder on the same file system with the trained model in `MODEL`; it is moved.
            about: What is known of it.
            replace: Remove the earlier versions once the new one is live.

        Raises:
            OutputError: Nothing can be written there, or it holds something else.
        """
        home = self.folder / name
        with _writing(home):
            self.claim()
            (made / _ABOUT).write_text(json_text.dumps(asdict(about)), encoding="utf-8")
            marker.write(made, _VERSION)
            sync(made / _ABOUT)
            sync(made)
            with self._locked():
                marker.claim(home, _MODEL, received=f"models={self.folder}", may_hold=(_LOCK,))
                if self._live(name) is None:  # A DROP was killed, or a training.
                    self._remove(home, self.versions(name))
                version = max(self.versions(name), default=0) + 1
                while (home / str(version)).exists():
                    version += 1
                made.rename(home / str(version))
                sync(home)
                write_text(home / _LIVE, str(version))
                if replace:
                    self._remove(home, self.versions(name)[:-1])
        return self._read(name, version)

    def set_live(self, named: ModelName) -> StoredModel:
        """Make a version the live one.

        Raises:
            StatementError: There is none.
            OutputError: The folder cannot be written.
        """
        self.find(named)
        home = self.folder / named.name
        with _writing(home), self._locked():
            # It may have been dropped while we waited.
            found = self.find(named)
            write_text(home / _LIVE, str(found.version))
        return replace(found, is_live=True)

    def drop(self, named: ModelName) -> None:
        """Remove a model, or one version of it that is not live.

        Raises:
            StatementError: There is none, or it is live while others are there.
            OutputError: It cannot be removed.
        """
        self.find(named)
        home = self.folder / named.name
        with _writing(home), self._locked():
            # It may have been dropped while we waited.
            found = self.find(named)
            if named.version is None:
                # Without a live version there is no model, even if we are killed now.
                (home / _LIVE).unlink(missing_ok=True)
                self._remove(home, self.versions(named.name))
                self._remove_home(home)
            elif found.is_live:
                hint = f"DROP MODEL {named.name} removes the model with all of its versions."
                raise StatementError(
                    f"The version {named} is the live one.", named.position, hint=hint
                )
            else:
                self._remove(home, (found.version,))

    def _remove(self, home: Path, versions: tuple[int, ...]) -> None:
        self._remove_rest(home)  # Where one was killed, a name may be taken.
        for version in versions:
            (home / str(version)).rename(home / f"{_REMOVED}{version}")
        self._remove_rest(home)

    @staticmethod
    def _remove_rest(home: Path) -> None:
        """Remove versions that were renamed for that."""
        for folder in home.glob(f"{_REMOVED}*"):
            rest = [path for path in folder.iterdir() if path.name != marker.NAME]
            if marker.kind_of(folder) == _VERSION:
                # The marker goes last: what is left of a version must still be known as ours.
                for path in [*rest, folder / marker.NAME]:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            elif rest:
                continue
            folder.rmdir()

    @staticmethod
    def _remove_home(home: Path) -> None:
        """Remove the folder of a model; where something else stands in it, the name stays ours."""
        for path in (*home.glob(f".{_LIVE}.*.partial"), home / _LOCK):
            path.unlink(missing_ok=True)
        if [path.name for path in home.iterdir()] == [marker.NAME]:
            (home / marker.NAME).unlink()
            home.rmdir()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold what one process at a time has: the right to change which versions there are.

        The lock is that of all models: a file in the folder of one would go with that.
        """
        with (self.folder / _LOCK).open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def _homes(self) -> Iterator[str]:
        if not self.folder.is_dir():
            return
        for path in sorted(self.folder.iterdir()):
            if path.is_dir() and marker.kind_of(path) == _MODEL:
                yield path.name

    def _live(self, name: str) -> int | None:
        try:
            text = (self.folder / name / _LIVE).read_text(encoding="ascii")
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not text.isdecimal():
            raise DataError(
                f"{self.folder / name / _LIVE} is damaged.",
                received=repr(text[:40]),
                hint="Write the number of the version that is to be live into it.",
            )
        return int(text)

    def _read(self, name: str, version: int) -> StoredModel:
        folder = self.folder / name / str(version)
        try:
            about = _about(json.loads((folder / _ABOUT).read_bytes()))
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise DataError(
                f"The model {name}@{version} is damaged: {e}.",
                received={"folder": folder},
                hint="Train it again.",
            ) from e
        is_live = version == self._live(name)
        return StoredModel(name=name, version=version, is_live=is_live, folder=folder, about=about)


def _about(found: dict[str, Any]) -> About:
    columns = tuple(ModelColumn(**each) for each in found.pop("columns"))
    trials = tuple(Trial(**each) for each in found.pop("trials", ()))
    read = {"columns": columns, "trials": trials, "told": tuple(found["told"])}
    return About(**{**found, **read})


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise OutputError(
            f"The folder of models cannot be written: {e}.",
            received={"models": folder},
            hint=hint_of(e),
        ) from e
