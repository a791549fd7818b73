"""What a cluster has beside its API server, as far as one job needs it: a test double.

Pods of MPIJobs are made as mpi-operator and the Job controller do, and run as kubelets do: each pod
is a host with its own address and a container with its own file system; the probes that its
manifest asks for decide whether it is ready. All that is known comes from the API server, over
HTTP.
"""

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from kubernetes import client as k8s
from kubernetes import config as k8s_config

from edl_horovod.cluster.credentials import SERVICE_ACCOUNT
from edl_horovod.errors import ClusterError, ObjectNotFound
from tests import logs, waiting
from tests.kube import job_controller, mpi_operator
from tests.kube.apiserver.admission import User
from tests.kube.lab import connect
from tests.netns import container, volumes
from tests.netns.job import REPOSITORY
from tests.warm import enter_network

POLL_SECONDS = 0.1
LEAST_SECONDS = 2.0
"""Between SIGTERM and SIGKILL, also where a preStop hook took all of the grace."""
PORT = 6443


def run_on(host, function):
    """Call a function in a thread that is on a host; returns what it returned."""

    def enter_and_call():
        enter_network(host.name)
        return function()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(enter_and_call).result()


class Container:
    """One pod's process, on its host."""

    def __init__(self, pod, host, folder):
        self.uid, self.host, self.folder = pod["metadata"]["uid"], host, folder
        self.child = self.spec = None
        self.hook = None
        """The preStop hook, once it was started."""
        self.kill_at = None
        self.is_told_to_end = False
        self.num_starts = 0

    def start(self, spec):
        root = self.folder / f"root-{self.num_starts}"
        root.mkdir()
        self.num_starts += 1
        self.spec = spec
        path = self.folder / f"container-{self.num_starts}.json"
        path.write_text(json.dumps({**spec, "root": str(root)}))
        unshare = ("unshare", "-m", "-u", "--propagation", "private")
        program = (sys.executable, container.__file__, path)
        self.child = self.host.start(*unshare, *program, log=self.folder / "log")

    def passes(self, probe):
        """Run a readiness probe inside the container, or connect to it."""
        if "tcpSocket" in probe:
            address = (self.host.address, probe["tcpSocket"]["port"])
            try:
                socket.create_connection(address, timeout=1).close()
            except OSError:
                return False
            return True
        command = [*self._enter(), *probe["exec"]["command"]]
        try:
            done = subprocess.run(command, capture_output=True, timeout=probe["timeoutSeconds"])
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def run_hook(self, action):
        """Start what its preStop hook asks for, as the container's user and with its variables."""
        user, group = container.USER, self.spec["group"]
        setpriv = ("setpriv", "--reuid", user, "--regid", user, "--groups", group)
        variables = (f"{name}={text}" for name, text in self.spec["environment"].items())
        env = ("env", "-i", "-C", container.HOME, *variables)
        command = (*self._enter(), *setpriv, *env, *action["exec"]["command"])
        self.hook = self.host.start(*command, log=self.folder / "pre-stop-log")

    def _enter(self):
        target = f"--target={self.child.pid}"
        return ["nsenter", target, "--mount", "--uts", "--net", "--root", "--wd=/"]

    def workers(self):
        """The numbers of the processes there that are workers."""
        pids, forked = [], []
        for pid in sorted(self.host.pids()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # It has ended.
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if words[1:3] == [b"-m", b"edl_horovod.worker"]:
                    (forked if b"--fork-server" in words else pids).append(pid)
        return pids + forked[1:]  # The first of them is the one that forks.

    def assert_is_restricted(self):
        """See that the main process has no rights, and nothing to write to but volumes."""
        process = Path(f"/proc/{self.child.pid}")
        status = dict(line.split(":\t") for line in (process / "status").read_text().splitlines())
        assert {status[key] for key in ("CapBnd", "CapEff", "CapPrm", "CapInh")} == {"0" * 16}
        assert status["NoNewPrivs"] == "1"
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(container.USER)}
        mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
        assert mounts[0][5].startswith("ro")
        written = {mount[4] for mount in mounts if mount[5].startswith("rw")}
        assert written == {"/tmp", container.HOME, "/data", "/dev/shm"}

    def end_all(self):
        for pid in self.host.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


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
        self._lost = set()
        """UIDs of pods whose kubelets are gone."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nodes", daemon=True)
        self._kubeconfig = folder / "kubeconfig"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopping.set()
        self._thread.join()

    def container_of(self, pod):
        return self.containers[self.pods[pod]["metadata"]["uid"]]

    def kill(self, pod):
        """Kill the container's process, and with it the others there."""
        self.container_of(pod).end_all()

    def evict(self, pod):
        """What a kubelet does whose node is short of memory: the pod stays, failed for good."""
        manifest = self.pods[pod]
        self.kill(pod)
        self._set_status(manifest, {"phase": "Failed", "reason": "Evicted", "conditions": []})

    def lose(self, pod):
        """Switch a node off, and do what a cluster does once it has not heard of it for some time.

        Nobody hears of the end of what ran there.
        """
        manifest = self.pods[pod]
        self._lost.add(manifest["metadata"]["uid"])
        self.container_of(pod).host.cut()
        self.kill(pod)
        why = "DeletionByTaintManager"
        target = {"type": "DisruptionTarget", "status": "True", "reason": why}
        not_ready = {"type": "Ready", "status": "False"}
        self._set_status(manifest, {"conditions": [target, not_ready]})
        self.delete(pod)

    def set_out_of_service(self, pod):
        """What a cluster does with a pod whose node got the taint of that name, or was deleted."""
        self._set_status(self.pods[pod], {"phase": "Failed"})
        self.delete(pod, gracePeriodSeconds=0)

    def delete(self, pod, **options):
        self._server.do(lambda: self._server.store.delete("pods", "default", pod, options))

    def _run(self):
        enter_network(self._control.name)
        official = k8s_config.new_client_from_config(config_file=str(self._kubeconfig))
        with connect(self._kubeconfig) as cluster, official:
            self._cluster, self._batch = cluster, k8s.BatchV1Api(official)
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
            mpi_operator.operate(self._cluster, self._batch, job, self.pods)
        for launcher in self._cluster.find("Job"):
            job_controller.control(self._cluster, self._server.set_status, launcher, self.pods)
        job_controller.let_orphans_go(self._cluster, self.pods)
        for pod in self.pods.values():
            self._keep(pod)
        self._resolve_names()

    # -- kubelets

    def _keep(self, pod):
        meta = pod["metadata"]
        if meta["uid"] in self._lost:
            return
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
        # Whatever runs in a container ends with its main process.
        running.end_all()
        is_again = pod["spec"]["restartPolicy"] == "OnFailure" and code != 0
        if is_again and "deletionTimestamp" not in pod["metadata"]:
            running.start(self._spec(pod, running))
        else:  # What is being deleted is removed once its last phase is known.
            self._report(pod, "Succeeded" if code == 0 else "Failed", running)

    def _end(self, pod, running):
        """The hook first, then SIGTERM, then SIGKILL: all of it within the grace."""
        now = time.monotonic()
        if running.kill_at is None:
            running.kill_at = now + pod["metadata"]["deletionGracePeriodSeconds"]
            lifecycle = pod["spec"]["containers"][0].get("lifecycle", {})
            if "preStop" in lifecycle:
                running.run_hook(lifecycle["preStop"])
        is_over = now > running.kill_at
        if not running.is_told_to_end:
            if running.hook is None or running.hook.poll() is not None or is_over:
                running.is_told_to_end = True
                running.kill_at = max(running.kill_at, now + LEAST_SECONDS)
                running.child.send_signal(signal.SIGTERM)
        elif is_over:
            running.end_all()

    def _report(self, pod, phase, running):
        probe = pod["spec"]["containers"][0].get("readinessProbe")
        is_ready = phase == "Running" and (probe is None or running.passes(probe))
        status = {
            "phase": phase,
            "podIP": running.host.address,
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
        }
        if phase in ("Succeeded", "Failed"):
            now = datetime.now(UTC).isoformat()
            ended = {"exitCode": running.child.returncode, "finishedAt": now}
            status["containerStatuses"] = [{"state": {"terminated": ended}}]
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
        described_volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        group = pod["spec"]["securityContext"]["fsGroup"]
        hosts = running.folder / "hosts"
        hosts.touch()
        binds = [(str(hosts), "/etc/hosts", False)]
        for mounted in described["volumeMounts"]:
            volume = described_volumes[mounted["name"]]
            source = volumes.source_of(
                volume, running.folder, group, cluster=self._cluster, claims=self._claims
            )
            is_writable = volumes.is_writable(volume, mounted)
            binds.append((str(source), mounted["mountPath"], is_writable))
        for needed in {str(REPOSITORY), sys.prefix, sys.base_prefix}:
            if Path(needed).parts[1] in container.OWN:
                binds.append((needed, needed, False))
        environment = {
            # What the image would have.
            "PATH": f"/opt/edl/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "HOME": container.HOME,
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "KUBERNETES_SERVICE_HOST": self._control.address,
            "KUBERNETES_SERVICE_PORT": str(PORT),
        }
        for variable in described["env"]:
            environment[variable["name"]] = self._value(variable, pod, running, environment)
        if pod["spec"].get("automountServiceAccountToken"):
            binds.append((str(self._account(pod, running.folder)), f"/run/{ACCOUNT}", False))
        return {
            "binds": binds,
            "environment": environment,
            "command": described["command"],
            "hostname": hostname_of(pod),
            "group": group,
            "repository": str(REPOSITORY),
            "is_read_only": described["securityContext"]["readOnlyRootFilesystem"],
        }

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
        """The cluster's DNS: names of Services are those of their pods, whose ports they share."""
        lines = ["127.0.0.1 localhost"]
        for service in self._cluster.find("Service"):
            selector = service["spec"]["selector"].items()
            name = service["metadata"]["name"]
            for pod in self.pods.values():
                address = pod["status"].get("podIP")
                if address and selector <= pod["metadata"]["labels"].items():
                    lines.append(f"{address} {name}")
                    if pod["spec"].get("subdomain") == name:
                        full = f"{hostname_of(pod)}.{name}.default.svc"
                        lines.append(f"{address} {full}")
        for pod in self.pods.values():
            if (running := self.containers.get(pod["metadata"]["uid"])) is not None:
                line = f"{running.host.address} {hostname_of(pod)}"
                text = "\n".join([*lines, line, ""])
                hosts = running.folder / "hosts"
                if hosts.read_text() != text:
                    hosts.write_text(text)


def hostname_of(pod):
    return pod["spec"].get("hostname", pod["metadata"]["name"])


ACCOUNT = str(SERVICE_ACCOUNT).removeprefix("/var/run/")


def wait_until(is_there, name, nodes, seconds=120):

    def is_there_now():
        if isinstance(nodes.failure, Exception) and not isinstance(
            nodes.failure, (ClusterError, ObjectNotFound)
        ):
            raise nodes.failure
        return is_there()

    waiting.wait_until(is_there_now, name, seconds=seconds, describe=lambda: describe(nodes))


def describe(nodes):
    """The pods and their logs."""
    pods = [f"{name}: {pod['status']}" for name, pod in nodes.pods.items()]
    files = [running.folder / "log" for running in nodes.containers.values()]
    return logs.page(files, f"last failure: {nodes.failure!r}", *pods)
