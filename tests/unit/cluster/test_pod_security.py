"""Jobs run in namespaces that enforce the Pod Security Standard "restricted"."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edl_horovod.cluster import pods
from tests.kube import pod_security
from tests.unit.cluster.test_manifest import STYLES, VOLUME, made, pod

DOCKER = Path(__file__).parents[3] / "docker"
SETTINGS = {
    "plain": [],
    "slots": ["kubernetes.slots_per_worker=2"],
    "gpus": ["kubernetes.worker.gpus=1"],
    "secret": ["kubernetes.volumes.login={secret: s3, mount: /login}"],
    "everywhere": [
        "kubernetes.volumes.scratch={claim: c, mount: /tmp}",
        "kubernetes.volumes.home={claim: d, mount: /home/edl}",
    ],
}
EVALUATE = [
    "launch=kubernetes",
    "image=registry.example/edl:1",
    "trained_model=/data/m",
    *VOLUME,
    "data=/data/x",
]


def templates(job):
    return [found for item in job.all for found in pod_security.templates(item)]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("more", SETTINGS.values(), ids=SETTINGS)
def test_what_edl_submits_is_restricted(style, more):
    found = templates(made(*more, f"kubernetes.style={style}"))

    assert len(found) == 2
    assert [pod_security.violations(template) for template in found] == [[], []]


@pytest.mark.parametrize("task", ["evaluate", "predict"])
def test_so_are_the_other_tasks(task):
    more = ["output=/data/out"] if task == "predict" else []

    found = templates(made(*more, task=task, base=EVALUATE))

    assert [pod_security.violations(template) for template in found] == [[], []]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("role", ["Launcher", "Worker"])
def test_nothing_but_volumes_can_be_written(style, role):
    template, container = pod(made(f"kubernetes.style={style}"), role)
    kinds = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    written = {
        mount["mountPath"]
        for mount in container["volumeMounts"]
        if "emptyDir" in kinds[mount["name"]]
    }

    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert written == {"/tmp", "/home/edl"}
    home = next(item["value"] for item in container["env"] if item["name"] == "HOME")
    assert home == "/home/edl"


def test_a_users_volume_takes_the_place_of_one_of_ours():
    template, container = pod(made(*SETTINGS["everywhere"]), "Worker")
    paths = [mount["mountPath"] for mount in container["volumeMounts"]]

    assert len(set(paths)) == len(paths)
    assert not [volume for volume in template["spec"]["volumes"] if "emptyDir" in volume]


def test_who_sees_a_secret_is_the_pods_user_alone():
    job = made("kubernetes.volumes.login={secret: s3, mount: /login}")
    for role in ("Launcher", "Worker"):
        spec = pod(job, role)[0]["spec"]
        sources = [volume.get("secret") or volume.get("configMap") for volume in spec["volumes"]]
        assert {source["defaultMode"] for source in sources if source} == {0o440}
        # Files of a secret are root's and this group's.
        assert spec["securityContext"]["fsGroup"] == 1000
        assert spec["securityContext"]["runAsUser"] == 1000


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_the_pods_user_is_the_images(name):
    lines = (DOCKER / name).read_text().splitlines()

    assert f"USER {pods.USER}" in lines
    assert f"WORKDIR {pods.HOME}" in lines


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_the_pods_user_reads_what_is_copied_whatever_the_checkouts_umask(name):
    copied = [line for line in (DOCKER / name).read_text().splitlines() if " docker/ssh/" in line]

    assert len(copied) == 3
    assert all(line.startswith("COPY --chmod=") for line in copied)


@dataclass(frozen=True)
class Worse:
    where: str
    """Place in a pod, with slashes between."""
    value: Any
    says: str


@pytest.mark.parametrize(
    "worse",
    [
        Worse("spec/hostNetwork", True, "hostNetwork"),
        Worse("spec/securityContext/seccompProfile", {"type": "Unconfined"}, "seccompProfile"),
        Worse("spec/securityContext/runAsUser", 0, "runAsUser"),
        Worse("spec/securityContext", {}, "worker.runAsNonRoot"),
        Worse("spec/securityContext", {"runAsNonRoot": True}, "worker.seccompProfile"),
        Worse("spec/securityContext/sysctls", [{"name": "kernel.msgmax"}], "sysctls.kernel.msgmax"),
        Worse("spec/securityContext/seLinuxOptions", {"user": "x"}, "seLinuxOptions"),
        Worse("spec/volumes/0", {"name": "x", "hostPath": {"path": "/"}}, "volumes.x"),
        Worse("spec/containers/0/securityContext", {}, "worker.allowPrivilegeEscalation"),
        Worse("spec/containers/0/securityContext/privileged", True, "worker.privileged"),
        Worse("spec/containers/0/securityContext/capabilities", {}, "worker.capabilities.drop"),
        Worse("spec/containers/0/securityContext/capabilities/add", ["CHOWN"], "capabilities.add"),
        Worse("spec/containers/0/securityContext/runAsNonRoot", False, "worker.runAsNonRoot"),
        Worse("spec/containers/0/securityContext/procMount", "Unmasked", "worker.procMount"),
        Worse("spec/containers/0/ports", [{"hostPort": 22}], "worker.hostPort"),
        Worse("spec/containers/0/readinessProbe", {"tcpSocket": {"host": "a"}}, "worker.host"),
        Worse("spec/initContainers", [{"name": "first"}], "first.capabilities.drop"),
    ],
    ids=lambda worse: f"{worse.where}={worse.value}"[:60],
)
def test_the_standard_finds_what_is_worse(worse):
    template = copy.deepcopy(pod(made(), "Worker")[0])
    *places, last = worse.where.split("/")
    found = template
    for place in places:
        found = found[int(place) if place.isdigit() else place]
    found[int(last) if last.isdigit() else last] = worse.value

    assert [one for one in pod_security.violations(template) if worse.says in one]
