"""The settings of `edl image`."""

from dataclasses import dataclass
from typing import ClassVar

from edl_horovod.config.checks import check_given

__all__ = ["ImageConfig"]


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """The contents of an image, and the repository to which it is pushed."""

    base_image: str
    """Image that the model zoo is put on: one of docker/Dockerfile, with a tag or a digest."""
    image_repository: str
    """Where images go: `registry/path`, without a tag."""
    model_zoo: str = "model_zoo"
    """Folder of model files, one .py file, or git+https://host/repo.git@REF#subdirectory=path."""

    INSTEAD_OF_A_MODEL_IN_FILES: ClassVar = (
        "edl image puts a model zoo on an image, and the zoo of a model in files is written only"
        " when a job starts.",
        "Start the job with base_image=... and image_repository=... (edl train launch=kubernetes):"
        " it puts the model on an image and pushes that.",
    )
    """Why the verb takes no model in files, and what to do instead."""

    def __post_init__(self) -> None:
        check_given("base_image", self.base_image, "the image that the model zoo is put on")
        check_given("image_repository", self.image_repository, "where images go")
