"""What `edl doctor` looks at in a cluster: MPIJobs, rights, and whether it takes pods of a job."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from edl_horovod.cluster import pods
from edl_horovod.cluster.credentials import find_cluster, kubeconfigs, names_of_kubeconfigs
from edl_horovod.cluster.objects import KINDS
from edl_horovod.config.schema import JobConfig, LaunchConfig
from edl_horovod.errors import ClusterError, ClusterForbidden, MissingDependency, NoCluster
from edl_horovod.health import Finding, Scope

if TYPE_CHECKING:
    from edl_horovod.cluster.client import Cluster

ENFORCE = "pod-security.kubernetes.io/enforce"
"""The label of a namespace that names the Pod Security Standard which its pods must meet."""
_PRIVILEGED = "privileged"
"""The standard that allows everything; namespaces without a label usually have it."""


@dataclass(frozen=True)
class Right:
    """A verb that a user needs on a kind of object in the namespace."""

    verb: str
    kind: str
    subresource: str = ""

    @property
    def resource(self) -> str:
        """The resource in RBAC, for instance `pods/log`."""
        part = f"/{self.subresource}" if self.subresource else ""
        return f"{KINDS[self.kind].resource}{part}"


_CREATED = (
    *("MPIJob", "ConfigMap", "Secret", "Service"),
    *("ServiceAccount", "Role", "RoleBinding", "NetworkPolicy"),
)
"""The kinds of the objects of a job."""
_OF_LAUNCHERS = tuple(Right(verb, "Pod") for verb in ("get", "list", "watch", "delete"))
"""What the launcher's Role grants, which only a user who has it may give away."""
SUBMIT = (
    *(Right(verb, kind) for verb in ("create", "delete") for kind in _CREATED),
    Right("patch", "MPIJob"),
    *_OF_LAUNCHERS,
)
"""The rights of a user who submits jobs."""
LOOK_AFTER = (
    *(Right(verb, "MPIJob") for verb in ("get", "list", "patch", "delete")),
    *(Right("list", kind) for kind in ("Pod", "Event")),
    *(Right("get", "Pod", "log"), Right("get", "ConfigMap")),
)
"""The rights of a user of `edl status`, `logs`, `scale` and the other verbs for jobs."""


def check_cluster(scope: Scope) -> Iterator[Finding]:
    """The API server, its version, and whether it knows MPIJobs."""
    return _examined(scope, _check_cluster)


def check_rights(scope: Scope) -> Iterator[Finding]:
    """Whether this user may submit and look after jobs in the namespace."""
    return _examined(scope, _check_rights)


def check_pods(scope: Scope) -> Iterator[Finding]:
    """Whether the namespace takes pods of a job: its Pod Security, quotas, limits and webhooks."""
    return _examined(scope, _check_pods)


