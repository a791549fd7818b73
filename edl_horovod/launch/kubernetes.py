"""launch=kubernetes: a job that is submitted to a cluster, and runs there by itself."""

import contextlib
import copy
import logging
import re
import secrets
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from edl_horovod import errors, image
from edl_horovod.cluster import credentials, objects
from edl_horovod.cluster.manifest import JobManifests, job_manifests, to_yaml
from edl_horovod.config.kubernetes import JOB_NAME_CHARACTERS
from edl_horovod.config.schema import JobConfig
from edl_horovod.launch.target import DryRun, LaunchTarget, SubmittedJob
from edl_horovod.models import job_zoo

if TYPE_CHECKING:
    from edl_horovod.cluster.client import Cluster
    from edl_horovod.launch.kubernetes_jobs import KubernetesJobs

log = logging.getLogger(__name__)

ENDING_CHARACTERS = 5
JOB_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class KubernetesPlan:
    """A job to submit to a cluster."""

    config: JobConfig
    name: str
    secret: bytes = field(repr=False)

    def manifests(self, config: JobConfig, namespace: str) -> JobManifests:
        """The objects to create.

        Args:
            config: The job with its image.
            namespace: The namespace of the objects; empty to leave it out.

        Raises:
            ConfigError: A setting is wrong, as far as the manifests show it.
        """
        return job_manifests(config, name=self.name, namespace=namespace, secret=self.secret)


class KubernetesTarget(LaunchTarget[KubernetesPlan, SubmittedJob]):
    """Submits a job as an MPIJob, and builds its image; the ring can change while the job runs."""

    is_detached: ClassVar[bool] = True
    place_keys: ClassVar[frozenset[str]] = frozenset({"namespace", "context"})

    def plan(self, config: JobConfig) -> KubernetesPlan:
        """Choose the name of the job; see `LaunchTarget`."""
        name = config.kubernetes.name or _new_name(config)
        return KubernetesPlan(config=config, name=name, secret=secrets.token_bytes(32))

    def describe(
        self, plan: KubernetesPlan, *, check: DryRun = "client", whole: bool = False
    ) -> str:
        """The objects that `launch` would create; no image is built."""
        job = _rehearse(plan, check)
        if whole:
            return to_yaml(job.all)
        names = (f"{item['kind'].lower()}/{item['metadata']['name']}" for item in job.all)
        return "".join(f"{name} would be created ({check} dry run)\n" for name in names)

    def launch(self, plan: KubernetesPlan, **_: object) -> SubmittedJob:
        """Build the job's image unless it has one, and create the job.

        Raises:
            EdlError: The job cannot be created. Its objects are removed again, or the error names
                those that remain.
        """
        from edl_horovod.cluster import preflight
        from edl_horovod.cluster.client import Cluster

        config, settings = plan.config, plan.config.kubernetes
        with Cluster.connect(context=settings.context, namespace=settings.namespace) as cluster:
            preflight.check_version(cluster)
            if not config.image:
                _check_is_free(cluster, plan.name)
            # Errors in the manifests are found before an image is built.
            job = plan.manifests(image.as_if_built(config), cluster.namespace)
            preflight.check_quotas(cluster, job.mpijob, config)
            if not config.image:
                job = plan.manifests(image.ensure(config), cluster.namespace)
            # Kueue releases the jobs in its queues itself.
            queue = objects.queue_of(job.mpijob["metadata"]["labels"])
            _create(cluster, job, is_suspended=settings.suspend or bool(queue))
            submitted = job.config
            return SubmittedJob(
                name=plan.name,
                output=submitted.output,
                job_dir=submitted.job_dir,
                place={"namespace": cluster.namespace}
                | ({"context": settings.context} if settings.context else {}),
                details={"namespace": cluster.namespace, "image": submitted.image},
            )

    def name_of(self, plan: KubernetesPlan) -> tuple[str, dict[str, str]]:
        """The name, which no other job has; see `LaunchTarget`."""
        settings = plan.config.kubernetes
        if settings.name:
            # Another process may remove the job of a dead one by its name, so that must be unique.
            raise errors.ConfigError(
                "The job is removed when this command ends, so it gets a name that no other job"
                " has.",
                received={"kubernetes.name": settings.name},
                hint="Leave kubernetes.name out.",
            )
        return plan.name, {"namespace": settings.namespace, "context": settings.context}

    def names(self, job: str) -> bool:
        """Whether a job in a cluster can have this name."""
        return JOB_NAME.fullmatch(job) is not None

    def jobs(self, place: Mapping[str, str]) -> "KubernetesJobs":
        """Open the jobs of a namespace."""
        from edl_horovod.launch.kubernetes_jobs import KubernetesJobs

        return KubernetesJobs(**place)


