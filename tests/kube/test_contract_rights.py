"""Who may what, against any API server."""

import pytest

from edl_horovod.cluster.client import Cluster
from edl_horovod.errors import ClusterForbidden, CredentialsRefused, ObjectNotFound
from tests.kube.conftest import (
    RBAC,
    STRANGER,
    WATCHER,
    allow,
    binding,
    config_map,
    pod,
    role,
    rule,
)

WATCHER_USER = {"apiGroup": RBAC, "kind": "User", "name": "watcher"}
READ_PODS = rule("", "pods", "get list watch")


def test_a_token_that_nobody_has_is_refused(cluster_of):
    with pytest.raises(CredentialsRefused, match="401"):
        cluster_of("no-such-token").find("Pod")


def test_who_has_no_role_may_nothing(cluster_of, namespace):
    with pytest.raises(ClusterForbidden, match=f"list pods .*{namespace}"):
        cluster_of(STRANGER).find("Pod")
    with pytest.raises(ClusterForbidden, match="configmaps one"):
        cluster_of(STRANGER).create(config_map("one"))


def test_who_may_read_pods_may_nothing_else(cluster, cluster_of):
    allow(cluster, "read-pods", [READ_PODS], subject=WATCHER_USER)
    cluster.create(pod("one"))

    reader: Cluster = cluster_of(WATCHER)

    assert reader.get("Pod", "one")["metadata"]["name"] == "one"
    page = next(reader.pages("Pod"))
    cluster.create(pod("two"))
    event = next(reader.watch("Pod", page.version))
    assert (event.kind, event.object["metadata"]["name"]) == ("ADDED", "two")
    with pytest.raises(ClusterForbidden, match="delete pods"):
        reader.delete("Pod", "one")
    with pytest.raises(ClusterForbidden, match="list configmaps"):
        reader.find("ConfigMap")
    with pytest.raises(ClusterForbidden, match="all namespaces"):
        reader.find("Pod", all_namespaces=True)
    with pytest.raises(ClusterForbidden, match="namespace default"):
        cluster_of(WATCHER, "default").find("Pod")


def test_who_binds_a_role_needs_its_rights_and_the_role_itself(cluster, cluster_of):
    bind = rule(RBAC, "roles rolebindings", "create")
    allow(cluster, "team", [bind, READ_PODS], subject=WATCHER_USER)
    member: Cluster = cluster_of(WATCHER)

    # Older versions say that there is no such Role; 1.36 that there is no such RoleBinding.
    with pytest.raises(ObjectNotFound, match=r'role(s|binding)\S* "read-pods"') as error:
        member.create(binding("other", "read-pods", WATCHER_USER), is_dry_run=True)
    assert "no RoleBinding" not in str(error.value), "nobody asked for one"
    member.create(role("read-pods", [READ_PODS]))
    member.create(binding("read-pods", "read-pods", WATCHER_USER), is_dry_run=True)
    with pytest.raises(ClusterForbidden, match="grant RBAC") as error:
        member.create(role("more", [rule("", "pods", "delete")]))
    assert "may not create roles" not in str(error.value), "it may, but not this one"


def test_what_another_one_may_can_be_asked(cluster, namespace):
    allow(cluster, "read-pods", [READ_PODS], subject=WATCHER_USER)

    def may(user: str, verb: str, **part) -> bool:
        asked = {"namespace": namespace, "verb": verb, "group": "", "resource": "pods", **part}
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
