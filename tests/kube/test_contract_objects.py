"""Single objects and lists, through the official client's transport, against any API server."""

import contextlib

import pytest
from kubernetes import client as k8s

from edl_horovod.cluster.client import PAGE_SIZE
from edl_horovod.errors import (
    ClusterError,
    ManifestRefused,
    ObjectConflict,
    ObjectNotFound,
    QuotaExceeded,
)
from tests.kube.conftest import ADMIN, config_map, mpijob, pod

NO_GRACE = 0


def test_a_created_object_has_identity_and_version_and_is_there_once(cluster):
    created = cluster.create(config_map("one", key="value"))

    assert created["metadata"]["uid"]
    assert int(created["metadata"]["resourceVersion"]) > 0
    assert created["metadata"]["creationTimestamp"].endswith("Z")
    assert cluster.get("ConfigMap", "one") == created
    with pytest.raises(ObjectConflict, match=r"configmaps one .* test-.* 409"):
        cluster.create(config_map("one"))


def test_a_generated_name_begins_as_asked_for(cluster):
    manifest = config_map("x")
    manifest["metadata"] = {"generateName": "job-"}

    names = {cluster.create(manifest)["metadata"]["name"] for _ in range(2)}

    assert len(names) == 2
    assert all(name.startswith("job-") and len(name) > 4 for name in names)


def test_an_object_that_is_not_there_is_named(cluster):
    with pytest.raises(ObjectNotFound, match=r"nobody .* test-"):
        cluster.get("Pod", "nobody")


def test_a_namespace_that_is_not_there_is_named(cluster_of):
    with pytest.raises(ObjectNotFound, match="such-place"):
        cluster_of(ADMIN, "no-such-place").create(config_map("one"))


def test_a_namespace_that_is_being_deleted_takes_nothing_new(cluster, admin, namespace):
    cluster.create(config_map("before"))  # It is there until a controller has removed this.
    k8s.CoreV1Api(admin).delete_namespace(namespace)

    with pytest.raises(ClusterError, match=f"{namespace} .*terminated") as error:
        cluster.create(config_map("one"))

    assert error.value.exit_code == ClusterError.exit_code, "no right is missing"


MIB = 1024 * 1024
REFUSED = {
    "a name that is none": (lambda: config_map("Not_A_Name"), "Not_A_Name"),
    "a pod without containers": (
        lambda: {**pod("empty"), "spec": {"containers": []}},
        r"spec\.containers",
    ),
    "over 1 MiB": (lambda: config_map("large", text="x" * (MIB + 1)), "1048576"),
    "far too large": (lambda: config_map("large", text="x" * (4 * MIB)), "configmaps large"),
    "a wrong value": (
        lambda: mpijob("job", mpiImplementation="Carrier pigeon"),
        "mpiImplementation",
    ),
    "no replicas": (lambda: {**mpijob("job"), "spec": {}}, "mpiReplicaSpecs"),
}


