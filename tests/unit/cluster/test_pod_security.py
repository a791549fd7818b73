"""Jobs run in namespaces that enforce the Pod Security Standard "restricted"."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edl_horovod.cluster import pods
from tests.kube import pod_security
from tests.unit.cluster.test_manifest import STYLES, TRAIN, VOLUME, job_of, pod

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
EVALUATE = [*TRAIN[:2], "trained_model=/data/m", *VOLUME, "data=/data/x"]


def templates(job):
    return [template for manifest in job.all for template in pod_security.templates(manifest)]


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("settings", "task"),
    [
        *(
            ([*settings, f"kubernetes.style={style}"], {})
            for style in STYLES
            for settings in SETTINGS.values()
        ),
        ([], {"task": "evaluate", "base": EVALUATE}),
        (["output=/data/out"], {"task": "predict", "base": EVALUATE}),
    ],
)
def test_what_edl_submits_is_restricted(settings, task):
    submitted = templates(job_of(*settings, **task))

    assert [pod_security.violations(template) for template in submitted] == [[], []]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("role", ["Launcher", "Worker"])
def test_nothing_but_volumes_can_be_written(style, role):
    template, container = pod(job_of(f"kubernetes.style={style}"), role)
    kinds = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    written = {
        mount["mountPath"]
        for mount in container["volumeMounts"]
        if "emptyDir" in kinds[mount["name"]]
    }

    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert written == {"/tmp", "/home/edl"}
    home = next(variable["value"] for variable in container["env"] if variable["name"] == "HOME")
    assert home == "/home/edl"


def test_a_users_volume_takes_the_place_of_one_of_ours():
    template, container = pod(job_of(*SETTINGS["everywhere"]), "Worker")
    paths = [mount["mountPath"] for mount in container["volumeMounts"]]

    assert len(set(paths)) == len(paths)
    assert not [volume for volume in template["spec"]["volumes"] if "emptyDir" in volume]


@pytest.mark.long
def test_who_sees_a_secret_is_the_pods_user_alone():
    job = job_of("kubernetes.volumes.login={secret: s3, mount: /login}")
    for role in ("Launcher", "Worker"):
        spec = pod(job, role)[0]["spec"]
        sources = [volume.get("secret") or volume.get("configMap") for volume in spec["volumes"]]
        assert {source["defaultMode"] for source in sources if source} == {0o440}
        # Files of a secret are root's and this group's.
        assert spec["securityContext"]["fsGroup"] == 1000
        assert spec["securityContext"]["runAsUser"] == 1000


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_the_pods_user_is_the_images_and_reads_what_is_copied_whatever_the_umask(name):
    lines = (DOCKER / name).read_text().splitlines()

    assert {f"USER {pods.USER}", f"WORKDIR {pods.HOME}"} <= set(lines)
    copied = [line for line in lines if " docker/ssh/" in line]
    assert len(copied) == 3
    assert all(line.startswith("COPY --chmod=") for line in copied)


@dataclass(frozen=True)
class Worse:
    path: str
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
    ids=lambda worse: f"{worse.path}={worse.value}"[:60],
)
def test_the_standard_finds_what_is_worse(worse):
    template = copy.deepcopy(pod(job_of(), "Worker")[0])
    *places, last = worse.path.split("/")
    node = template
    for place in places:
        node = node[int(place) if place.isdigit() else place]
    node[int(last) if last.isdigit() else last] = worse.value

    assert [violation for violation in pod_security.violations(template) if worse.says in violation]
