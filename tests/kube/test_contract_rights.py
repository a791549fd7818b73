"""Who may what, against any API server."""

import pytest

from edl_horovod.cluster.client import Cluster
from edl_horovod.errors import ClusterForbidden, CredentialsRefused, ObjectNotFound
from tests.kube.conftest import STRANGER, WATCHER, config_map, pod

READ_PODS = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "read-pods"},
    "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
}
BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "RoleBinding",
    "metadata": {"name": "read-pods"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "read-pods"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "watcher"}],
}


def test_a_token_that_nobody_has_is_refused(cluster_of):
    with pytest.raises(CredentialsRefused, match="401"):
        cluster_of("no-such-token").find("Pod")


def test_who_has_no_role_may_nothing(cluster_of, namespace):
    with pytest.raises(ClusterForbidden, match=f"may not list pods in namespace {namespace}"):
        cluster_of(STRANGER).find("Pod")
    with pytest.raises(ClusterForbidden, match="may not create configmaps one in namespace"):
        cluster_of(STRANGER).create(config_map("one"))


def test_who_may_read_pods_may_nothing_else(cluster, cluster_of):
    cluster.create(READ_PODS)
    cluster.create(BINDING)
    cluster.create(pod("one"))

    reader: Cluster = cluster_of(WATCHER)

    assert reader.get("Pod", "one")["metadata"]["name"] == "one"
    page = next(reader.pages("Pod"))
    cluster.create(pod("two"))
    event = next(reader.watch("Pod", page.version))
    assert (event.kind, event.object["metadata"]["name"]) == ("ADDED", "two")
    with pytest.raises(ClusterForbidden, match="may not delete pods one"):
        reader.delete("Pod", "one")
    with pytest.raises(ClusterForbidden, match="may not list configmaps"):
        reader.find("ConfigMap")
    with pytest.raises(ClusterForbidden, match="may not list pods in all namespaces"):
        reader.find("Pod", all_namespaces=True)
    with pytest.raises(ClusterForbidden, match="may not list pods in namespace default"):
        cluster_of(WATCHER, "default").find("Pod")


def test_who_binds_a_role_needs_its_rights_and_the_role_itself(cluster, cluster_of):
    group = ["rbac.authorization.k8s.io"]
    rules = [
        {"apiGroups": group, "resources": ["roles", "rolebindings"], "verbs": ["create"]},
        *READ_PODS["rules"],
    ]
    cluster.create({**READ_PODS, "metadata": {"name": "team"}, "rules": rules})
    reference = {"roleRef": {**BINDING["roleRef"], "name": "team"}}
    cluster.create({**BINDING, **reference, "metadata": {"name": "team"}})
    member: Cluster = cluster_of(WATCHER)

    # Older versions say that there is no such Role; 1.36 that there is no such RoleBinding.
    with pytest.raises(ObjectNotFound, match=r'role(s|binding)\S* "read-pods" not found') as error:
        member.create({**BINDING, "metadata": {"name": "other"}}, is_dry_run=True)
    assert "no RoleBinding of that name" not in str(error.value), "nobody asked for one"
    member.create(READ_PODS)
    member.create(BINDING, is_dry_run=True)
    more = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}]
    with pytest.raises(ClusterForbidden, match="attempting to grant RBAC permissions") as error:
        member.create({**READ_PODS, "metadata": {"name": "more"}, "rules": more})
    assert "may not create roles" not in str(error.value), "it may, but not this one"


def test_what_another_one_may_can_be_asked(cluster, namespace):
    cluster.create(READ_PODS)
    cluster.create(BINDING)

    def may(user: str, verb: str, **more) -> bool:
        asked = {"namespace": namespace, "verb": verb, "group": "", "resource": "pods", **more}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "LocalSubjectAccessReview",
            "metadata": {"namespace": namespace},
            "spec": {"user": user, "groups": ["people"], "resourceAttributes": asked},
        }
        return cluster.create(review)["status"]["allowed"]

    assert may("watcher", "list")
    assert not may("watcher", "delete")
    assert not may("watcher", "get", subresource="log")
    assert not may("stranger", "list")
