"""A namespace with one job, whose operator and kubelets are the test."""

import contextlib
import threading

from kubernetes import client as k8s
from kubernetes import config as k8s_config

from edl_horovod.cluster import manifest
from edl_horovod.cluster.client import Cluster
from edl_horovod.cluster.credentials import Place
from tests.jobs import config_of
from tests.kube import job_controller, mpi_operator
from tests.kube.apiserver.admission import User
from tests.kube.apiserver.server import ADMIN_TOKEN

TRAIN = [
    "launch=kubernetes",
    "image=registry.example/edl:1",
    "model_def=mnist",
    "launch.np=2",
    "data=/data/x.recordio",
    "output=/data/model",
    "kubernetes.volumes.data.claim=shared",
    "kubernetes.volumes.data.mount=/data",
    "elastic.max_np=4",
]
LAUNCHER = "mnist-launcher-abcde"
WORKERS = ("mnist-worker-0", "mnist-worker-1")


def connect(kubeconfig, namespace="default"):
    """Our facade, as whoever a kubeconfig of these tests names."""
    return Cluster(Place(namespace=namespace, kubeconfig=str(kubeconfig), context="test"))


@contextlib.contextmanager
def background(action):
    """Run an action in a thread of its own, which ends with the block."""
    thread = threading.Thread(target=action)
    thread.start()
    yield
    thread.join()


class Lab:
    """A namespace with one job; what the operator and the kubelets would do is done by hand."""

    def __init__(self, server, kubeconfig) -> None:
        self.server, self.kubeconfig = server, kubeconfig
        self.num_events = 0
        self.lost_pods: set[str] = set()
        """Their kubelets are gone."""
        self.cluster = connect(kubeconfig)

    def submit(self, *overrides: str, name: str = "mnist") -> None:
        config = config_of("train", [*TRAIN, *overrides])
        job = manifest.job_manifests(config, name=name, namespace="default", secret=b"s" * 32)
        for part in job.all:
            self.cluster.create(part)

    def add_pods(self, job: str = "mnist", *, workers: int = 2) -> None:
        mpijob = self.cluster.get("MPIJob", job)
        self.cluster.create(mpi_operator.pod_of(mpijob, "Launcher", f"{job}-launcher-abcde"))
        for index in range(workers):
            self.cluster.create(mpi_operator.pod_of(mpijob, "Worker", f"{job}-worker-{index}"))

    def control(self, *, release: str = "0.8.2") -> None:
        """What mpi-operator with its own rights, the Job controller and the kubelets do."""
        user = User("system:serviceaccount:mpi-operator:mpi-operator")
        self.server.tokens["operator-token"] = user
        path = self.kubeconfig.with_name("operator-config")
        path.write_text(self.kubeconfig.read_text().replace(ADMIN_TOKEN, "operator-token"))
        kubernetes = tuple(map(int, self.server.kubernetes_version.split(".")))
        official = k8s_config.new_client_from_config(config_file=str(path))
        with connect(path) as cluster, official:
            for _ in range(4):
                for job in self.cluster.find("MPIJob"):
                    mpi_operator.operate(
                        cluster, k8s.BatchV1Api(official), job, self.pods(), release=release
                    )
                set_status = self.server.set_status
                for launcher in self.cluster.find("Job"):
                    job_controller.control(
                        self.cluster, set_status, launcher, self.pods(), kubernetes=kubernetes
                    )
                self._run_pods()

    def pods(self) -> dict[str, dict]:
        return {pod["metadata"]["name"]: pod for pod in self.cluster.find("Pod")}

    def lose_node_of(self, name: str) -> None:
        """What a cluster does once it has not heard of a node for some time."""
        self.lost_pods.add(name)
        why = "DeletionByTaintManager"
        target = {"type": "DisruptionTarget", "status": "True", "reason": why}
        self.set_pod(name, "Running", conditions=[target])
        self.cluster.delete("Pod", name)

    def set_out_of_service(self, name: str) -> None:
        """What a cluster does with a pod whose node got the taint of that name, or was deleted."""
        self.set_pod(name, "Failed")
        self.cluster.delete("Pod", name, grace_seconds=0)

    def _run_pods(self) -> None:
        for name, pod in self.pods().items():
            if name in self.lost_pods:
                continue
            if "deletionTimestamp" in pod["metadata"]:
                self.set_pod(name, "Failed")
                self.cluster.delete("Pod", name, grace_seconds=0)
            elif pod["status"]["phase"] == "Pending":
                self.set_pod(name, "Running", is_ready=True)

    def set_pod(self, name: str, phase: str, *, is_ready: bool = False, **status) -> None:
        ready = {"type": "Ready", "status": str(is_ready)}
        conditions = [ready, *status.pop("conditions", [])]
        self.server.set_status(
            "pods", "default", name, {"phase": phase, "conditions": conditions, **status}
        )

    def set_condition(self, kind: str, message: str = "", *, job: str = "mnist", **status) -> None:
        condition = {"type": kind, "status": "True", "message": message}
        self.server.set_status(
            "mpijobs.kubeflow.org", "default", job, {"conditions": [condition], **status}
        )

    def say(
        self,
        about: str,
        reason: str,
        message: str,
        *,
        kind: str = "Warning",
        time: str = "2101-01-01T00:00:00Z",
    ) -> None:
        """An event, as mpi-operator and the controllers of Kubernetes send them."""
        object_kind, name = about.split("/")
        self.num_events += 1
        self.cluster.create(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": f"{name}.{self.num_events:016x}"},
                "involvedObject": {"kind": object_kind, "name": name, "namespace": "default"},
                "type": kind,
                "reason": reason,
                "message": message,
                "lastTimestamp": time,
            }
        )

    def write_log(self, pod: str, text: str) -> None:
        """What the pod has written so far."""
        path = self.server.log_files["default", pod] = self.kubeconfig.with_name(f"{pod}.log")
        path.write_text(text)

    def run(self) -> None:
        """Two workers train."""
        self.submit()
        self.add_pods()
        for name in (LAUNCHER, *WORKERS):
            self.set_pod(name, "Running", is_ready=True)
