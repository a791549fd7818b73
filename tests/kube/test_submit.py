"""`edl train launch=kubernetes`: what is created, what is left when that fails, what is said."""

import signal
import subprocess
import sys

import pytest
import yaml
from kubernetes import client as k8s

import edl_horovod
from edl_horovod.cli import main as cli
from edl_horovod.errors import (
    ClusterError,
    ClusterForbidden,
    ClusterUnreachable,
    ConfigError,
    MissingDependency,
    NoCluster,
    NoMPIJobs,
    ObjectConflict,
    QuotaExceeded,
)
from tests.kube.conftest import RBAC, STRANGER, allow, config_map, rule
from tests.waiting import wait_until

KINDS = (
    "MPIJob",
    "ConfigMap",
    "Secret",
    "Service",
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "NetworkPolicy",
)
SETTINGS = [
    "launch=kubernetes",
    "kubernetes.name=mnist",
    "image=registry.example/edl:1",
    "model_def=mnist",
    "launch.np=2",
    "data=/data/train/*.recordio",
    "output=/data/m",
    "kubernetes.volumes={data: {claim: shared, mount: /data}}",
]


def run(capsys, *words, verb="train"):
    return cli.main([verb, *SETTINGS, *words]), *capsys.readouterr()


def names(cluster):
    return {(kind, part["metadata"]["name"]) for kind in KINDS for part in cluster.find(kind)}


def test_a_job_is_created_with_all_that_its_pods_need(use, cluster, capsys):
    before = names(cluster)

    code, out, err = run(capsys)

    assert code == 0
    rows = dict(line.split(None, 1) for line in out.splitlines())
    assert (rows["job:"], rows["namespace:"]) == ("mnist", cluster.namespace)
    assert rows["dashboard:"] == "http://127.0.0.1:8265/"
    for command in ("edl logs mnist -f", "edl dashboard mnist"):
        assert f"{command} --namespace {cluster.namespace}" in err
    created = names(cluster) - before
    assert {kind for kind, _ in created} == set(KINDS)
    job = cluster.get("MPIJob", "mnist")
    assert not job["spec"]["runPolicy"]["suspend"], "it was let go"
    for kind, name in created - {("MPIJob", "mnist")}:
        (owner,) = cluster.get(kind, name)["metadata"]["ownerReferences"]
        assert owner["uid"] == job["metadata"]["uid"]


def test_its_parts_go_with_the_job(lab):
    # Garbage collection is a controller's work, which a bare API server does not have.
    assert cli.main(["train", "-q", *SETTINGS]) == 0
    lab.cluster.delete("MPIJob", "mnist")
    assert names(lab.cluster) == set()


def test_a_job_that_is_to_wait_stays_suspended(use, cluster, capsys):
    code, *_ = run(capsys, "kubernetes.suspend=true")

    assert code == 0
    assert cluster.get("MPIJob", "mnist")["spec"]["runPolicy"]["suspend"]


def test_python_submits_too(use, cluster):
    settings = {"data": "/data/x", "output": "/data/m", "image": "registry.example/edl:1"}
    volumes = {"data": {"claim": "c", "mount": "/data"}}
    job = edl_horovod.submit(
        "train", model_def="zoo.mnist", kubernetes={"volumes": volumes}, **settings
    )

    assert job.name.startswith("zoo-")
    assert cluster.get("MPIJob", job.name)


def test_evaluate_and_predict_submit_too(use, cluster, capsys):
    for verb in ("evaluate", "predict"):
        words = [word for word in SETTINGS if not word.startswith(("model_def", "output"))]
        words += [f"kubernetes.name={verb}", "trained_model=/data/m", f"output=/data/{verb}"]
        assert cli.main([verb, *words]) == 0
        config = cluster.get("ConfigMap", f"{verb}-edl")["data"]["config.yaml"]
        assert yaml.safe_load(config)["task"] == verb


# -- dry runs


def test_a_dry_run_of_the_server_creates_nothing(use, cluster, capsys):
    before = names(cluster)

    code, out, _ = run(capsys, "--dry-run=server")

    assert code == 0
    assert "mpijob/mnist would be created (server " in out
    assert names(cluster) == before


EVERYTHING_OF_A_JOB = [
    rule("kubeflow.org", "mpijobs", "create patch"),
    rule("", "configmaps secrets services serviceaccounts", "create"),
    rule(RBAC, "roles rolebindings", "create"),
    rule("networking.k8s.io", "networkpolicies", "create"),
    rule("", "pods", "get list watch delete"),
]


