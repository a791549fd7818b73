"""Write a trained model: the directory that `evaluate` and `predict` work on."""

import contextlib
import importlib.metadata
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edl_horovod.config import params as params_text
from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.files import json_text
from edl_horovod.files.output_dir import staged
from edl_horovod.models import zoo_files
from edl_horovod.models.calling import user_code
from edl_horovod.models.lookup import import_root
from edl_horovod.models.trained_model_file import FILE_NAME
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.proto.trained_model_pb2 import TrainedModel
from edl_horovod.trained_model.params import variable_names, write_params

__all__ = ["FORMAT_VERSION", "FRAMEWORK", "installed_version", "write"]

FORMAT_VERSION = 1
FRAMEWORK = "keras"

log = logging.getLogger(__name__)


def write(
    output: Path,
    *,
    loaded: LoadedSpec,
    model: Any,
    config: JobConfig,
    metrics: Mapping[str, float],
    steps: int,
) -> None:
    """Write a trained model; it appears whole or not at all.

    Args:
        output: The directory to write.
        loaded: The spec that made the model; its model zoo is copied.
        model: A built `keras.Model`.
        config: The job's settings; they say whether an earlier result there may be replaced.
        metrics: The last evaluation, or the last training metrics.
        steps: Number of steps trained.

    Raises:
        ConfigError: The zoo holds a link that leads out of it.
        OutputError: The output is in the way or cannot be written, or the zoo or a tensor is too
            large.
    """
    files = zoo_files.sources(loaded.zoo)
    with staged(output, "trained model", overwrite=config.overwrite, job=config.job_dir) as folder:
        _copy_zoo(loaded.zoo, files, to=folder / "zoo")
        filenames = write_params(folder, model.weights, version=steps)
        message = TrainedModel(
            docker_commit_id=config.image,
            model_def=config.model_def if loaded.zoo.is_dir() else loaded.full_name,
            model_def_params=params_text.format(config.params),
            params_filename=filenames[0],
            input_function=loaded.parts["input_fn"],
            loss=loaded.parts["loss"],
            optimizer=loaded.parts["optimizer"],
            format_version=FORMAT_VERSION,
            framework=FRAMEWORK,
            framework_version=installed_version(FRAMEWORK),
            tensorflow_version=installed_version("tensorflow"),
            zoo_hash=zoo_files.digest(folder / "zoo", files),
            metrics=metrics,
            steps=steps,
            more_params_filenames=filenames[1:],
            param_names=variable_names(model.weights),
        )
        (folder / FILE_NAME).write_bytes(message.SerializeToString(deterministic=True))
        (folder / "metrics.json").write_text(json_text.dumps(dict(metrics), indent=2) + "\n")
        # Others may read a trained model: what the pods' environment held is not theirs to see.
        shown = replace(config, kubernetes=replace(config.kubernetes, env={}))
        resolved.dump(shown, folder / resolved.FILE_NAME)
        _save_keras(model, folder / "model.keras")
        if config.train.saved_model:
            _export(model, folder / "saved_model")
    log.info("Wrote the trained model %s (%d steps).", output, steps)


def installed_version(package: str) -> str:
    """The version of a package that is installed, under whatever name (tensorflow-cpu)."""
    for name in (package, f"{package}-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    # What else may it be called? That takes long to find out.
    names = importlib.metadata.packages_distributions().get(package, [package])
    return importlib.metadata.version(names[0])


def _copy_zoo(zoo: Path, files: Sequence[Path], *, to: Path) -> None:
    for file in files:
        copy = to / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(import_root(zoo) / file, copy)


def _save_keras(model: Any, path: Path) -> None:
    """Save for programs without edl_horovod; the rest of a trained model does not need it."""
    try:
        model.save(path)
    except (NotImplementedError, TypeError, ValueError) as e:  # What Keras raises for a config.
        path.unlink(missing_ok=True)
        log.warning(
            "The trained model has no model.keras, because Keras cannot save this model: %s."
            " Evaluate and predict work without it; get_config of the model's classes mends it.",
            e,
        )


def _export(model: Any, path: Path) -> None:
    """Write a SavedModel: a graph that TensorFlow Serving and others run without Python."""
    with user_code("Exporting the model as a SavedModel (train.saved_model=true)", root=path):
        model.export(path, format="tf_saved_model", verbose=False)