@pytest.mark.parametrize(("manifest", "pattern"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(cluster, manifest, pattern):
    with pytest.raises(ManifestRefused, match=pattern):
        cluster.create(manifest())


def test_a_dry_run_is_checked_and_makes_nothing(cluster):
    answer = cluster.create(config_map("one"), is_dry_run=True)

    assert answer["metadata"]["name"] == "one"
    with pytest.raises(ObjectNotFound):
        cluster.get("ConfigMap", "one")
    with pytest.raises(ManifestRefused):
        cluster.create(config_map("Not_A_Name"), is_dry_run=True)


def test_a_patch_sets_and_removes_keys_of_the_version_that_it_is_for(cluster):
    before = cluster.create(config_map("one", keep="1", change="2", drop="3"))
    changes = {"data": {"change": "4", "drop": None}}

    tried = cluster.patch("ConfigMap", "one", changes, is_dry_run=True)
    assert cluster.get("ConfigMap", "one") == before
    after = cluster.patch("ConfigMap", "one", changes)

    assert tried["data"] == after["data"] == {"keep": "1", "change": "4"}
    old = before["metadata"]["resourceVersion"]
    assert after["metadata"]["resourceVersion"] != old
    with pytest.raises(ObjectConflict, match="configmaps one"):
        cluster.patch("ConfigMap", "one", {**changes, "metadata": {"resourceVersion": old}})


def test_the_status_is_changed_only_as_such(cluster, admin, namespace):
    cluster.create(pod("one"))
    core = k8s.CoreV1Api(admin)
    for status in ("False", "True"):
        # The library sends a strategic merge: conditions are merged by their type.
        core.patch_namespaced_pod_status(
            "one", namespace, {"status": {"conditions": [{"type": "Ready", "status": status}]}}
        )
    core.patch_namespaced_pod_status(
        "one", namespace, {"status": {"phase": "Running", "podIP": "10.0.0.7"}}
    )

    cluster.patch("Pod", "one", {"status": {"phase": "Failed"}, "metadata": {"labels": {"a": "b"}}})

    changed = cluster.get("Pod", "one")
    status = changed["status"]
    assert (status["phase"], status["podIP"]) == ("Running", "10.0.0.7")
    ready = [entry["status"] for entry in status["conditions"] if entry["type"] == "Ready"]
    assert ready == ["True"]
    assert changed["metadata"]["labels"] == {"a": "b"}


def test_a_pod_on_a_node_terminates_before_it_is_gone(cluster):
    cluster.create(pod("one"))

    cluster.delete("Pod", "one", grace_seconds=7)

    ending = cluster.get("Pod", "one")["metadata"]
    assert ending["deletionTimestamp"]
    assert ending["deletionGracePeriodSeconds"] == 7
    cluster.delete("Pod", "one", grace_seconds=NO_GRACE)
    with pytest.raises(ObjectNotFound):
        cluster.get("Pod", "one")


def test_only_the_meant_incarnation_is_deleted(cluster):
    uid = cluster.create(config_map("one"))["metadata"]["uid"]

    with pytest.raises(ObjectConflict, match="configmaps one"):
        cluster.delete("ConfigMap", "one", uid="00000000-0000-0000-0000-000000000000")
    cluster.delete("ConfigMap", "one", uid=uid)

    with pytest.raises(ObjectNotFound):
        cluster.delete("ConfigMap", "one")


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ("", ["a", "b", "c"]),
        ("role=worker", ["a", "b"]),
        ("role=worker,job=x", ["a"]),
        ("role!=worker", ["c"]),
        ("job in (x, y)", ["a", "b"]),
        ("job", ["a", "b"]),
        ("!job", ["c"]),
    ],
)
def test_labels_select(cluster, labels, names):
    cluster.create(pod("a", labels={"role": "worker", "job": "x"}))
    cluster.create(pod("b", labels={"role": "worker", "job": "y"}))
    cluster.create(pod("c"))

    pods = cluster.find("Pod", labels=labels)

    assert [found["metadata"]["name"] for found in pods] == names
    assert {found["kind"] for found in pods} == {"Pod"}


def test_fields_select(cluster):
    cluster.create(pod("a", node="node-1"))
    cluster.create(pod("b", node="node-2"))

    pods = cluster.find("Pod", fields="spec.nodeName=node-2,status.phase!=Failed")

    assert [found["metadata"]["name"] for found in pods] == ["b"]


def test_a_list_comes_in_pages(cluster):
    for number in range(PAGE_SIZE + 1):
        cluster.create(pod(f"pod-{number}"))

    pages = list(cluster.pages("Pod"))

    assert [len(page.items) for page in pages] == [PAGE_SIZE, 1]
    assert len({page.version for page in pages}) == 1
    assert len(cluster.find("Pod")) == PAGE_SIZE + 1


def test_all_namespaces_are_searched(cluster_of, namespace, cluster):
    cluster.create(config_map(f"only-in-{namespace}"))

    maps = cluster_of(ADMIN, "default").find("ConfigMap", all_namespaces=True)

    assert (namespace, f"only-in-{namespace}") in {
        (found["metadata"]["namespace"], found["metadata"]["name"]) for found in maps
    }


def test_a_quota_refuses_one_too_many(cluster, quota):
    hard = {"count/configmaps": str(len(cluster.find("ConfigMap")) + 1)}
    quota(hard, {"count/configmaps": "0"})
    cluster.create(config_map("first"))

    with pytest.raises(QuotaExceeded, match=r"second .*few"):
        cluster.create(config_map("second"))


def test_an_mpijob_gets_its_defaults(cluster):
    spec = cluster.create(mpijob("job"))["spec"]

    assert (spec["slotsPerWorker"], spec["mpiImplementation"]) == (1, "OpenMPI")
    assert (spec["launcherCreationPolicy"], spec["sshAuthMountPath"]) == ("AtStartup", "/root/.ssh")
    assert [job["metadata"]["name"] for job in cluster.find("MPIJob")] == ["job"]


def test_a_field_that_mpijobs_do_not_have_is_not_kept(cluster):
    # Servers from 1.25 on refuse it, older ones drop it.
    with contextlib.suppress(ManifestRefused):
        cluster.create(mpijob("job", numPigeons=3))

    assert all("numPigeons" not in job["spec"] for job in cluster.find("MPIJob"))


def test_the_number_of_workers_is_patched(cluster):
    cluster.create(mpijob("job"))

    after = cluster.patch(
        "MPIJob", "job", {"spec": {"mpiReplicaSpecs": {"Worker": {"replicas": 3}}}}
    )

    assert after["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 3
    assert after["spec"]["mpiReplicaSpecs"]["Launcher"]["replicas"] == 1
    assert after["metadata"]["generation"] == 2