def _examined(scope: Scope, examine: Callable[["Cluster"], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings about the cluster; NONE where no cluster is configured."""
    private = {scope.context, scope.namespace, *names_of_kubeconfigs()}
    try:
        # Here, because it needs the package of an extra.
        from edl_horovod.cluster.client import Cluster

        place = find_cluster(context=scope.context, namespace=scope.namespace)
    except (NoCluster, MissingDependency) as error:
        if scope.context or kubeconfigs():
            yield Finding("FAIL", error.facts, error.hint, tuple(private))
        elif examine is _check_cluster:
            text = f"no cluster, which only launch=kubernetes needs: {error.problem}"
            yield Finding("NONE", text, error.hint)
        else:
            yield Finding("NONE", "no cluster")
        return
    private.add(place.namespace)
    try:
        with Cluster(place) as cluster:
            private.add(urlsplit(cluster.server).hostname or "")
            for finding in examine(cluster):
                yield replace(finding, private=tuple(private))
    except ClusterError as error:
        yield Finding("FAIL", error.facts, error.hint, tuple(private))


def _check_cluster(cluster: "Cluster") -> Iterator[Finding]:
    from edl_horovod.cluster import preflight

    preflight.check_version(cluster)
    text = f"{cluster.server} runs Kubernetes {cluster.server_version()}"
    yield Finding("OK", f"{text}, namespace {cluster.namespace}")
    num_jobs = len(cluster.find("MPIJob"))
    yield Finding("OK", f"it knows MPIJobs, and has {num_jobs} in this namespace")


def _check_rights(cluster: "Cluster") -> Iterator[Finding]:
    answers = {right: _may(cluster, right) for right in dict.fromkeys((*SUBMIT, *LOOK_AFTER))}
    for purpose, rights in (("submit", SUBMIT), ("look after", LOOK_AFTER)):
        refused = [right for right in rights if not answers[right]]
        if not refused:
            text = f"this user may {purpose} jobs in namespace {cluster.namespace}"
            yield Finding("OK", text)
            continue
        text = f"this user may not {purpose} jobs in namespace {cluster.namespace}: no right to"
        fix = 'Ask for a Role with these rights (docs/how-to/kubernetes.md, "Who may do what")'
        kinds = {right.kind for right in refused}
        if purpose == "submit" and kinds <= {"ServiceAccount", "Role", "RoleBinding", "Pod"}:
            fix += ", or name an account that has those of a launcher: kubernetes.service_account"
        yield Finding("FAIL", f"{text} {_listed(refused)}", f"{fix}.")


def _may(cluster: "Cluster", right: Right) -> bool:
    """Ask the API server, which answers everybody who has logged in."""
    kind = KINDS[right.kind]
    attributes = {
        "namespace": cluster.namespace,
        "verb": right.verb,
        "group": kind.api_version.rpartition("/")[0],
        "resource": kind.plural,
        "subresource": right.subresource,
    }
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    spec = {"resourceAttributes": attributes}
    answer = cluster.create({**review, "metadata": {}, "spec": spec})
    return bool(answer["status"]["allowed"])


def _listed(rights: Iterable[Right]) -> str:
    resources: defaultdict[str, list[str]] = defaultdict(list)
    for right in rights:
        resources[right.verb].append(right.resource)
    return "; ".join(f"{verb} {', '.join(names)}" for verb, names in resources.items())


def _check_pods(cluster: "Cluster") -> Iterator[Finding]:
    yield _pod_security(cluster)
    if not _may(cluster, Right("create", "Pod")):
        text = "whether a pod is admitted could not be tried: this user may not create pods"
        yield Finding("NONE", text)
        return
    cluster.create(_worker_pod(), is_dry_run=True)
    yield Finding("OK", "the API server admits a worker pod (tried by a dry run)")


def _pod_security(cluster: "Cluster") -> Finding:
    """What the namespace's label says; pods of a job meet every standard."""
    try:
        labels = cluster.get("Namespace", cluster.namespace)["metadata"].get("labels") or {}
    except ClusterForbidden:
        text = f"this user may not read the labels of namespace {cluster.namespace}"
        return Finding("NONE", f"{text}, so its Pod Security is not known")
    standard = labels.get(ENFORCE, "")
    if standard in ("", _PRIVILEGED):
        shown = f"{ENFORCE}={standard}" if standard else f"no label {ENFORCE}"
        return Finding("OK", f"Pod Security: {shown}")
    text = f"Pod Security: {ENFORCE}={standard}, which pods of edl meet"
    return Finding("OK", f"{text} unless they have a volume of kubernetes.volumes.NAME.host_path")


def _worker_pod() -> dict[str, Any]:
    """A worker's pod of a small job; it is only sent in a dry run."""
    config = JobConfig(
        task="train",
        data="/data/x",
        output="/data/model",
        model_def="model",
        image="registry.invalid/edl:0",
        launch=LaunchConfig(kind="kubernetes"),
    )
    template = pods.worker(config, "edl-doctor")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], "generateName": "edl-doctor-"},
        "spec": {**template["spec"], "restartPolicy": "Never"},
    }
