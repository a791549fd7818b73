"""k8s/federated: what its pods run are commands that work, and names and ports lead to them."""

import pytest
import yaml

from edl_horovod.cli.main import main
from edl_horovod.coordinator import tokens
from tests.component.cluster.test_golden import K8S, rendered
from tests.kube import pod_security

FOLDERS = ("coordinator", "party")
pytestmark = pytest.mark.parametrize("folder", FOLDERS)


def objects(folder):
    return {item["kind"]: item for item in rendered(K8S / "federated" / folder)}


def pod_of(job):
    return job["spec"]["template"]["spec"]


@pytest.fixture
def run(tmp_path, folder, capsys):
    """Run the command of a folder's pod without starting anything; returns what it would do."""
    (container,) = pod_of(objects(folder)["Job"])["containers"]
    words = [word.replace("/federation", str(tmp_path)) for word in container["command"]]
    assert words[:3] == ["python", "-m", "edl_horovod"]
    tokens.issue(tmp_path, ["north"])
    if folder == "party":
        settings = objects(folder)["ConfigMap"]["data"]["party.yaml"]
        (tmp_path / "party.yaml").write_text(settings.replace("/data/", f"{tmp_path}/data/"))
        places = {"/edl-token/token": "north.token", "/edl/party.yaml": "party.yaml"}
        words = [str(tmp_path / places[word]) if word in places else word for word in words]
    assert main([*words[3:], "--dry-run"]) == 0
    return yaml.safe_load(capsys.readouterr().out)


def test_the_pod_runs_a_command_that_listens_where_the_service_leads(folder, run):
    items = objects(folder)
    job, service = items["Job"], items["Service"]
    (port,), labels = service["spec"]["ports"], job["spec"]["template"]["metadata"]["labels"]
    (container,) = pod_of(job)["containers"]
    named = {entry["name"]: entry["containerPort"] for entry in container["ports"]}
    listens = run["federated"]["listen" if folder == "coordinator" else "address"]
    assert int(listens.rpartition(":")[2]) == named[port["targetPort"]] == port["port"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert items["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert items["NetworkPolicy"]["spec"]["ingress"] == [{"ports": [{"port": port["targetPort"]}]}]
    if folder == "party":
        assert listens == f"{service['metadata']['name']}:{port['port']}"
        of_coordinator = objects("coordinator")["Service"]
        address = container["command"][container["command"].index("--join") + 1]
        name = of_coordinator["metadata"]["name"]
        assert address == f"{name}:{of_coordinator['spec']['ports'][0]['port']}"


def test_it_runs_where_pod_security_is_restricted(folder):
    templates = list(pod_security.templates(objects(folder)["Job"]))

    assert [pod_security.violations(template) for template in templates] == [[]]


def test_what_a_pod_mounts_is_there(folder):
    items = objects(folder)
    (container,) = pod_of(items["Job"])["containers"]
    volumes = {volume["name"]: volume for volume in pod_of(items["Job"])["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    if folder == "party":
        assert volumes["settings"]["configMap"]["name"] == items["ConfigMap"]["metadata"]["name"]
    else:
        claim = volumes["federation"]["persistentVolumeClaim"]["claimName"]
        assert claim == items["PersistentVolumeClaim"]["metadata"]["name"]
