"""The image that a trained model names, and the zoo from which an image of it can be built."""

import logging
from pathlib import Path

from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError
from edl_horovod.image import reference
from edl_horovod.image.reference import Reference
from edl_horovod.models import zoo_files
from edl_horovod.models.git_zoo import FetchedZoo
from edl_horovod.models.trained_model_file import FILE_NAME, damaged_model, read_message
from edl_horovod.proto.trained_model_pb2 import TrainedModel

__all__ = ["image_of", "zoo_of"]

log = logging.getLogger(__name__)


def image_of(config: JobConfig) -> Reference | None:
    """Return the image that a model was trained in; None if it was trained without one.

    Raises:
        ConfigError: The trained model cannot be read here, or `trust` does not allow its image.
        DataError: The trained model is damaged.
    """
    named = _read(config).docker_commit_id
    if not named:
        return None
    try:
        image = reference.parse(named, "docker_commit_id")
    except ConfigError as e:
        path = Path(config.trained_model)
        raise damaged_model(path, f"{FILE_NAME}: {e}") from e
    if not config.trusts("image"):
        raise ConfigError(
            f"The trained model names the image that its pods would run: {image}. An image is a"
            " program, and the author of the model chose it.",
            received={"trained_model": config.trained_model, "image": ""},
            hint=f"Give it, image={image}, or another one; trust=image takes what a trained model"
            " names.",
        )
    log.info("The pods run the image that the trained model names: %s.", image)
    return image


def zoo_of(config: JobConfig) -> FetchedZoo:
    """Return a trained model's copy of the zoo, to build an image from it.

    The code must be unchanged, because installing the packages that it requires runs code.

    Raises:
        ConfigError: The trained model cannot be read here.
        DataError: The trained model is damaged, or its code has changed since it was trained.
    """
    path = Path(config.trained_model)
    recorded = _read(config).zoo_hash
    zoo_files.require_unchanged(path, recorded, trusts_changes=config.trusts("changed"))
    return FetchedZoo(path / "zoo", "", "")


def _read(config: JobConfig) -> TrainedModel:
    try:
        return read_message(Path(config.trained_model))
    except OSError as e:
        raise ConfigError(
            f"The trained model cannot be read here: {e.strerror}.",
            received={"trained_model": config.trained_model},
            hint="Where only the pods see it, give the image: image=... .",
        ) from e
