"""The plan of an image of a model zoo, as a value: the names of images, files, the build context.

The layers, ordered from the one that changes least, are the base image, the packages that the zoo
requires, and the zoo. So a changed model costs one small layer to build, push and pull.
"""

import hashlib
import io
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from edl_horovod.errors import ConfigError
from edl_horovod.models import lookup, zoo_files
from edl_horovod.models.git_zoo import FetchedZoo

ZOO = "/model_zoo"
"""Path of the zoo in an image."""
REQUIREMENTS = "requirements.txt"
MAX_BYTES = 512 << 20
"""Largest zoo that is put into an image, in bytes."""
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


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """An image that can be built."""

    base: Reference
    repository: str
    name: str
    """Name of the zoo, with which the tag starts."""
    zoo_path: str
    """Path of the zoo in the image: `/model_zoo`, or a file in it."""
    files: Mapping[str, Path]
    """Files on this machine by their names in the zoo, sorted."""
    requirements: bytes
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_requirements(self) -> bool:
        """Whether the zoo requires any package."""
        lines = self.requirements.decode(errors="replace").splitlines()
        return any(line.partition("#")[0].strip() for line in lines)

    @property
    def num_bytes(self) -> int:
        """Size of the zoo in bytes."""
        return sum(file.stat().st_size for file in self.files.values())

    def dockerfile(self, *, base: str, user: str) -> str:
        """The text of the Dockerfile; `user` is that of the base image, empty for root."""
        lines = [f"FROM {base}"]
        lines += ["USER root"] if user else []
        if self.has_requirements:
            lines += [
                f"COPY {REQUIREMENTS} {ZOO}/{REQUIREMENTS}",
                "RUN python -m pip install --no-cache-dir --disable-pip-version-check"
                f" -r {ZOO}/{REQUIREMENTS}",
            ]
        lines.append(f"COPY model_zoo {ZOO}/")
        lines += [f'LABEL "{name}"="{value}"' for name, value in sorted(self.labels.items())]
        lines += [f"USER {user}"] if user else []
        return "".join(f"{line}\n" for line in lines)

    def tag(self, base_id: str, dockerfile: str) -> str:
        """A unique tag: a digest of everything that the image is made of."""
        digest = hashlib.sha256(f"{base_id}\n{dockerfile}\0".encode())
        for name, file in self.files.items():
            content = file.read_bytes()
            digest.update(f"{name}\0{_mode(file):o}\0{len(content)}\0".encode())
            digest.update(content)
        digest.update(self.requirements)
        return f"{self.name}-{digest.hexdigest()[:20]}"


def make_plan(
    zoo: FetchedZoo, *, base_image: str, repository: str, needs_requirements: bool = True
) -> ImagePlan:
    """Plan the image of a model zoo that lies on this machine: its base, name, files and labels.

    Raises:
        ConfigError: A name is not valid, or the zoo cannot be put into an image.
    """
    path = lookup.require_zoo(str(zoo.path))
    files = {path.name: path} if path.is_file() else _folder(path)
    requirements = files.get(REQUIREMENTS)
    if path.is_dir() and needs_requirements and requirements is None:
        raise ConfigError(
            f"The model zoo has no {REQUIREMENTS} at its root, so the packages of its image"
            " are not known.",
            received={"model_zoo": path},
            hint="Make one; it is empty if the models need nothing beyond the base image.",
        )
    labels = {"org.opencontainers.image.source": zoo.source} if zoo.source else {}
    labels |= {"org.opencontainers.image.revision": zoo.commit} if zoo.commit else {}
    # The folder of a zoo in Git is named after its commit or after a part of the repository.
    zoo_name = zoo.source.rpartition("/")[2].partition(".git")[0] if zoo.source else path.stem
    return ImagePlan(
        base=parse_reference(base_image, "base_image"),
        repository=parse_repository(repository),
        name=re.sub(r"[^a-z0-9_]+", "-", zoo_name.lower()).strip("-_")[:60] or "zoo",
        zoo_path=f"{ZOO}/{path.name}" if path.is_file() else ZOO,
        files=files,
        requirements=requirements.read_bytes() if requirements is not None else b"",
        labels=labels,
    )


def parse_reference(text: str, key: str) -> Reference:
    """Parse `repository:tag` or `repository@sha256:...`, which the setting `key` gives.

    Raises:
        ConfigError: The text is not the name of an image, or the name may change its meaning.
    """
    match = _REFERENCE.fullmatch(text.removeprefix(_KUBERNETES_SCHEME))
    if not match:
        raise ConfigError(
            f"{key} is not the name of an image.",
            received={key: text},
            hint="Write registry/path:tag or registry/path@sha256:... .",
        )
    if not match["digest"] and match["tag"] in (None, "latest"):
        raise ConfigError(
            f"{key} must identify one image: this name may refer to another one tomorrow, while the"
            " job runs.",
            received={key: text},
            hint="Add @sha256:..., or a :tag other than latest.",
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
            "image_repository must name a repository without a tag: the tag is computed from the"
            " content of the image.",
            received={"image_repository": text},
            hint="Write registry/path.",
        )
    return text


def write_context(plan: ImagePlan, dockerfile: str, stream: IO[bytes]) -> None:
    """Write the build context to a seekable stream, and rewind the stream.

    Owners, times and most modes are left out, so that equal files give equal layers for everybody.
    """
    with tarfile.open(fileobj=stream, mode="w") as tar:
        _add(tar, "Dockerfile", dockerfile.encode())
        _add(tar, REQUIREMENTS, plan.requirements)
        for name, file in plan.files.items():
            _add(tar, f"model_zoo/{name}", file.read_bytes(), mode=_mode(file))
    stream.seek(0)


def _folder(zoo: Path) -> dict[str, Path]:
    by_name = {str(file.relative_to(zoo)): file for file in zoo_files.walk(zoo)}
    files = {name: by_name[name] for name in sorted(by_name) if not name.endswith(".pyc")}
    zoo_files.require_inside(zoo, map(Path, files))
    num_bytes = sum(file.stat().st_size for file in files.values())
    if num_bytes > MAX_BYTES:
        raise ConfigError(
            f"The {len(files)} files of the model zoo take {num_bytes} bytes; an image may hold"
            f" {MAX_BYTES}.",
            received={"model_zoo": zoo},
            hint="Keep data and weights elsewhere.",
        )
    return files


def _mode(file: Path) -> int:
    return 0o755 if file.stat().st_mode & 0o100 else 0o644


def _add(tar: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
