"""What a model may be written in: the table of frameworks, which imports none of them."""

from dataclasses import dataclass

__all__ = ["FRAMEWORKS", "FrameworkEntry"]


@dataclass(frozen=True, kw_only=True)
class FrameworkEntry:
    """What can be said of a framework without importing it."""

    module: str
    """`FRAMEWORK` in it is a `frameworks.base.Framework`; only a worker imports it."""
    packages: tuple[str, ...]
    """What a worker must be able to import, the framework itself first.

    Their versions decide what a trained model gives.
    """
    extra: str
    """The extra of this package that installs them."""


FRAMEWORKS = {
    "keras": FrameworkEntry(
        module="edl_horovod.frameworks.keras.framework",
        packages=("keras", "tensorflow"),
        extra="tensorflow",
    )
}
