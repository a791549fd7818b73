"""Read a trained model: its settings, its code and its parameters."""

import contextlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edl_horovod.config import resolved
from edl_horovod.config.frameworks import FRAMEWORKS
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError, DataError, EdlError, error_kind, error_of_kind
from edl_horovod.files.json_text import numbers
from edl_horovod.frameworks.values import Variable
from edl_horovod.models import zoo, zoo_files
from edl_horovod.models.parts import PlainModels
from edl_horovod.models.trained_model_file import FILE_NAME, damaged_model, read_message
from edl_horovod.models.zoo import LoadedSpec, Overrides
from edl_horovod.proto.trained_model_pb2 import TrainedModel
from edl_horovod.records.layout import Column
from edl_horovod.records.time_types import columns_from_json
from edl_horovod.trained_model.adapted import read_adapted
from edl_horovod.trained_model.params import read_params
from edl_horovod.trained_model.write import FORMAT_VERSION, installed_version

__all__ = ["TrainedModelFiles", "load_spec", "read", "restore_weights", "naming_versions"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainedModelFiles:
    """A trained model on disk; its parameters are not read yet."""

    path: Path
    message: TrainedModel
    config: JobConfig
    """The settings of the job that trained it."""
    metrics: dict[str, float]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the records of the training, as far as it says them.

        A model of a table that an earlier version trained says which columns are dates, any other
        model nothing.
        """
        if self.message.feature_spec:
            return columns_from_json(self.message.feature_spec)
        adapted = read_adapted(self.path)
        entries = adapted.get("columns") if isinstance(adapted, dict) else None
        columns = [
            entry for entry in entries or () if isinstance(entry, dict) and entry.get("unit")
        ]
        return tuple(
            Column(entry["name"], "int64", time_type=f"datetime64[{entry['unit']}]")
            for entry in columns
        )

    @property
    def params_files(self) -> list[Path]:
        """The files of parameters."""
        names = [self.message.params_filename, *self.message.more_params_filenames]
        return [self.path / name for name in names]


def read(path: Path) -> TrainedModelFiles:
    """Read everything of a trained model but its parameters.

    Raises:
        ConfigError: It is not there, or is not a trained model.
        DataError: It is damaged, or of a newer format.
    """
    message = _read_message(path)
    try:
        config = resolved.load(path / resolved.FILE_NAME)
        metrics = numbers(json.loads((path / "metrics.json").read_text()))
    except (OSError, ValueError) as e:
        raise damaged_model(path, str(e)) from e
    files = TrainedModelFiles(path=path, message=message, config=config, metrics=metrics)
    for needed in (path / "zoo", *files.params_files):
        if not needed.exists():
            raise damaged_model(path, f"{needed.name} is missing")
    return files


def load_spec(
    files: TrainedModelFiles,
    *,
    plain_models: PlainModels | None = None,
    trusts_changes: bool = False,
) -> LoadedSpec:
    """Make the spec from the copy of the model zoo inside a trained model, which runs its code.

    Args:
        files: The trained model.
        plain_models: Knows the framework's models without a spec; None takes specs alone.
        trusts_changes: Whether code is run that the model was not trained with.

    Raises:
        DataError: The code is not what the model was trained with, or a file is damaged.
        UserCodeError: The copied files do not load here, for want of a package perhaps.
    """
    if others := _other_versions(files):
        # Before anything fails for it.
        log.warning("%s If it gives other outputs, install those.", others)
    zoo_files.require_unchanged(files.path, files.message.zoo_hash, trusts_changes=trusts_changes)
    loaded = zoo.load_spec(
        str(files.path / "zoo"),
        files.message.model_def,
        params=files.config.params,
        overrides=Overrides.of(files.config),
        plain_models=plain_models,
    )
    loaded.spec.adapted = read_adapted(files.path)
    return loaded


@contextlib.contextmanager
def naming_versions(files: TrainedModelFiles) -> Iterator[None]:
    """Say in an error of loading a model that other versions trained it, where that is so.

    Raises:
        EdlError: As within, with a sentence more.
    """
    try:
        yield
    except EdlError as e:
        others = _other_versions(files)
        if not others:
            raise
        raise error_of_kind(error_kind(e), f"{e} {others} Install those versions.") from e


def restore_weights(files: TrainedModelFiles, weights: Mapping[str, Variable]) -> None:
    """Give a model its trained parameters.

    They are matched by the names of the variables. Keras numbers layers without a name of their own
    through the whole process, so `dense_3` is the trained `dense` where order and the rest agree.

    Args:
        files: The trained model.
        weights: The weights of the model that the trained model's own spec makes, by name.

    Raises:
        DataError: A file is damaged, or the parameters are not those of this model.
    """
    trained = list(files.message.param_names)
    names = list(weights)
    if set(names) != set(trained):
        _require_same_but_numbers(files, trained, names)
        names = trained
    variables = dict(zip(names, weights.values(), strict=True))
    for name, value in read_params(files.params_files):
        variable = variables.pop(name, None)
        if variable is None:
            raise damaged_model(files.path, f"the parameter {name!r} is there twice or not listed")
        if tuple(variable.shape) != value.shape:
            raise DataError(
                f"The parameter {name!r} of {files.path} does not fit the model.",
                received=f"shape {value.shape}, the model has {tuple(variable.shape)}",
                hint="Use the trained model's own params.",
            )
        variable.assign(value)
    if variables:
        raise damaged_model(files.path, f"values are missing for {', '.join(sorted(variables))}")


def _read_message(path: Path) -> TrainedModel:
    if not (path / FILE_NAME).is_file():
        lacks = f"{path} is not a trained model: it has no {FILE_NAME}."
        raise ConfigError(
            lacks if path.is_dir() else "There is no such trained model.",
            received={"trained_model": path},
            hint="Give the directory that train wrote as its output.",
        )
    try:
        message = read_message(path)
    except OSError as e:
        raise damaged_model(path, f"{FILE_NAME}: {e}") from e
    if message.format_version < 1 or not message.params_filename:
        raise damaged_model(path, f"{FILE_NAME} does not say its format")
    if message.format_version > FORMAT_VERSION:
        raise DataError(
            f"{path} was written by a newer edl_horovod: its format version is"
            f" {message.format_version}, and this one reads up to {FORMAT_VERSION}.",
            hint="Install the newer.",
        )
    if message.framework not in FRAMEWORKS:
        raise DataError(
            f"{path} is not a model of {' or '.join(FRAMEWORKS)}, the frameworks that this"
            " edl_horovod evaluates and predicts with.",
            received=f"framework {message.framework!r}",
        )
    return message


def _other_versions(files: TrainedModelFiles) -> str:
    """Which versions trained the model, where they are not those that are installed here."""
    trained = {files.message.framework: files.message.framework_version}
    if files.message.tensorflow_version:
        trained["tensorflow"] = files.message.tensorflow_version
    installed = {name: installed_version(name) for name in trained}
    others = [
        f"{name} {version} (here is {installed[name]})"
        for name, version in trained.items()
        if version.split(".")[:2] != installed[name].split(".")[:2]
    ]
    return f"{files.path} was trained with {' and '.join(others)}." if others else ""


def _require_same_but_numbers(
    files: TrainedModelFiles, trained: Sequence[str], names: Sequence[str]
) -> None:
    if [_without_numbers(name) for name in trained] == [_without_numbers(name) for name in names]:
        return
    missing = sorted(set(names) - set(trained))
    left_over = sorted(set(trained) - set(names))
    raise DataError(
        f"The parameters of {files.path} are not those of the model that its spec makes."
        f" The model lacks: {', '.join(left_over[:5]) or 'none'}."
        f" The trained model lacks: {', '.join(missing[:5]) or 'none'}."
        " Use the trained model's own params."
    )


def _without_numbers(name: str) -> str:
    return re.sub(r"_\d+(?=/|:|$)", "", name)
