"""Names of images, with registry, repository, tag and digest."""

import re
from dataclasses import dataclass

from edl_horovod.errors import ConfigError

__all__ = ["Reference", "parse", "parse_repository"]

_NAME = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_REFERENCE = re.compile(
    rf"(?P<repository>(?:(?P<host>{_HOST})/)?{_NAME}(?:/{_NAME})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_KUBERNETES_SCHEME = "docker-pullable://"
"""Prefix with which Kubernetes shows the image of a running container."""


@dataclass(frozen=True)
class Reference:
    """The name of one image."""

    repository: str
    """Repository with its registry: `registry.example.com:5000/team/zoo`."""
    tag: str = ""
    digest: str = ""
    """`sha256:...`, which always means the same image."""

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.repository}{tag}{f'@{self.digest}' if self.digest else ''}"


def parse(text: str, key: str) -> Reference:
    """Parse `repository:tag` or `repository@sha256:...`, which the setting `key` gives.

    Raises:
        ConfigError: The text is not the name of an image, or the name may change its meaning.
    """
    match = _REFERENCE.fullmatch(text.removeprefix(_KUBERNETES_SCHEME))
    if not match:
        raise ConfigError(
            f"{key} is no name of an image.",
            received={key: text},
            hint="Write registry/path:tag or registry/path@sha256:... .",
        )
    if not match["digest"] and match["tag"] in (None, "latest"):
        raise ConfigError(
            f"{key} must say which image it is: the name may mean another one"
            " tomorrow, while the job runs.",
            received={key: text},
            hint="Add @sha256:... or :tag, one that is not latest.",
        )
    return Reference(match["repository"], match["tag"] or "", match["digest"] or "")


def parse_repository(text: str) -> str:
    """Parse `image_repository`.

    Raises:
        ConfigError: The text is not a repository, has a tag or a digest, or has no registry.
    """
    match = _REFERENCE.fullmatch(text)
    if not match or match["tag"] or match["digest"]:
        raise ConfigError(
            "image_repository must name a repository of a registry; the tag is made of what the"
            " image holds.",
            received={"image_repository": text},
            hint="Write registry/path.",
        )
    return text
