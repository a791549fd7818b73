"""What a cluster has beside its API server, as far as one job needs it: a test double.

It makes pods of MPIJobs as mpi-operator does, and runs them as kubelets do: each pod is a host with
its own address and a container with its own file system; the probes that its manifest asks for
decide whether it is ready. All that it knows comes from the API server, over HTTP.
"""

import base64
import ctypes
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from edl_horovod.cluster.client import Cluster
from edl_horovod.cluster.credentials import SERVICE_ACCOUNT, Place
from edl_horovod.errors import ClusterError, ObjectNotFound
from tests.kube.apiserver.admission import User
from tests.netns import container

POLL_SECONDS = 0.1
PORT = 6443
CLONE_NEWNET = 0x40000000


def enter(host):
    """Move this thread, and what it starts, into the network of a host."""
    with open(f"/run/netns/{host.name}") as stream:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.setns(stream.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())


def run_on(host, function):
    """Call a function in a thread that is on a host; returns what it returned."""
    results = []

    def run():
        enter(host)
        results.append(function())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


class Container:
    """One pod's process, on its host."""

    def __init__(self, pod, host, folder):
        self.uid, self.host, self.folder = pod["metadata"]["uid"], host, folder
        self.child = None
        self.kill_at = None
        self.num_starts = 0

    def start(self, spec):
        root = self.folder / f"root-{self.num_starts}"
        root.mkdir()
        self.num_starts += 1
        path = self.folder / f"container-{self.num_starts}.json"
        path.write_text(json.dumps({**spec, "root": str(root)}))
        self.child = self.host.start(
            "unshare", "-m", "--propagation", "private", sys.executable, container.__file__, path,
            log=self.folder / "log",
        )  # fmt: skip

    def passes(self, probe):
        """Run a readiness probe inside the container."""
        command = ["nsenter", f"--target={self.child.pid}", "--mount", "--net", "--root"]
        command += ["--wd=/", *probe["exec"]["command"]]
        try:
            done = subprocess.run(command, capture_output=True, timeout=probe["timeoutSeconds"])
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


