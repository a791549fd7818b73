"""The image of a job: the given one, the one that the model was trained in, or a new one."""

import os
from dataclasses import dataclass, replace
from pathlib import PurePath

from edl_horovod.config.schema import ImageConfig, JobConfig
from edl_horovod.config.tasks import TASKS
from edl_horovod.errors import ConfigError
from edl_horovod.image import engine, reference
from edl_horovod.image.plan import ZOO, ImagePlan, make_plan
from edl_horovod.models import git_zoo, spec_zoo
from edl_horovod.models.framework_name import with_framework
from edl_horovod.models.git_zoo import FetchedZoo

__all__ = ["BuiltImage", "as_if_built", "build", "ensure", "plan_of"]

UNBUILT = "not-built-yet"
"""Tag of an image in a dry run; the real tag is a digest of the content."""


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
    return _make(plan_of(config), push=push)


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
        with_reference = replace(config, image=str(reference.parse(config.image, "image")))
        return (
            replace(with_reference, model_zoo=_zoo_of_given(config))
            if _is_train(config)
            else with_reference
        )
    unbuilt = f"{config.image_repository}:{UNBUILT}"
    if not _is_train(config):
        from edl_horovod.image import trained

        if known_image := trained.image_of(config):
            return replace(config, image=str(known_image))
        _check_parts(config)
        plan = _job_plan(config, trained.zoo_of(config), needs_requirements=False)
        return replace(config, image=unbuilt if is_dry_run else _make(plan, push=True).digest)
    _check_parts(config)
    if spec_zoo.is_needed(config):
        if is_dry_run:
            return replace(config, image=unbuilt, model_zoo=ZOO, model_def=spec_zoo.MODEL_DEF)
        config = spec_zoo.with_zoo(config)
    if is_dry_run:
        config = with_framework(config)
        name = PurePath(config.model_zoo).name
        is_file = name.endswith(".py") and git_zoo.parse(config.model_zoo) is None
        return replace(config, image=unbuilt, model_zoo=f"{ZOO}/{name}" if is_file else ZOO)
    zoo = git_zoo.ensure_local(config.model_zoo)
    config = with_framework(replace(config, model_zoo=str(zoo.path)))
    built = _make(_job_plan(config, zoo), push=True)
    return replace(
        config,
        image=built.digest,
        model_zoo=built.model_zoo,
        model_zoo_source=zoo.source,
        model_zoo_commit=zoo.commit,
    )


def _is_train(config: JobConfig) -> bool:
    return TASKS[config.task].takes_zoo


def _make(plan: ImagePlan, *, push: bool) -> BuiltImage:
    with engine.connect() as builder:
        image = builder.build(plan)
        digest = str(builder.push(image)) if push else ""
    return BuiltImage(image=str(image), digest=digest, model_zoo=plan.zoo_path)


def _check_parts(config: JobConfig) -> None:
    missing = [key for key in ("base_image", "image_repository") if not getattr(config, key)]
    if missing:
        raise ConfigError(
            "A job on Kubernetes needs an image. Give a pre-built one, image=registry/path@sha256:"
            "..., or what one is made of: base_image=... and image_repository=... . Missing: "
            f"{', '.join(missing)}."
        )


def _job_plan(config: JobConfig, zoo: FetchedZoo, *, needs_requirements: bool = True) -> ImagePlan:
    return make_plan(
        zoo,
        base_image=config.base_image,
        repository=config.image_repository,
        needs_requirements=needs_requirements,
    )


def _zoo_of_given(config: JobConfig) -> str:
    """Path of the zoo in the pods of a pre-built image."""
    if spec_zoo.is_needed(config):
        raise ConfigError(
            "A pre-built image brings the model zoo, so none is made of a model spec.",
            received={"image": config.image, "model.name": config.model["name"]},
            hint="Leave one of the two out; with base_image=... the model is put on an image.",
        )
    if (zoo := git_zoo.parse(config.model_zoo)) is not None:
        raise ConfigError(
            "A pre-built image brings the model zoo, so none is fetched.",
            received={"image": config.image, "model_zoo": str(zoo)},
            hint="Leave one of the two out; with base_image=... the zoo is put on an image.",
        )
    is_default = config.model_zoo == os.path.abspath(JobConfig.model_zoo)
    return ZOO if is_default else config.model_zoo
