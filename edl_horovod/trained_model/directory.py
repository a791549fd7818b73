"""The directory of a trained model: write it, and read its settings, code and parameters."""

import contextlib
import importlib.metadata
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edl_horovod.config import params as params_text
from edl_horovod.config import resolved
from edl_horovod.config.frameworks import FRAMEWORKS
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import (
    ConfigError,
    DataError,
    EdlError,
    UserCodeError,
    error_kind,
    error_of_kind,
)
from edl_horovod.files import json_text
from edl_horovod.files.output_dir import staged
from edl_horovod.frameworks.base import Framework, Model
from edl_horovod.frameworks.values import Variable
from edl_horovod.models import zoo, zoo_files
from edl_horovod.models.parts import PlainModels
from edl_horovod.models.trained_model_file import (
    FILE_NAME,
    damaged_model,
    read_adapted,
    read_message,
    write_adapted,
)
from edl_horovod.models.zoo import LoadedSpec, Overrides
from edl_horovod.proto.trained_model_pb2 import TrainedModel
from edl_horovod.records.as_trained import columns_from_json, columns_to_json
from edl_horovod.records.layout import Column
from edl_horovod.trained_model.params import read_params, write_params

FORMAT_VERSION = 1
"""Version of the format that is written; newer ones cannot be read."""

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
        """The columns of the training records, as far as the model describes them.

        Of the models of earlier releases, those of tables describe only their columns of dates, and
        others describe none.
        """
        if self.message.feature_spec:
            return columns_from_json(self.message.feature_spec)
        adapted = read_adapted(self.path)
        entries = adapted.get("columns") if isinstance(adapted, dict) else None
        return tuple(
            Column(entry["name"], "int64", time_type=f"datetime64[{entry['unit']}]")
            for entry in entries or ()
            if isinstance(entry, dict) and entry.get("unit")
        )

    @property
    def params_files(self) -> list[Path]:
        """The files of parameters."""
        names = [self.message.params_filename, *self.message.more_params_filenames]
        return [self.path / name for name in names]


def write(
    output: Path,
    *,
    loaded: LoadedSpec,
    model: Model,
    framework: Framework,
    config: JobConfig,
    metrics: Mapping[str, float],
    steps: int,
    files: Sequence[Path],
    columns: Sequence[Column] = (),
) -> None:
    """Write a trained model; it appears as a whole or not at all.

    Args:
        output: The directory to write.
        loaded: The spec that made the model.
        model: The trained model.
        framework: The framework of the model.
        config: The job's settings, among them whether an existing output may be replaced.
        metrics: The metrics of the last evaluation, or else of the training.
        steps: Number of steps trained.
        files: The files of the model zoo that are copied; see `zoo_files.with_reads`.
        columns: The columns of the training records as the model received them.

    Raises:
        OutputError: The output exists or cannot be written, or a tensor is too large.
        UserCodeError: An export that the settings ask for failed; the trained model itself has
            been written.
    """
    weights = model.weights
    packages = FRAMEWORKS[framework.name].packages
    versions = {package: _installed_version(package) for package in packages}
    with staged(output, "trained model", overwrite=config.overwrite, job=config.job_dir) as folder:
        zoo_files.copy(loaded.zoo, files, to=folder / "zoo")
        filenames = write_params(folder, weights, version=steps)
        # The copy is a folder even if the zoo is a single file, whose `model_def` may be left out.
        model_def = config.model_def if loaded.zoo.is_dir() else loaded.full_name
        message = TrainedModel(
            docker_commit_id=config.image,
            model_def=model_def,
            model_def_params=params_text.format(config.params),
            params_filename=filenames[0],
            input_function=loaded.parts["input_fn"],
            loss=loaded.parts["loss"],
            optimizer=loaded.parts["optimizer"],
            format_version=FORMAT_VERSION,
            framework=framework.name,
            framework_version=versions[packages[0]],
            tensorflow_version=versions.get("tensorflow", ""),
            zoo_hash=zoo_files.digest(folder / "zoo", files),
            metrics=metrics,
            feature_spec=columns_to_json(columns),
            steps=steps,
            more_params_filenames=filenames[1:],
            param_names=list(weights),
        )
        write_adapted(folder, loaded.spec.adapted)
        (folder / FILE_NAME).write_bytes(message.SerializeToString(deterministic=True))
        (folder / "metrics.json").write_text(json_text.dumps(dict(metrics), indent=2) + "\n")
        # Other users may read a trained model.
        resolved.dump(config.public(), folder / resolved.FILE_NAME)
        model.save(folder)
        exports = {"saved_model": config.train.saved_model, "onnx": config.train.onnx}
        export_error: UserCodeError | None = None
        try:
            if any(exports.values()):
                model.export(folder, **exports)
        except UserCodeError as e:
            export_error = e  # It must not lose the trained model.
    log.info("Wrote the trained model %s (%d steps).", output, steps)
    if export_error is not None:
        raise export_error.with_more_hint(
            f"\nThe trained model {output} is complete except for this export: edl evaluate and"
            " edl predict work with it."
        )


