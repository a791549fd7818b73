"""Which cluster is meant."""

from pathlib import Path

import pytest
import yaml

from edl_horovod.cluster.credentials import find_cluster
from edl_horovod.errors import NoCluster


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".kube").mkdir()
    return tmp_path


def write(path: Path, current: str = "", **namespaces: str) -> str:
    contexts = [
        {"name": name, "context": {"namespace": place} if place else {}}
        for name, place in namespaces.items()
    ]
    path.write_text(yaml.safe_dump({"current-context": current, "contexts": contexts}))
    return str(path)


def test_the_usual_kubeconfig_is_found(home):
    path = write(home / ".kube" / "config", "a", a="team", b="")

    place = find_cluster()

    assert (place.kubeconfig, place.context, place.namespace) == (path, "a", "team")


def test_a_named_context_and_namespace_come_first(home):
    write(home / ".kube" / "config", "a", a="team", b="")

    assert find_cluster(context="b").namespace == "default"
    assert find_cluster(context="b", namespace="mine").namespace == "mine"


def test_the_variable_may_name_several_files(home, monkeypatch):
    first = write(home / "one", "a", a="first")
    second = write(home / "two", "b", a="second", b="third")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{home / 'missing'}:{second}")

    place = find_cluster()

    assert (place.kubeconfig, place.context, place.namespace) == (f"{first}:{second}", "a", "first")
    assert find_cluster(context="b").namespace == "third"


@pytest.mark.parametrize(
    ("current", "context", "message"),
    [
        ("kind", "kin", "'kind'.*: kind, prod"),
        ("", "", "context=''.*: kind"),
        (None, "", r"~/\.kube/config"),
    ],
    ids=["unknown", "no current one", "no kubeconfig"],
)
def test_a_missing_context_is_told_with_those_there_are(home, current, context, message):
    if current is not None:
        write(home / ".kube" / "config", current, kind="", prod="")

    with pytest.raises(NoCluster, match=message):
        find_cluster(context=context)


def test_a_kubeconfig_that_is_named_must_be_there(home, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(home / "missing"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")

    with pytest.raises(NoCluster, match=r"KUBECONFIG=.*missing"):
        find_cluster(service_account=home)


@pytest.mark.parametrize("text", ["{", "[1, 2]", "contexts: [5]", "contexts: 5", "\x00"])
def test_a_damaged_kubeconfig_is_told(home, text):
    (home / ".kube" / "config").write_text(text)

    with pytest.raises(NoCluster, match=str(home)):
        find_cluster()


def test_a_pod_has_its_own(home, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    (home / "namespace").write_text("team\n")

    place = find_cluster(service_account=home)

    assert (place.kubeconfig, place.namespace) == ("", "team")
