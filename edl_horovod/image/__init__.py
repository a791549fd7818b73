"""Build and push the image of a model zoo."""

from edl_horovod.image.job import BuiltImage, build, ensure, plan_of

__all__ = ["BuiltImage", "build", "ensure", "plan_of"]