def _rehearse(plan: KubernetesPlan, check: DryRun) -> JobManifests:
    """The objects that would be created; with `server`, the API server checks them."""
    settings, config = plan.config.kubernetes, image.as_if_built(plan.config)
    if check == "client":
        return plan.manifests(config, _namespace(plan.config))
    from edl_horovod.cluster import preflight
    from edl_horovod.cluster.client import Cluster

    with Cluster.connect(context=settings.context, namespace=settings.namespace) as cluster:
        preflight.check_version(cluster)
        job = plan.manifests(config, cluster.namespace)
        preflight.check_quotas(cluster, job.mpijob, config)
        for item in job.all:
            _rehearse_one(cluster, item)
        preflight.warn_of_resume(cluster, is_dry_run=True)
        return job


def _rehearse_one(cluster: "Cluster", item: dict[str, Any]) -> None:
    """Send one object to the API server to be checked.

    A client may only grant rights that it has itself, so the API server looks up the Role of a
    RoleBinding, which a dry run has not created. By then it has checked the right to create a
    RoleBinding, and when it checked the Role, the rights that the Role grants.
    """
    try:
        with _conflicts_with_hint(item, cluster.namespace):
            cluster.create(item, is_dry_run=True)
    except errors.ObjectNotFound as error:
        if item["kind"] != "RoleBinding":
            raise
        name = f"{item['kind'].lower()}/{item['metadata']['name']}"
        log.warning(
            "%s could not be checked to the end, as a dry run does not create the Role that it "
            "refers to. The right to create it and the rights of its Role were checked; quotas and "
            "admission policies for it were not.",
            name,
        )
        log.debug("the server said: %s", error)


def _check_is_free(cluster: "Cluster", name: str) -> None:
    """Check before an image is built that the cluster accepts MPIJobs, and one of this name.

    Raises:
        ClusterError: It has no MPIJobs, or it cannot be reached.
        ObjectConflict: It has a job of this name already.
    """
    try:
        cluster.get("MPIJob", name)
    except (errors.ObjectNotFound, errors.ClusterForbidden):
        return  # A user who may not read MPIJobs may still create them.
    raise _name_conflict(f"mpijob/{name}", cluster.namespace, {"kubernetes.name": name})


def _namespace(config: JobConfig) -> str:
    """The job's namespace by the local configuration; empty if no cluster is configured."""
    settings = config.kubernetes
    try:
        return credentials.find_cluster(
            context=settings.context, namespace=settings.namespace
        ).namespace
    except errors.NoCluster:
        if settings.context:
            raise
        return settings.namespace


def _new_name(config: JobConfig) -> str:
    """A name made of the model's name and a random ending, which makes it unique."""
    source = job_zoo.model_name(config) or PurePath(config.trained_model).name
    words = re.sub(r"[^a-z0-9]+", "-", source.lower()).strip("-")
    words = words if words[:1].isalpha() else f"{config.task}-{words}".strip("-")
    alphabet = string.ascii_lowercase + string.digits
    ending = "".join(secrets.choice(alphabet) for _ in range(ENDING_CHARACTERS))
    return f"{words[: JOB_NAME_CHARACTERS - ENDING_CHARACTERS - 1].rstrip('-')}-{ending}"


