"""The image of a job: the given one, the one that the model was trained in, or a new one.

It is pulled, built and pushed with Docker or Podman; only this module imports the Docker SDK.
"""

import contextlib
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from edl_horovod import errors
from edl_horovod.config.schema import ImageConfig, JobConfig
from edl_horovod.config.tasks import TASKS
from edl_horovod.image.plan import (
    ZOO,
    ImagePlan,
    Reference,
    make_plan,
    parse_reference,
    write_context,
)
from edl_horovod.models import git_zoo, job_zoo, zoo_files
from edl_horovod.models.framework_name import with_framework
from edl_horovod.models.git_zoo import FetchedZoo
from edl_horovod.models.trained_model_file import FILE_NAME, damaged_model, read_message
from edl_horovod.proto.trained_model_pb2 import TrainedModel

if TYPE_CHECKING:
    from docker import APIClient

SILENCE_SECONDS = 1800.0
"""How long the builder may be silent while it compiles a package or transfers a layer."""
ANSWER_SECONDS = 5.0
_DIGEST = re.compile(r"digest: (sha256:[0-9a-f]{64})")
_STEP = re.compile(r"step\s+\d+", re.IGNORECASE)
_NUM_LAST_LINES = 15
UNBUILT = "not-built-yet"
"""Tag of an image in a dry run; the real tag is a digest of the content."""

log = logging.getLogger(__name__)


def _base(client: "APIClient", reference: Reference) -> tuple[str, str]:
    """Return a base image's ID and its user; pull the image if it is not on this machine.

    Raises:
        RegistryError: The image cannot be pulled.
    """
    import docker.errors

    try:
        inspected = client.inspect_image(str(reference))
    except docker.errors.ImageNotFound:
        log.info("pulling %s", reference)
        summary = f"The base image {reference} cannot be pulled"
        with _sdk_errors_as(errors.RegistryError, summary):
            tag = reference.digest or reference.tag
            lines = client.pull(reference.repository, tag=tag, stream=True, decode=True)
            _follow(lines, errors.RegistryError, summary)
            inspected = client.inspect_image(str(reference))
    return str(inspected["Id"]), str((inspected.get("Config") or {}).get("User") or "")


def _build_image(client: "APIClient", plan: ImagePlan) -> Reference:
    """Build an image; it is tagged once it is complete.

    Raises:
        RegistryError: The base image cannot be pulled.
        ImageError: A step of the build failed.
    """
    base_id, user = _base(client, plan.base)
    dockerfile = plan.dockerfile(base=str(plan.base), user=user)
    image = Reference(plan.repository, plan.tag(base_id, dockerfile))
    summary = f"The image {image} cannot be built"
    log.info("building %s", image)
    with tempfile.TemporaryFile() as context, _sdk_errors_as(errors.ImageError, summary):
        write_context(plan, dockerfile, context)
        flags = dict.fromkeys(("custom_context", "decode", "rm", "forcerm"), True)
        lines = client.build(fileobj=context, tag=str(image), **flags)
        _follow(lines, errors.ImageError, summary)
    return image


def _push(client: "APIClient", image: Reference) -> Reference:
    """Push an image; return its name by digest, which stays valid if the tag moves.

    Credentials come from Docker's configuration and its credential helpers, else from Podman's.

    Raises:
        RegistryError: The registry does not answer or refuses the image.
    """
    summary = f"The image {image} cannot be pushed"
    log.info("pushing %s", image)
    with _sdk_errors_as(errors.RegistryError, summary):
        # Podman refuses to push without a login, even if the registry needs none.
        login = login_of(image.repository) or {"username": "", "password": ""}
        lines = client.push(
            image.repository, tag=image.tag, stream=True, decode=True, auth_config=login
        )
        output = _follow(lines, errors.RegistryError, summary)
    digests = [digest for line in output if (digest := line.get("aux", {}).get("Digest"))]
    # Podman prints it as text, with another digest if it has not compressed a layer.
    digests += [match[1] for line in output if (match := _DIGEST.search(_text(line)))]
    if not digests:
        raise errors.RegistryError(f"{summary}: the builder did not say its digest.")
    return Reference(image.repository, digest=digests[-1])


