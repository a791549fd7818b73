"""Build and push the image of a model zoo."""

from edl_horovod.image.job import BuiltImage, as_if_built, build, ensure, plan_of

__all__ = ["BuiltImage", "as_if_built", "build", "ensure", "plan_of"]