def _create(cluster: "Cluster", job: JobManifests, *, is_suspended: bool) -> None:
    """Create the MPIJob suspended, then the objects that its pods need, then resume it.

    So no pod starts without these objects. The MPIJob owns them: whatever happens to this process,
    the cluster's garbage collector removes them with it.
    """
    created: list[dict[str, Any]] = []
    try:
        suspended = copy.deepcopy(job.mpijob)
        suspended["spec"]["runPolicy"]["suspend"] = True
        with _conflicts_with_hint(job.mpijob, cluster.namespace):
            owner = cluster.create(suspended)
        created.append(owner)
        kind = {key: job.mpijob[key] for key in ("apiVersion", "kind")}
        identity = {key: owner["metadata"][key] for key in ("name", "uid")}
        reference = {**kind, **identity, "controller": True, "blockOwnerDeletion": False}
        for part in job.parts:
            metadata = {**part["metadata"], "ownerReferences": [reference]}
            with _conflicts_with_hint(part, cluster.namespace):
                created.append(cluster.create({**part, "metadata": metadata}))
        if not is_suspended:
            resumed = {"spec": {"runPolicy": {"suspend": False}}}
            cluster.patch("MPIJob", owner["metadata"]["name"], resumed)
    except BaseException as error:
        leftovers = _undo(cluster, created)
        if isinstance(error, errors.ClusterError | KeyboardInterrupt):
            name = job.mpijob["metadata"]["name"]
            raise _submission_error(error, name, leftovers, was_created=bool(created)) from error
        raise


def _undo(cluster: "Cluster", created: list[dict[str, Any]]) -> str:
    """Remove the created objects, the last first; returns the names of those that remain."""
    leftovers = []
    for item in reversed(created):
        kind, meta = item["kind"], item["metadata"]
        try:
            cluster.delete(kind, meta["name"], uid=meta["uid"])
        except errors.ClusterError as error:
            log.debug("undo: %s", error)
            leftovers.append(f"{kind.lower()}/{meta['name']}")
        else:
            if kind == "MPIJob":
                leftovers.clear()  # The cluster removes what it owned.
    return ", ".join(leftovers)


def _submission_error(
    error: errors.ClusterError | KeyboardInterrupt, name: str, leftovers: str, *, was_created: bool
) -> errors.EdlError:
    """The error of a submission, with a sentence on the objects that remain in the cluster.

    Args:
        error: The error that ended the submission.
        name: The name of the job.
        leftovers: The objects that could not be removed; empty if there are none.
        was_created: Whether the server has confirmed that it created the MPIJob.
    """
    more = ""
    if leftovers:
        more = f" Objects that were created before could not be removed: {leftovers}"
    elif not was_created and isinstance(error, errors.ClusterUnreachable | KeyboardInterrupt):
        more = (
            f" It is not known whether mpijob/{name} was created; if so, it is suspended: "
            f"edl delete {name} removes it."
        )
    elif isinstance(error, KeyboardInterrupt):
        more = f" Nothing of job {name} is left."
    if isinstance(error, KeyboardInterrupt):
        return errors.Interrupted(f"The submission was interrupted.{more}")
    return type(error)(f"{error}{more}")


@contextlib.contextmanager
def _conflicts_with_hint(item: dict[str, Any], namespace: str) -> Iterator[None]:
    """Add the object's name and a hint to the error for an object that exists already."""
    name = f"{item['kind'].lower()}/{item['metadata']['name']}"
    try:
        yield
    except errors.ObjectConflict as error:
        raise _name_conflict(name, namespace, error.received) from error


def _name_conflict(
    name: str, namespace: str, received: Mapping[str, object] | str
) -> errors.ObjectConflict:
    return errors.ObjectConflict(
        f"{name} exists already in namespace {namespace}.",
        received=received,
        hint="Choose another kubernetes.name, or remove that object.",
    )
