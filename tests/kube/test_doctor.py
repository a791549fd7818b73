"""`edl doctor` against an API server: MPIJobs, rights and Pod Security."""

import json

import pytest
from kubernetes import client as k8s

from edl_horovod.cli.main import main
from edl_horovod.errors import ManifestRefused
from tests.kube.conftest import STRANGER, allow, pod, rule
from tests.kube.test_submit import EVERYTHING_OF_A_JOB, SETTINGS

ENFORCE = "pod-security.kubernetes.io/enforce"
FAILED = 1
SUBMIT = [
    *EVERYTHING_OF_A_JOB,
    *({**part, "verbs": ["delete"]} for part in EVERYTHING_OF_A_JOB[:-1]),
]
"""What docs/how-to/kubernetes.md asks for."""
LOOK_AFTER = [
    rule("kubeflow.org", "mpijobs", "get list"),
    rule("", "pods/log configmaps", "get"),
    rule("", "events", "list"),
]


@pytest.fixture
def doctor(capsys):
    """Run checks; gives the exit code, and levels with texts."""

    def run(*words):
        code = main(["doctor", *words, "--json"])
        checks = json.loads(capsys.readouterr().out)
        text = " ".join(check["text"] + check["fix"] for check in checks)
        return code, [check["level"] for check in checks], text

    return run


@pytest.fixture
def label(admin, namespace):
    def write(standard):
        changes = {"metadata": {"labels": {ENFORCE: standard}}}
        k8s.CoreV1Api(admin).patch_namespace(namespace, changes)

    return write


def test_a_cluster_with_mpijobs_is_well_for_its_administrator(use, doctor, namespace):
    code, levels, text = doctor("cluster", "rights", "pods")
    assert code == 0
    assert levels == ["OK"] * 6
    assert namespace in text


def test_a_cluster_without_mpi_operator_fails_where_it_was_asked_for(bare_server, doctor):
    code, levels, text = doctor("cluster")
    assert (code, levels[-1]) == (FAILED, "FAIL")
    assert "mpi-operator" in text

    assert main(["train", *SETTINGS, "-q"]) != 0


def test_an_expired_token_is_told(use, doctor):
    use("no-such-token")
    code, levels, text = doctor("rights")
    assert (code, levels) == (FAILED, ["FAIL"])
    assert "Log in" in text


def test_who_has_the_rights_of_the_page_may_submit(use, cluster, doctor, capsys):
    allow(cluster, "few", [*SUBMIT, *LOOK_AFTER])
    use(STRANGER)

    assert doctor("rights")[:2] == (0, ["OK", "OK"])
    assert main(["train", "-q", *SETTINGS]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("resource", ["mpijobs", "secrets", "networkpolicies", "rolebindings"])
def test_a_missing_right_is_named_as_a_submission_would_find_it(
    use, cluster, doctor, capsys, resource
):
    fewer = [
        {**part, "resources": [name for name in part["resources"] if name != resource]}
        for part in SUBMIT
    ]
    allow(cluster, "few", fewer)
    use(STRANGER)

    code, levels, text = doctor("rights")

    assert (code, levels[0]) == (FAILED, "FAIL")
    assert f"create {resource}" in text
    assert main(["train", "-q", *SETTINGS]) != 0
    said = capsys.readouterr().err
    assert f"create {resource}" in said
    assert "edl doctor" in said


def test_missing_rights_of_a_launcher_can_be_those_of_an_account(use, cluster, doctor):
    allow(cluster, "few", [part for part in SUBMIT if "pods" not in part["resources"]])
    use(STRANGER)
    _, levels, text = doctor("rights")
    assert levels[0] == "FAIL"
    assert "service_account" in text


def test_who_may_not_look_after_jobs_is_told_apart(use, cluster, doctor):
    allow(cluster, "few", SUBMIT)
    use(STRANGER)
    _, levels, text = doctor("rights")
    assert levels == ["OK", "FAIL"]
    assert "pods/log" in text


@pytest.mark.parametrize("standard", ["", "privileged", "baseline", "restricted"])
def test_each_standard_of_pod_security_takes_our_pods(use, cluster, doctor, label, standard):
    if standard:
        label(standard)

    code, levels, text = doctor("pods")

    assert (code, levels) == (0, ["OK", "OK"])
    assert f"{ENFORCE}={standard}" in text or not standard
    assert ("host_path" in text) == (standard in ("baseline", "restricted"))
    assert cluster.find("Pod") == [], "it was a dry run"


def test_a_pod_that_a_standard_forbids_is_a_refused_manifest(cluster, label):
    label("restricted")
    with pytest.raises(ManifestRefused, match="Pod Security"):
        cluster.create(pod("one"))


def test_a_namespace_that_takes_no_pods_is_told(lab, doctor):
    full = {"metadata": {"name": "full"}, "status": {"hard": {"pods": "0"}}}
    store = lab.server.store
    lab.server.do(lambda: store.create("resourcequotas", "default", full, is_dry_run=False))

    code, levels, text = doctor("pods")

    assert (code, levels) == (FAILED, ["OK", "FAIL"])
    assert "quota" in text


def test_who_may_not_create_pods_is_no_fault(use, cluster, doctor):
    allow(cluster, "few", SUBMIT)
    use(STRANGER)
    assert doctor("pods")[:2] == (0, ["NONE", "NONE"])


def test_a_namespace_that_is_not_there_is_told(use, doctor):
    code, levels, text = doctor("pods", "--namespace=nowhere")
    assert (code, levels) == (FAILED, ["FAIL"])
    assert "namespace nowhere" in text


def test_a_report_names_neither_the_server_nor_the_namespace(use, backend, namespace, capsys):
    main(["doctor", "cluster", "rights", "--report"])
    printed = capsys.readouterr().out
    assert "Kubernetes v1." in printed
    assert backend.url.rpartition("/")[2] not in printed
    assert namespace not in printed