class Nodes:
    """The operator and all kubelets in one thread."""

    def __init__(self, server, lab, control, folder, *, claims):
        """Prepare; a `with` runs it.

        Args:
            server: The API server, on `control`.
            claims: PersistentVolumeClaims to folders of this machine.
        """
        self._server, self._lab, self._control, self._folder = server, lab, control, folder
        self._claims = claims
        self.containers = {}
        """By the pod's UID; those of deleted pods too."""
        self.pods = {}
        """By name, as the API server had them last."""
        self.failure = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nodes", daemon=True)
        self._kubeconfig = folder / "kubeconfig"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopping.set()
        self._thread.join()

    def host_of(self, pod):
        return self.containers[self.pods[pod]["metadata"]["uid"]].host

    def kill(self, pod):
        """Kill the container's process."""
        os.killpg(self.containers[self.pods[pod]["metadata"]["uid"]].child.pid, signal.SIGKILL)

    def evict(self, pod):
        """What a kubelet does whose node is short of memory: the pod stays, failed for good."""
        found = self.pods[pod]
        self.kill(pod)
        self._set_status(found, {"phase": "Failed", "reason": "Evicted", "conditions": []})

    def _run(self):
        enter(self._control)
        place = Place(namespace="default", kubeconfig=str(self._kubeconfig), context="test")
        with Cluster(place) as cluster:
            self._cluster = cluster
            while not self._stopping.wait(POLL_SECONDS):
                try:
                    self._turn()
                except ClusterError as error:  # Somebody else was quicker; next time then.
                    self.failure = error
                except Exception as error:
                    self.failure = error
                    raise

    def _turn(self):
        self.pods = {pod["metadata"]["name"]: pod for pod in self._cluster.find("Pod")}
        for job in self._cluster.find("MPIJob"):
            self._operate(job)
        for pod in self.pods.values():
            self._keep(pod)
        self._resolve_names()

    # -- mpi-operator

    def _operate(self, job):
        spec, name = job["spec"], job["metadata"]["name"]
        launchers = [pod for key, pod in self.pods.items() if key.startswith(f"{name}-launcher-")]
        phases = [pod["status"].get("phase") for pod in launchers]
        is_over = (
            "Succeeded" in phases or phases.count("Failed") > spec["runPolicy"]["backoffLimit"]
        )
        if spec["runPolicy"]["suspend"] or is_over:
            for pod_name, pod in self.pods.items():
                is_worker = pod_name.startswith(f"{name}-worker-")
                if is_worker and "deletionTimestamp" not in pod["metadata"]:
                    self._cluster.delete("Pod", pod_name)
            return
        replicas = spec["mpiReplicaSpecs"]
        if phases.count("Failed") == len(phases):
            # The launcher's Job makes another pod.
            self._create(job, "Launcher", f"{name}-launcher-{len(phases)}")
        wanted = [f"{name}-worker-{index}" for index in range(replicas["Worker"]["replicas"])]
        for pod_name in wanted:
            if pod_name not in self.pods:
                self._create(job, "Worker", pod_name)
        for pod_name, pod in self.pods.items():
            is_worker = pod_name.startswith(f"{name}-worker-")
            if is_worker and pod_name not in wanted and "deletionTimestamp" not in pod["metadata"]:
                self._cluster.delete("Pod", pod_name)

    def _create(self, job, role, pod_name):
        replica = job["spec"]["mpiReplicaSpecs"][role]
        meta = job["metadata"]
        labels = {
            **replica["template"]["metadata"]["labels"],
            "training.kubeflow.org/operator-name": "mpi-operator",
            "training.kubeflow.org/job-name": meta["name"],
            "training.kubeflow.org/job-role": role.lower(),
        }
        owner = {
            "apiVersion": job["apiVersion"], "kind": "MPIJob", "name": meta["name"],
            "uid": meta["uid"], "controller": True,
        }  # fmt: skip
        spec = {
            **replica["template"]["spec"], "restartPolicy": replica["restartPolicy"],
            "nodeName": f"node-of-{pod_name}", "hostname": pod_name,
            "subdomain": f"{meta['name']}-worker",
        }  # fmt: skip
        manifest = {
            "apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": {"name": pod_name, "labels": labels, "ownerReferences": [owner]},
        }  # fmt: skip
        self._cluster.create(manifest)

    # -- kubelets

    def _keep(self, pod):
        meta = pod["metadata"]
        if pod["status"].get("phase") in ("Succeeded", "Failed"):
            if "deletionTimestamp" in meta:
                self._cluster.delete("Pod", meta["name"], grace_seconds=0)
            return
        running = self.containers.get(meta["uid"])
        if running is None:
            self._begin(pod)
        elif running.child.poll() is not None:
            self._after_the_end(pod, running)
        elif "deletionTimestamp" in meta:
            self._end(pod, running)
        else:
            self._report(pod, "Running", running)

    def _begin(self, pod):
        meta = pod["metadata"]
        folder = self._folder / f"{meta['name']}-{meta['uid']}"
        folder.mkdir()
        running = Container(pod, self._lab.host(), folder)
        running.start(self._spec(pod, running))
        self.containers[meta["uid"]] = running
        self._report(pod, "Running", running)

    def _after_the_end(self, pod, running):
        code = running.child.returncode
        is_again = pod["spec"]["restartPolicy"] == "OnFailure" and code != 0
        if "deletionTimestamp" in pod["metadata"]:
            self._cluster.delete("Pod", pod["metadata"]["name"], grace_seconds=0)
        elif is_again:
            running.start(self._spec(pod, running))
        else:
            self._report(pod, "Succeeded" if code == 0 else "Failed", running)

    def _end(self, pod, running):
        now = time.monotonic()
        if running.kill_at is None:
            running.kill_at = now + pod["metadata"]["deletionGracePeriodSeconds"]
            running.child.send_signal(signal.SIGTERM)
        elif now > running.kill_at:
            os.killpg(running.child.pid, signal.SIGKILL)

    def _report(self, pod, phase, running):
        probe = pod["spec"]["containers"][0].get("readinessProbe")
        is_ready = phase == "Running" and (probe is None or running.passes(probe))
        status = {
            "phase": phase,
            "podIP": running.host.address,
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
        }
        if {key: pod["status"].get(key) for key in status} != status:
            self._set_status(pod, status)

    def _set_status(self, pod, status):
        meta = pod["metadata"]

        def change():
            now = self._server.store.get("pods", meta["namespace"], meta["name"])
            if now["metadata"]["uid"] == meta["uid"]:
                changed = {**now, "status": {**now["status"], **status}}
                self._server.store.update("pods", changed, is_dry_run=False)

        self._server.do(change)

    # -- what a container is given

    def _spec(self, pod, running):
        (described,) = pod["spec"]["containers"]
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        hosts = running.folder / "hosts"
        hosts.touch()
        binds = [(str(hosts), "/etc/hosts")]
        for mounted in described["volumeMounts"]:
            source = self._volume(volumes[mounted["name"]], running.folder)
            binds.append((str(source), mounted["mountPath"]))
        repository = Path(__file__).parents[2]
        if repository.parts[1] in container.OWN:
            binds.append((str(repository), str(repository)))
        environment = {
            # What the image would have.
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(repository),
            "HOME": "/tmp",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "KUBERNETES_SERVICE_HOST": self._control.address,
            "KUBERNETES_SERVICE_PORT": str(PORT),
        }
        for variable in described["env"]:
            environment[variable["name"]] = self._value(variable, pod, running, environment)
        if pod["spec"].get("automountServiceAccountToken"):
            binds.append((str(self._account(pod, running.folder)), f"/run/{ACCOUNT}"))
        return {"binds": binds, "environment": environment, "command": described["command"]}

    def _volume(self, volume, folder):
        if "persistentVolumeClaim" in volume:
            return self._claims[volume["persistentVolumeClaim"]["claimName"]]
        target = folder / f"volume-{volume['name']}"
        target.mkdir(exist_ok=True)
        if "configMap" in volume:
            data = self._cluster.get("ConfigMap", volume["configMap"]["name"])["data"]
            files = {name: text.encode() for name, text in data.items()}
        else:
            data = self._cluster.get("Secret", volume["secret"]["secretName"])["data"]
            files = {name: base64.b64decode(text) for name, text in data.items()}
        for name, content in files.items():
            (target / name).write_bytes(content)
        return target

    @staticmethod
    def _value(variable, pod, running, environment):
        if "valueFrom" in variable:
            path = variable["valueFrom"]["fieldRef"]["fieldPath"]
            if path == "status.podIP":
                return running.host.address
            return pod["metadata"][path.removeprefix("metadata.")]
        return re.sub(r"\$\((\w+)\)", lambda name: environment[name[1]], variable["value"])

    def _account(self, pod, folder):
        target = folder / "account"
        target.mkdir(exist_ok=True)
        token = secrets.token_hex(16)
        name = pod["spec"]["serviceAccountName"]
        self._server.tokens[token] = User(f"system:serviceaccount:default:{name}")
        (target / "token").write_text(token)
        (target / "namespace").write_text("default")
        (target / "ca.crt").write_bytes((self._folder / "ca.crt").read_bytes())
        return target

    def _resolve_names(self):
        """The cluster's DNS: the names of Services without addresses are those of their pods."""
        lines = ["127.0.0.1 localhost"]
        for service in self._cluster.find("Service"):
            selector = service["spec"]["selector"].items()
            for pod in self.pods.values():
                address = pod["status"].get("podIP")
                if address and selector <= pod["metadata"]["labels"].items():
                    lines.append(f"{address} {service['metadata']['name']}")
        text = "\n".join(lines) + "\n"
        for running in self.containers.values():
            hosts = running.folder / "hosts"
            if hosts.read_text() != text:
                hosts.write_text(text)


ACCOUNT = str(SERVICE_ACCOUNT).removeprefix("/var/run/")


def wait_until(is_there, what, nodes, seconds=120):
    deadline = time.monotonic() + seconds
    while not is_there():
        if isinstance(nodes.failure, Exception) and not isinstance(
            nodes.failure, (ClusterError, ObjectNotFound)
        ):
            raise nodes.failure
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{describe(nodes)}"
        time.sleep(0.1)


def describe(nodes):
    """The pods and their logs."""
    parts = [f"last failure: {nodes.failure!r}"]
    parts += [f"{name}: {pod['status']}" for name, pod in nodes.pods.items()]
    for running in nodes.containers.values():
        text = (running.folder / "log").read_text(errors="replace")
        parts.append(f"--- {running.folder.name}\n{text[-4000:]}")
    return "\n".join(parts)