def sockets() -> list[str]:
    """Sockets to try: DOCKER_HOST if it is set, else the usual ones of Docker and Podman."""
    if host := os.environ.get("DOCKER_HOST"):
        return [host]
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    paths = (
        "/var/run/docker.sock",
        f"{runtime}/docker.sock",
        f"{runtime}/podman/podman.sock",
        "/run/podman/podman.sock",
    )
    return [f"unix://{path}" for path in paths]


def connect() -> "APIClient":
    """Connect to the first builder that answers; the caller closes the connection.

    Raises:
        MissingDependency: The SDK is not installed, or no builder answers.
    """
    try:
        import docker
    except ImportError as e:
        raise errors.MissingDependency(
            "Building an image needs the Docker SDK for Python, which is not installed.",
            hint=f"Give a pre-built image, image=... ; or {errors.how_to_install('image')}",
        ) from e
    complaints = []
    for host in sockets():
        path = Path(host.removeprefix("unix://"))
        if host.startswith("unix://") and not path.exists():
            complaints.append(f"{host}: not there")
            continue
        try:
            # If DOCKER_HOST uses TLS, the certificates come from DOCKER_CERT_PATH.
            variables = {**os.environ, "DOCKER_HOST": host}
            arguments = docker.utils.kwargs_from_env(environment=variables)
            client = docker.APIClient(version="auto", timeout=ANSWER_SECONDS, **arguments)
            client.timeout = SILENCE_SECONDS
            return client
        except (docker.errors.DockerException, OSError) as e:
            complaints.append(f"{host}: {_cause(e)}")
    raise errors.MissingDependency(
        f"No image builder answers, neither Docker nor Podman. Tried: {'; '.join(complaints)}.",
        hint="Start Docker, or systemctl --user start podman.socket; name another socket in"
        " DOCKER_HOST; or give a pre-built image: image=... .",
    )


def _follow(
    lines: Iterator[dict[str, Any]],
    error: type[errors.ImageError | errors.RegistryError],
    summary: str,
) -> list[dict[str, Any]]:
    """Log the builder's output as it arrives; return all of it.

    Raises:
        EdlError: The builder reports a failure.
    """
    output, failure = [], ""
    # Read to the end even after a failure: only then is the connection released.
    for line in lines:
        failure = failure or str(line.get("error", ""))
        output.append(line)
        for text in _text(line).splitlines():
            is_step = _STEP.match(text) is not None
            log.log(logging.INFO if is_step else logging.DEBUG, "%s", text)
    if failure:
        last = [text for text in map(_text, output) if text][-_NUM_LAST_LINES:]
        said = "".join(f"\n  {text}" for text in last) if error is errors.ImageError else ""
        raise error(f"{summary}: {_with_hint(failure)}{said}")
    return output


def _text(line: dict[str, Any]) -> str:
    return str(line.get("stream") or line.get("status") or "").rstrip()


@contextlib.contextmanager
def _sdk_errors_as(
    error: type[errors.ImageError | errors.RegistryError], summary: str
) -> Iterator[None]:
    """Turn exceptions of the SDK into one of our errors."""
    import docker.errors
    import requests.exceptions

    try:
        yield
    except (docker.errors.DockerException, requests.exceptions.RequestException) as e:
        raise error(f"{summary}: {_with_hint(_cause(e))}") from e


def _cause(error: BaseException) -> str:
    """The text of an exception of the SDK, without the URL of the socket."""
    return " ".join(str(getattr(error, "explanation", None) or error).split())


def _with_hint(said: str) -> str:
    """The builder's message with a hint at what to do."""
    said = said.strip().rstrip(".")
    lower = said.lower()
    if any(word in lower for word in ("unauthorized", "authentication", "denied", "forbidden")):
        return f"{said}. Log in: docker login, or podman login, with the registry's name."
    if "http response to https" in lower:
        return f"{said}. The builder must be told that this registry has no TLS (insecure)."
    if "manifest unknown" in lower or "not found" in lower or "does not exist" in lower:
        return f"{said}. Check the image's name, and that it was pushed."
    if "pip install" in lower:
        return f"{said}. The packages of the zoo's requirements.txt cannot be installed:"
    return f"{said}."


