"""Submit a job to a cluster: `cluster.manifest` has decided what it is, here it is made."""

import contextlib
import logging
import re
import secrets
import string
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Literal

from edl_horovod import image
from edl_horovod.cluster.credentials import find_cluster
from edl_horovod.cluster.manifest import JobManifests, job_manifests
from edl_horovod.config.kubernetes import JOB_NAME_CHARACTERS
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import (
    ClusterError,
    ClusterForbidden,
    ClusterUnreachable,
    EdlError,
    Interrupted,
    NoCluster,
    ObjectConflict,
    ObjectNotFound,
)
from edl_horovod.image.plan import ZOO
from edl_horovod.models import git_zoo

__all__ = ["DryRun", "SubmittedJob", "rehearse", "submit"]

log = logging.getLogger(__name__)

DryRun = Literal["client", "server"]
"""Who looks at what would be sent: this program alone, or the API server too."""
ENDING_CHARACTERS = 5
UNBUILT = "not-built-yet"
"""In place of the tag of an image, before the long work of building it."""


@dataclass(frozen=True, kw_only=True)
class SubmittedJob:
    """A job that a cluster has."""

    name: str
    namespace: str
    image: str
    output: str
    """Path of what it will make, in the pods."""
    job_dir: str


def submit(config: JobConfig) -> SubmittedJob:
    """Build the job's image unless it has one, and create the job; it runs without us then.

    Args:
        config: The job, resolved.

    Raises:
        EdlError: The job cannot be created; what was created of it is removed again, or named.
    """
    from edl_horovod.cluster import preflight, quota
    from edl_horovod.cluster.client import Cluster

    settings = config.kubernetes
    with Cluster.connect(context=settings.context, namespace=settings.namespace) as cluster:
        preflight.check_version(cluster)
        name = settings.name or _new_name(config)
        if not config.image:
            _check_is_free(cluster, name)
        secret = secrets.token_bytes(32)
        job = _decide(config, name, cluster.namespace, secret)
        quota.check_quotas(cluster, job.mpijob, config)
        if not config.image:
            built = image.ensure(config)
            job = job_manifests(built, name=name, namespace=cluster.namespace, secret=secret)
        _create(cluster, job, is_suspended=settings.suspend)
        made = job.config
        return SubmittedJob(
            name=name,
            namespace=cluster.namespace,
            image=made.image,
            output=made.output,
            job_dir=made.job_dir,
        )


def rehearse(config: JobConfig, who: DryRun) -> JobManifests:
    """What `submit` would create; nothing is built, and nothing is created.

    Args:
        config: The job, resolved.
        who: With `server` the API server checks it all as if it were to be created.

    Raises:
        EdlError: It would not be created.
    """
    settings = config.kubernetes
    name = settings.name or _new_name(config)
    if who == "client":
        return _decide(config, name, _namespace(config), secrets.token_bytes(32))
    from edl_horovod.cluster import preflight, quota
    from edl_horovod.cluster.client import Cluster

    with Cluster.connect(context=settings.context, namespace=settings.namespace) as cluster:
        preflight.check_version(cluster)
        job = _decide(config, name, cluster.namespace, secrets.token_bytes(32))
        quota.check_quotas(cluster, job.mpijob, config)
        for item in job.all:
            _rehearse_one(cluster, item)
        preflight.warn_of_resume(cluster, is_dry_run=True)
        return job


def _rehearse_one(cluster: Any, item: dict[str, Any]) -> None:
    """Have the API server check one object.

    Nobody may give away a right that he does not have, so the API server looks up the Role of a
    RoleBinding, and in a dry run there is none. It has checked the right to create a RoleBinding by
    then, and the rights that are given away when it checked the Role.
    """
    try:
        with _told_by_name(item, cluster.namespace):
            cluster.create(item, is_dry_run=True)
    except ObjectNotFound as error:
        if item["kind"] != "RoleBinding":
            raise
        name = f"{item['kind'].lower()}/{item['metadata']['name']}"
        log.warning(
            "%s could not be checked to the end, as a dry run does not create the Role that it "
            "refers to. The right to create it and the rights of its Role were checked; quotas and "
            "admission policies for it were not. The server said: %s",
            name,
            error,
        )


def _decide(config: JobConfig, name: str, namespace: str, secret: bytes) -> JobManifests:
    """The manifests; what can be found wrong with them is found before an image is built."""
    return job_manifests(_as_if_built(config), name=name, namespace=namespace, secret=secret)


def _as_if_built(config: JobConfig) -> JobConfig:
    """The job with its image, or with the place of one that is still to be built."""
    is_complete = config.base_image and config.image_repository
    if config.image or not is_complete or config.task != "train":
        return image.ensure(config)
    name = PurePath(config.model_zoo).name
    is_file = name.endswith(".py") and git_zoo.parse(config.model_zoo) is None
    zoo = f"{ZOO}/{name}" if is_file else ZOO
    return replace(config, image=f"{config.image_repository}:{UNBUILT}", model_zoo=zoo)


