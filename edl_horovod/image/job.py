"""The image of a job: the given one, the one that the model was trained in, or a new one."""

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from edl_horovod.config.schema import ImageConfig, JobConfig
from edl_horovod.config.tasks import TASKS
from edl_horovod.errors import ConfigError
from edl_horovod.image import engine
from edl_horovod.image.plan import ZOO, ImagePlan, Reference, make_plan, parse_reference
from edl_horovod.models import git_zoo, job_zoo, zoo_files
from edl_horovod.models.framework_name import with_framework
from edl_horovod.models.git_zoo import FetchedZoo
from edl_horovod.models.trained_model_file import FILE_NAME, damaged_model, read_message
from edl_horovod.proto.trained_model_pb2 import TrainedModel

__all__ = ["BuiltImage", "as_if_built", "build", "ensure", "plan_of"]

UNBUILT = "not-built-yet"
"""Tag of an image in a dry run; the real tag is a digest of the content."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """An image of a model zoo."""

    image: str
    """`repository:tag`; the tag is a digest of the content."""
    digest: str = ""
    """`repository@sha256:...`, by which it can be pulled; empty if it was not pushed."""
    model_zoo: str = ZOO
    """Path of the zoo in the image."""


def plan_of(config: ImageConfig) -> ImagePlan:
    """Decide what an image is made of; a zoo in Git is fetched.

    Raises:
        EdlError: A setting is wrong, or the zoo cannot be fetched.
    """
    zoo = git_zoo.ensure_local(config.model_zoo)
    return make_plan(zoo, base_image=config.base_image, repository=config.image_repository)


def build(config: ImageConfig, *, push: bool = False) -> BuiltImage:
    """Build the image of a model zoo, and push it if asked.

    Raises:
        EdlError: A setting is wrong, or the image cannot be built or pushed.
    """
    return _build(plan_of(config), push=push)


def ensure(config: JobConfig) -> JobConfig:
    """Return the job with an image that pods can pull, and with the path of the zoo in that image.

    An image given by `image=` is used as it is: the zoo must be in it or on a volume, at
    `/model_zoo` or at the path in `model_zoo`. Otherwise training builds an image and pushes it.
    Evaluation and prediction use the image that the trained model names, if `trust` allows it; if
    it names none, they build one from the model's copy of the zoo.

    Raises:
        EdlError: A setting is wrong or missing, or the image cannot be built or pushed.
    """
    return _with_image(config, is_dry_run=False)


def as_if_built(config: JobConfig) -> JobConfig:
    """Return the job as `ensure` would; nothing is fetched, built or pushed.

    Raises:
        EdlError: A setting is wrong or missing.
    """
    return _with_image(config, is_dry_run=True)


def _with_image(config: JobConfig, *, is_dry_run: bool) -> JobConfig:
    if config.image:
        with_reference = replace(config, image=str(parse_reference(config.image, "image")))
        return (
            replace(with_reference, model_zoo=_zoo_path_in_image(config))
            if _is_train(config)
            else with_reference
        )
    unbuilt = f"{config.image_repository}:{UNBUILT}"
    if not _is_train(config):
        if known_image := _trained_image(config):
            return replace(config, image=str(known_image))
        _check_parts(config)
        plan = _job_plan(config, _trained_zoo(config), needs_requirements=False)
        return replace(config, image=unbuilt if is_dry_run else _build(plan, push=True).digest)
    _check_parts(config)
    if is_dry_run:
        config = with_framework(job_zoo.as_if_localized(config))
        name = PurePath(config.model_zoo).name
        is_file = name.endswith(".py") and git_zoo.parse(config.model_zoo) is None
        return replace(config, image=unbuilt, model_zoo=f"{ZOO}/{name}" if is_file else ZOO)
    config = with_framework(job_zoo.localized(config))
    zoo = FetchedZoo(Path(config.model_zoo), config.model_zoo_source, config.model_zoo_commit)
    built = _build(_job_plan(config, zoo), push=True)
    return replace(config, image=built.digest, model_zoo=built.model_zoo)


def _is_train(config: JobConfig) -> bool:
    return TASKS[config.task].takes_zoo


def _build(plan: ImagePlan, *, push: bool) -> BuiltImage:
    with engine.connect() as builder:
        image = builder.build(plan)
        digest = str(builder.push(image)) if push else ""
    return BuiltImage(image=str(image), digest=digest, model_zoo=plan.zoo_path)


def _check_parts(config: JobConfig) -> None:
    missing = [key for key in ("base_image", "image_repository") if not getattr(config, key)]
    if missing:
        raise ConfigError(
            "A job on Kubernetes needs an image. Give a pre-built one, image=registry/path@sha256:"
            "..., or the settings to build one: base_image=... and image_repository=... . Missing: "
            f"{', '.join(missing)}."
        )


def _job_plan(config: JobConfig, zoo: FetchedZoo, *, needs_requirements: bool = True) -> ImagePlan:
    return make_plan(
        zoo,
        base_image=config.base_image,
        repository=config.image_repository,
        needs_requirements=needs_requirements,
    )


def _zoo_path_in_image(config: JobConfig) -> str:
    """Path of the zoo in the pods of a pre-built image."""
    if job_zoo.pending(config):
        raise ConfigError(
            "A pre-built image contains its model zoo, so no other one can be used with it.",
            received={"image": config.image, **job_zoo.origin(config)},
            hint="Leave one of the two out, or build an image with the zoo: base_image=... .",
        )
    is_default = config.model_zoo == os.path.abspath(JobConfig.model_zoo)
    return ZOO if is_default else config.model_zoo


def _trained_image(config: JobConfig) -> Reference | None:
    """Return the image that a model was trained in; None if it was trained without one.

    Raises:
        ConfigError: The trained model cannot be read here, or `trust` does not allow its image.
        DataError: The trained model is damaged.
    """
    named = _read_trained_model(config).docker_commit_id
    if not named:
        return None
    try:
        image = parse_reference(named, "docker_commit_id")
    except ConfigError as e:
        path = Path(config.trained_model)
        raise damaged_model(path, f"{FILE_NAME}: {e}") from e
    if not config.trusts("image"):
        raise ConfigError(
            f"The trained model names the image that its pods would run: {image}. An image is a"
            " program, and the author of the model chose it.",
            received={"trained_model": config.trained_model, "image": ""},
            hint=f"Set image={image}, or another image; trust=image accepts the one that the"
            " trained model names.",
        )
    log.info("The pods run the image that the trained model names: %s.", image)
    return image


def _trained_zoo(config: JobConfig) -> FetchedZoo:
    """Return a trained model's copy of the zoo, to build an image from it.

    The code must be unchanged, because installing the packages that it requires runs code.

    Raises:
        ConfigError: The trained model cannot be read here.
        DataError: The trained model is damaged, or its code has changed since it was trained.
    """
    path = Path(config.trained_model)
    recorded = _read_trained_model(config).zoo_hash
    zoo_files.require_unchanged(path, recorded, trusts_changes=config.trusts("changed"))
    return FetchedZoo(path / "zoo", "", "")


def _read_trained_model(config: JobConfig) -> TrainedModel:
    try:
        return read_message(Path(config.trained_model))
    except OSError as e:
        raise ConfigError(
            f"The trained model cannot be read here: {e.strerror}.",
            received={"trained_model": config.trained_model},
            hint="Where only the pods see it, give the image: image=... .",
        ) from e
