"""Write a trained model: the directory that `evaluate` and `predict` work on."""

import contextlib
import importlib.metadata
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edl_horovod.config import params as params_text
from edl_horovod.config import resolved
from edl_horovod.config.frameworks import FRAMEWORKS
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import UserCodeError
from edl_horovod.files import json_text
from edl_horovod.files.output_dir import staged
from edl_horovod.frameworks.base import Framework
from edl_horovod.frameworks.models import Model
from edl_horovod.models import zoo_files
from edl_horovod.models.trained_model_file import FILE_NAME
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.proto.trained_model_pb2 import TrainedModel
from edl_horovod.records.layout import Column
from edl_horovod.records.time_types import columns_to_json
from edl_horovod.trained_model.adapted import write_adapted
from edl_horovod.trained_model.params import write_params

__all__ = ["FORMAT_VERSION", "installed_version", "write"]

FORMAT_VERSION = 1

log = logging.getLogger(__name__)


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
    """Write a trained model; it appears whole or not at all.

    Args:
        output: The directory to write.
        loaded: The spec that made the model.
        model: The trained model.
        framework: What it is written in.
        config: The job's settings; they say whether an earlier result there may be replaced.
        metrics: The last evaluation, or the last training metrics.
        steps: Number of steps trained.
        files: What of the model zoo is copied (`zoo_files.with_reads`).
        columns: Of the records of the training, as the model got them.

    Raises:
        OutputError: The output is in the way or cannot be written, or a tensor is too large.
        UserCodeError: The trained model is written, without an export that was asked for, which
            failed.
    """
    weights = model.weights
    packages = FRAMEWORKS[framework.name].packages
    versions = {package: installed_version(package) for package in packages}
    with staged(output, "trained model", overwrite=config.overwrite, job=config.job_dir) as folder:
        zoo_files.copy(loaded.zoo, files, to=folder / "zoo")
        filenames = write_params(folder, weights, version=steps)
        message = TrainedModel(
            docker_commit_id=config.image,
            model_def=config.model_def if loaded.zoo.is_dir() else loaded.full_name,
            model_def_params=params_text.format(config.params),
            params_filename=filenames[0],
            input_function=loaded.parts["input_fn"],
            loss=loaded.parts["loss"],
            optimizer=loaded.parts["optimizer"],
            format_version=FORMAT_VERSION,
            framework=framework.name,
            framework_version=versions[framework.name],
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
        # Others may read a trained model: what the pods' environment held is not theirs to see.
        shown = replace(config, kubernetes=replace(config.kubernetes, env={}))
        resolved.dump(shown, folder / resolved.FILE_NAME)
        model.save(folder)
        not_exported = _export(model, folder, config)
    log.info("Wrote the trained model %s (%d steps).", output, steps)
    if not_exported is not None:
        raise not_exported.with_more_hint(
            f"\nThe trained model {output} is whole but for this: edl evaluate and edl predict"
            " work on it."
        )


def _export(model: Model, folder: Path, config: JobConfig) -> UserCodeError | None:
    """Write what is asked for beside the trained model, which no failure of this may cost."""
    train = config.train
    if not train.saved_model and not train.onnx:
        return None
    try:
        model.export(folder, saved_model=train.saved_model, onnx=train.onnx)
    except UserCodeError as e:
        return e
    return None


def installed_version(package: str) -> str:
    """The version of a package that is installed, under whatever name (tensorflow-cpu)."""
    for name in (package, f"{package}-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    # What else may it be called? That takes long to find out.
    names = importlib.metadata.packages_distributions().get(package, [package])
    return importlib.metadata.version(names[0])