def test_a_dry_run_of_the_server_works_for_who_is_no_administrator(use, cluster, capsys):
    allow(cluster, "few", EVERYTHING_OF_A_JOB)
    use(STRANGER)

    code, out, err = run(capsys, "--dry-run=server")

    assert code == 0, err
    assert "rolebinding/mnist-edl" in out
    assert "rolebinding/mnist-edl" in err, "it could not be checked"
    assert "not found" not in err, "a dry run creates no Role, so it is no wonder"
    assert run(capsys)[0] == 0, "what it foretold"


def test_a_dry_run_of_the_server_tells_a_missing_right_to_bind(use, cluster, capsys):
    rules = [part for part in EVERYTHING_OF_A_JOB if "roles" not in part["resources"]]
    allow(cluster, "few", [*rules, rule(RBAC, "roles", "create")])
    use(STRANGER)

    assert "create rolebindings" in refused(capsys, ClusterForbidden, "--dry-run=server")


def test_a_dry_run_needs_no_cluster_and_prints_what_would_be_sent(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))

    code, out, _ = run(capsys, "--dry-run", "-o", "yaml")

    assert code == 0
    assert [part["kind"] for part in yaml.safe_load_all(out)] == list(KINDS)


def test_what_is_printed_is_what_is_sent(use, cluster, capsys):
    _, out, _ = run(capsys, "--dry-run", "-o", "yaml")
    printed = {part["kind"]: part for part in yaml.safe_load_all(out)}

    run(capsys)

    for kind in set(KINDS) - {"Secret"}:
        sent = cluster.get(kind, printed[kind]["metadata"]["name"])
        assert has_all_of(sent, printed[kind]), kind


def has_all_of(sent, printed):
    if isinstance(printed, dict):
        return all(key in sent and has_all_of(sent[key], printed[key]) for key in printed)
    if isinstance(printed, list):
        return len(sent) == len(printed) and all(map(has_all_of, sent, printed))
    return sent == printed


# -- what goes wrong: one message, an exit code, nothing half created


def refused(capsys, error, *words):
    code, out, err = run(capsys, *words)
    assert code == error.exit_code, err
    assert out == ""
    assert "Traceback" not in err
    return err


