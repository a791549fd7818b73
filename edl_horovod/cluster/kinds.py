"""The kinds of objects that a job needs in a cluster, and where the API server keeps them."""

from dataclasses import dataclass
from urllib.parse import quote

__all__ = ["KINDS", "VERSION", "Kind", "kind_of", "path_of"]


@dataclass(frozen=True)
class Kind:
    """One kind of object, in one version of its API; all of ours but one belong to a namespace."""

    name: str
    """As in a manifest."""
    plural: str
    """As in a path."""
    api_version: str = "v1"

    @property
    def resource(self) -> str:
        """As RBAC and kubectl name it: `pods`, `mpijobs.kubeflow.org`."""
        group = self.api_version.rpartition("/")[0]
        return f"{self.plural}.{group}" if group else self.plural


KINDS = {
    kind.name: kind
    for kind in (
        Kind("ConfigMap", "configmaps"),
        Kind("Event", "events"),
        Kind("PersistentVolumeClaim", "persistentvolumeclaims"),
        Kind("Pod", "pods"),
        Kind("ResourceQuota", "resourcequotas"),
        Kind("Secret", "secrets"),
        Kind("Service", "services"),
        Kind("ServiceAccount", "serviceaccounts"),
        Kind("Job", "jobs", "batch/v1"),
        Kind("Lease", "leases", "coordination.k8s.io/v1"),
        Kind("NetworkPolicy", "networkpolicies", "networking.k8s.io/v1"),
        Kind("Role", "roles", "rbac.authorization.k8s.io/v1"),
        Kind("RoleBinding", "rolebindings", "rbac.authorization.k8s.io/v1"),
        Kind("LocalSubjectAccessReview", "localsubjectaccessreviews", "authorization.k8s.io/v1"),
        Kind("MPIJob", "mpijobs", "kubeflow.org/v2beta1"),
    )
}
VERSION = Kind("Version", "version", "")
"""What a server says of itself; it belongs to no API, and so to no namespace."""


def kind_of(name: str, api_version: str = "") -> Kind:
    """The kind that a manifest names; its API version, where it says one, must be ours."""
    kind = KINDS[name]
    assert api_version in ("", kind.api_version), f"{name} {api_version} is not {kind.api_version}"
    return kind


def path_of(kind: Kind, namespace: str | None, name: str = "", subresource: str = "") -> str:
    """Path at the API server: of an object, of a part of it, or without a name of the collection.

    Without a namespace it is the collection of all namespaces.
    """
    if not kind.api_version:
        return f"/{kind.plural}"
    root = "/apis/" if "/" in kind.api_version else "/api/"
    parts = [root + kind.api_version]
    if namespace is not None:
        parts += ["namespaces", quote(namespace, safe="")]
    parts += [kind.plural, *(quote(part, safe="") for part in (name, subresource) if part)]
    return "/".join(parts)