def login_of(repository: str) -> dict[str, Any] | None:
    """The credentials for a repository's registry: Docker's, else those of `podman login`.

    Raises:
        RegistryError: The program that keeps them failed.
    """
    from docker import auth

    summary = f"The login for {repository} cannot be read"
    with _sdk_errors_as(errors.RegistryError, summary):
        registry, _ = auth.resolve_repository_name(repository)
        if credentials := auth.load_config().resolve_authconfig(registry):
            return dict(credentials)
        for path in _podman_files():
            if path.is_file() and (
                credentials := auth.load_config(str(path)).resolve_authconfig(registry)
            ):
                return dict(credentials)
    return None


def _podman_files() -> list[Path]:
    if named := os.environ.get("REGISTRY_AUTH_FILE"):
        return [Path(named)]
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/containers/{os.getuid()}"
    folders = [Path(runtime), Path.home() / ".config"]
    return [folder / "containers" / "auth.json" for folder in folders]


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """An image of a model zoo."""

    image: str
    """The repository and the tag, which is a digest of the content."""
    digest: str = ""
    """The repository and the digest, by which it can be pulled; empty if it was not pushed."""
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
    takes_zoo = TASKS[config.task].takes_zoo
    if config.image:
        path = _zoo_path_in_image(config) if takes_zoo else config.model_zoo
        return replace(config, image=str(parse_reference(config.image, "image")), model_zoo=path)
    unbuilt = f"{config.image_repository}:{UNBUILT}"
    base, repository = config.base_image, config.image_repository
    if not takes_zoo:
        if known_image := _trained_image(config):
            return replace(config, image=str(known_image))
        _check_parts(config)
        zoo = _trained_zoo(config)
        plan = make_plan(zoo, base_image=base, repository=repository, needs_requirements=False)
        return replace(config, image=unbuilt if is_dry_run else _build(plan, push=True).digest)
    _check_parts(config)
    if is_dry_run:
        config = with_framework(job_zoo.as_if_localized(config))
        name = PurePath(config.model_zoo).name
        is_file = name.endswith(".py") and git_zoo.parse(config.model_zoo) is None
        return replace(config, image=unbuilt, model_zoo=f"{ZOO}/{name}" if is_file else ZOO)
    config = with_framework(job_zoo.localized(config))
    zoo = FetchedZoo(Path(config.model_zoo), config.model_zoo_source, config.model_zoo_commit)
    built = _build(make_plan(zoo, base_image=base, repository=repository), push=True)
    return replace(config, image=built.digest, model_zoo=built.model_zoo)


def _build(plan: ImagePlan, *, push: bool) -> BuiltImage:
    with contextlib.closing(connect()) as client:
        image = _build_image(client, plan)
        digest = str(_push(client, image)) if push else ""
    return BuiltImage(image=str(image), digest=digest, model_zoo=plan.zoo_path)


def _check_parts(config: JobConfig) -> None:
    missing = [key for key in ("base_image", "image_repository") if not getattr(config, key)]
    if missing:
        raise errors.ConfigError(
            "A job on Kubernetes needs an image. Give a pre-built one, image=registry/path@sha256:"
            "..., or the settings to build one: base_image=... and image_repository=... . Missing: "
            f"{', '.join(missing)}."
        )


def _zoo_path_in_image(config: JobConfig) -> str:
    """Path of the zoo in the pods of a pre-built image."""
    if job_zoo.pending(config):
        raise errors.ConfigError(
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
    except errors.ConfigError as e:
        raise damaged_model(Path(config.trained_model), f"{FILE_NAME}: {e}") from e
    if not config.trusts("image"):
        raise errors.ConfigError(
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
        raise errors.ConfigError(
            f"The trained model cannot be read here: {e.strerror}.",
            received={"trained_model": config.trained_model},
            hint="Where only the pods see it, give the image: image=... .",
        ) from e