def read(path: Path) -> TrainedModelFiles:
    """Read a trained model without its parameters.

    Raises:
        ConfigError: The directory does not exist or does not hold a trained model.
        DataError: The trained model is damaged, or has a newer format.
    """
    message = _read_message(path)
    try:
        config = resolved.load(path / resolved.FILE_NAME)
        metrics = json_text.numbers(json.loads((path / "metrics.json").read_text()))
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
    """Load the spec from a trained model's copy of the model zoo; this runs its code.

    Args:
        files: The trained model.
        plain_models: Loads the framework's models without a spec; None accepts only specs.
        trusts_changes: Whether to run code that has changed since the training.

    Raises:
        DataError: The code has changed since the training, or a file is damaged.
        UserCodeError: The copied files cannot be loaded here, for example without a package.
    """
    if others := _other_versions(files):
        # Warn first, because loading may fail for this reason.
        log.warning("%s If its outputs differ, install those versions.", others)
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
    """Add to an error of loading a model the versions that trained it, if they differ.

    Raises:
        EdlError: The error that was raised within, with a sentence on the versions.
    """
    try:
        yield
    except EdlError as e:
        others = _other_versions(files)
        if not others:
            raise
        raise error_of_kind(error_kind(e), f"{e} {others} Install those versions.") from e


def restore_weights(files: TrainedModelFiles, weights: Mapping[str, Variable]) -> None:
    """Assign the trained parameters to a model.

    They are matched by the names of the variables. Keras numbers unnamed layers through the whole
    process, so `dense_3` matches the trained `dense` if the order and all other names agree.

    Args:
        files: The trained model.
        weights: The weights, by name, of the model that the trained model's own spec creates.

    Raises:
        DataError: A file is damaged, or the parameters do not belong to this model.
    """
    trained = list(files.message.param_names)
    names = list(weights)
    if set(names) != set(trained):
        _check_names(files, trained, names)
        names = trained
    variables = dict(zip(names, weights.values(), strict=True))
    for name, value in read_params(files.params_files):
        variable = variables.pop(name, None)
        if variable is None:
            raise damaged_model(files.path, f"the parameter {name!r} occurs twice or is not listed")
        if tuple(variable.shape) != value.shape:
            problem = f"The parameter {name!r} of {files.path} does not fit the model."
            shapes = f"shape {value.shape}, the model has {tuple(variable.shape)}"
            hint = "Use the params of the trained model."
            raise DataError(problem, received=shapes, hint=hint)
        variable.assign(value)
    if variables:
        raise damaged_model(files.path, f"values are missing for {', '.join(sorted(variables))}")


def _installed_version(package: str) -> str:
    """The version of an installed package, which may have another name, as tensorflow-cpu has."""
    for name in (package, f"{package}-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    # Find the distribution by the package that it provides, which is slow.
    names = importlib.metadata.packages_distributions().get(package, [package])
    return importlib.metadata.version(names[0])


def _read_message(path: Path) -> TrainedModel:
    if not (path / FILE_NAME).is_file():
        problem = "There is no such trained model."
        if path.is_dir():
            problem = f"{path} is not a trained model: it has no {FILE_NAME}."
        hint = "Give the directory that train wrote as its output."
        raise ConfigError(problem, received={"trained_model": path}, hint=hint)
    try:
        message = read_message(path)
    except OSError as e:
        raise damaged_model(path, f"{FILE_NAME}: {e}") from e
    if message.format_version < 1 or not message.params_filename:
        raise damaged_model(path, f"{FILE_NAME} does not say its format")
    if message.format_version > FORMAT_VERSION:
        version = f"version is {message.format_version}, and this one reads up to {FORMAT_VERSION}"
        problem = f"{path} was written by a newer edl_horovod: its format {version}."
        raise DataError(problem, hint="Install the newer version.")
    if message.framework not in FRAMEWORKS:
        raise DataError(
            f"{path} is not a model of {' or '.join(FRAMEWORKS)}, the frameworks that this"
            " edl_horovod evaluates and predicts with.",
            received=f"framework {message.framework!r}",
        )
    return message


def _other_versions(files: TrainedModelFiles) -> str:
    """A sentence on the versions that trained the model, if other ones are installed here."""
    package = FRAMEWORKS[files.message.framework].packages[0]
    trained = {package: files.message.framework_version}
    if files.message.tensorflow_version:
        trained["tensorflow"] = files.message.tensorflow_version
    installed = {name: _installed_version(name) for name in trained}
    others = [
        f"{name} {version} ({installed[name]} is installed here)"
        for name, version in trained.items()
        if version.split(".")[:2] != installed[name].split(".")[:2]
    ]
    return f"{files.path} was trained with {' and '.join(others)}." if others else ""


def _check_names(files: TrainedModelFiles, trained: Sequence[str], names: Sequence[str]) -> None:
    if [_without_numbers(name) for name in trained] == [_without_numbers(name) for name in names]:
        return
    missing = sorted(set(names) - set(trained))
    left_over = sorted(set(trained) - set(names))
    raise DataError(
        f"The parameters of {files.path} do not belong to the model that its spec creates."
        f" The model lacks: {', '.join(left_over[:5]) or 'none'}."
        f" The trained model lacks: {', '.join(missing[:5]) or 'none'}."
        " Use the params of the trained model."
    )


def _without_numbers(name: str) -> str:
    return re.sub(r"_\d+(?=/|:|$)", "", name)