def _check_is_free(cluster: Any, name: str) -> None:
    """Find out before an image is built, which takes its time, whether the cluster takes MPIJobs.

    Raises:
        ClusterError: It does not, or it cannot be reached.
        ObjectConflict: It has a job of this name.
    """
    try:
        cluster.get("MPIJob", name)
    except (ObjectNotFound, ClusterForbidden):
        return  # Who may not look may still create.
    raise ObjectConflict(
        f"mpijob/{name} exists already in namespace {cluster.namespace}. Received: "
        f"kubernetes.name={name}. Choose another one, or remove what is there."
    )


def _namespace(config: JobConfig) -> str:
    """Where the job would go, as far as this machine knows; empty where it knows no cluster."""
    settings = config.kubernetes
    try:
        return find_cluster(context=settings.context, namespace=settings.namespace).namespace
    except NoCluster:
        if settings.context:
            raise
        return settings.namespace


def _new_name(config: JobConfig) -> str:
    """A name that says what it is, with an ending that no other job has."""
    source = config.model_def.partition(".")[0] or PurePath(config.trained_model).name
    words = re.sub(r"[^a-z0-9]+", "-", source.lower()).strip("-")
    words = words if words[:1].isalpha() else f"{config.task}-{words}".strip("-")
    alphabet = string.ascii_lowercase + string.digits
    ending = "".join(secrets.choice(alphabet) for _ in range(ENDING_CHARACTERS))
    return f"{words[: JOB_NAME_CHARACTERS - ENDING_CHARACTERS - 1].rstrip('-')}-{ending}"


def _create(cluster: Any, job: JobManifests, *, is_suspended: bool) -> None:
    """Make the MPIJob without pods, then what its pods need, owned by it; then let it go.

    So no pod ever starts without its parts, and whatever happens to us the cluster's garbage
    collector knows whose the parts are.
    """
    made: list[dict[str, Any]] = []
    try:
        held = _changed(job.mpijob, {"spec": {"runPolicy": {"suspend": True}}})
        with _told_by_name(job.mpijob, cluster.namespace):
            owner = cluster.create(held)
        made.append(owner)
        reference = {
            **{key: job.mpijob[key] for key in ("apiVersion", "kind")},
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": False,
        }
        for part in job.parts:
            owned = _changed(part, {"metadata": {"ownerReferences": [reference]}})
            with _told_by_name(part, cluster.namespace):
                made.append(cluster.create(owned))
        if not is_suspended:
            go = {"spec": {"runPolicy": {"suspend": False}}}
            cluster.patch("MPIJob", owner["metadata"]["name"], go)
    except BaseException as error:
        left = _undo(cluster, made)
        if isinstance(error, ClusterError | KeyboardInterrupt):
            name = job.mpijob["metadata"]["name"]
            raise _with_what_is_left(error, name, left, has_begun=bool(made)) from error
        raise


def _undo(cluster: Any, made: list[dict[str, Any]]) -> str:
    """Remove what was made, the last first; returns what stays."""
    left = []
    for item in reversed(made):
        kind, meta = item["kind"], item["metadata"]
        try:
            cluster.delete(kind, meta["name"], uid=meta["uid"])
        except ClusterError as error:
            log.debug("undo: %s", error)
            left.append(f"{kind.lower()}/{meta['name']}")
        else:
            if kind == "MPIJob":
                left.clear()  # The cluster removes what it owned.
    return ", ".join(left)


def _with_what_is_left(
    error: ClusterError | KeyboardInterrupt, name: str, left: str, *, has_begun: bool
) -> EdlError:
    """The error of a submission, which also says what the cluster has of the job now."""
    more = ""
    if left:
        more = f" What was made before could not be removed: {left}"
    elif not has_begun and isinstance(error, ClusterUnreachable | KeyboardInterrupt):
        more = (
            f" Whether mpijob/{name} was made is not known; if it was, it is suspended: "
            f"edl delete {name} removes it."
        )
    elif isinstance(error, KeyboardInterrupt):
        more = f" Nothing of job {name} is left."
    if isinstance(error, KeyboardInterrupt):
        return Interrupted(f"The submission was interrupted.{more}")
    return type(error)(f"{error}{more}")


def _changed(item: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The object with other values at some places within."""
    result = dict(item)
    for key, value in changes.items():
        is_inner = isinstance(value, dict) and isinstance(item.get(key), dict)
        result[key] = _changed(item[key], value) if is_inner else value
    return result


@contextlib.contextmanager
def _told_by_name(item: dict[str, Any], namespace: str) -> Iterator[None]:
    """Say of an object that cannot be made what to do about it."""
    name = f"{item['kind'].lower()}/{item['metadata']['name']}"
    try:
        yield
    except ObjectConflict as error:
        said = str(error).partition("Received: ")[2]
        raise ObjectConflict(
            f"{name} exists already in namespace {namespace}. Received: {said} Choose another "
            "kubernetes.name, or remove what is there."
        ) from error