def test_without_a_kubeconfig(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert "no kubeconfig" in refused(capsys, NoCluster)


def test_with_a_wrong_context(use, capsys):
    assert "mean 'test'?" in refused(capsys, NoCluster, "kubernetes.context=tets")


def test_without_rights(use, capsys):
    use(STRANGER)
    assert "create mpijobs.kubeflow" in refused(capsys, ClusterForbidden)


def test_without_mpijobs(bare_server, unbuilt, capsys):
    assert "mpi-operator" in refused(capsys, NoMPIJobs)
    refused(capsys, NoMPIJobs, *unbuilt)  # It is known before an image is built.


def test_with_a_name_that_exists(use, cluster, capsys):
    run(capsys)
    before = names(cluster)

    said = refused(capsys, ObjectConflict)

    assert "mpijob/mnist" in said
    assert "kubernetes.name" in said
    assert said.count("Received:") == 1
    assert names(cluster) == before, "the other job is as it was"


@pytest.fixture
def unbuilt(monkeypatch, tmp_path):
    """Settings of a job whose image is still to be built; nothing here can build it."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    (zoo / "requirements.txt").touch()
    (zoo / "mnist.py").write_text("def custom_model(): pass\n")
    return ["image=", f"model_zoo={zoo}", "base_image=r/base:1", "image_repository=r/zoo"]


def test_a_name_that_exists_is_known_before_an_image_is_built(use, unbuilt, capsys):
    run(capsys)

    assert "mpijob/mnist" in refused(capsys, ObjectConflict, *unbuilt)
    refused(capsys, MissingDependency, *unbuilt, "kubernetes.name=other")


def test_a_kubernetes_that_cannot_suspend_jobs_is_refused_before_anything_is_made(
    lab, unbuilt, capsys
):
    for version, words in (("1.23+", []), ("1.23+", ["--dry-run=server"]), ("1.20", unbuilt)):
        lab.server.set_kubernetes_version(version)
        said = refused(capsys, ClusterError, *words)
        assert "Kubernetes 1.24 " in said
        assert f"{lab.server.url} runs Kubernetes v{version.removesuffix('+')}.2" in said
    assert [seen for seen in lab.server.seen if seen.verb == "create"] == []


def test_the_oldest_kubernetes_of_a_vendor_carries_jobs(lab, capsys):
    lab.server.set_kubernetes_version("1.24+")

    assert run(capsys)[0] == 0


@pytest.mark.parametrize("words", [(), ("--dry-run=server",)])
def test_a_namespace_that_is_being_deleted_is_named(use, cluster, admin, namespace, capsys, words):
    cluster.create(config_map("before"))
    k8s.CoreV1Api(admin).delete_namespace(namespace)

    said = refused(capsys, ClusterError, *words)

    assert f"{namespace} is being" in said
    assert "Role" not in said


def test_a_job_in_a_queue_is_left_to_kueue(use, cluster, capsys):
    assert run(capsys, "kubernetes.labels={kueue.x-k8s.io/queue-name: team}")[0] == 0

    assert cluster.get("MPIJob", "mnist")["spec"]["runPolicy"]["suspend"] is True


def test_what_was_created_is_removed_when_a_later_part_is_refused(use, cluster, capsys):
    cluster.create(config_map("mnist-edl", of="somebody else"))
    before = names(cluster)

    assert "configmap/mnist-edl" in refused(capsys, ObjectConflict)
    assert names(cluster) == before


def test_with_a_quota_that_is_used_up(use, cluster, namespace, quota, capsys):
    used = {"count/secrets": str(len(cluster.find("Secret")))}
    quota(used, used)
    before = names(cluster)

    assert f"namespace {namespace} " in refused(capsys, QuotaExceeded)

    assert names(cluster) == before


@pytest.mark.long(after=1)
@pytest.mark.parametrize("words", [(), ("--dry-run=server",)])
def test_a_job_that_its_quota_lets_never_start_is_refused(use, cluster, quota, capsys, words):
    quota({"pods": "2"}, {"pods": "0"})
    before = names(cluster)

    said = refused(capsys, QuotaExceeded, *words)

    assert "resourcequota/few" in said
    assert "pods=2" in said
    assert "launch.np=1" in said
    assert names(cluster) == before
    assert run(capsys, *words, "launch.np=1")[0] == 0, "what it advised"


def test_a_quota_below_min_np_is_not_answered_with_fewer_ranks(use, quota, capsys):
    quota({"pods": "2"}, {"pods": "0"})

    said = refused(capsys, QuotaExceeded, "elastic.min_np=2")

    assert "Start with" not in said
    assert "launch.np, elastic.min_np" in said


def test_a_job_that_waits_for_others_in_its_quota_says_so(use, cluster, quota, capsys):
    quota({"pods": "4"}, {"pods": "3"})

    code, _, err = run(capsys)

    assert code == 0
    assert "waits until" in err
    assert cluster.get("MPIJob", "mnist")


def test_a_quota_that_is_too_small_is_known_before_an_image_is_built_where_it_may_be_read(
    use, cluster, quota, unbuilt, capsys
):
    quota({"pods": "2"}, {"pods": "0"})
    refused(capsys, QuotaExceeded, *unbuilt)
    allow(cluster, "few", EVERYTHING_OF_A_JOB)
    use(STRANGER)

    assert run(capsys)[0] == 0


@pytest.mark.long
def test_a_configuration_over_one_megabyte_is_never_sent(use, cluster, capsys):
    before = names(cluster)

    assert "too long" in refused(capsys, ConfigError, f"params.note={'x' * (1 << 20)}")

    assert names(cluster) == before


def test_what_could_not_be_removed_is_named(use, cluster, capsys):
    cluster.create(config_map("mnist-edl"))
    create = (rule("kubeflow.org", "mpijobs", "create"), rule("", "configmaps", "create"))
    allow(cluster, "few", [*create])
    use(STRANGER)

    assert "removed: mpijob/mnist" in refused(capsys, ObjectConflict)


def test_what_the_cluster_removes_with_the_job_is_not_called_left(use, cluster, capsys):
    # May make both and remove only the job, but not make the Secret.
    jobs = rule("kubeflow.org", "mpijobs", "create delete")
    allow(cluster, "few", [jobs, rule("", "configmaps", "create")])
    use(STRANGER)

    said = refused(capsys, ClusterForbidden)

    assert "create secrets" in said
    assert "removed" not in said
    assert cluster.find("MPIJob") == []


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_submission_leaves_nothing(lab, number):
    lab.server.faults.delay_seconds = 0.3
    command = [sys.executable, "-m", "edl_horovod", "train", *SETTINGS]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: any(seen.path.endswith("/services") for seen in lab.server.seen))
    child.send_signal(number)
    said = child.communicate(timeout=60)[1]
    lab.server.faults.delay_seconds = 0.0

    assert (child.returncode, "mnist is left" in said) == (130, True), said
    assert names(lab.cluster) == set()


def test_what_may_have_been_made_is_named(lab, capsys):
    faults = lab.server.faults
    faults.drop, faults.drop_only = 9, "POST"

    assert "mpijob/mnist was created" in refused(capsys, ClusterUnreachable)

    faults.drop = 9
    assert "was created" not in refused(capsys, ClusterUnreachable, "--dry-run=server")


def test_dry_runs_and_formats_of_clusters_are_not_for_this_machine(capsys):
    code = cli.main(["train", "model_def=m", "data=/d", "output=/o", "--dry-run=server"])

    assert code == ConfigError.exit_code
    assert "kind=local" in capsys.readouterr().err
