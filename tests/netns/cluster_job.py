"""One job in a cluster of this machine, from its submission by `edl` to its trained model."""

import subprocess
import sys

from tests import counting_job
from tests.frameworks import QUICKEST
from tests.kube import certificates
from tests.kube.apiserver.server import ApiServer
from tests.kube.conftest import ADMIN, add_tokens, write_kubeconfig
from tests.kube.lab import connect
from tests.netns import kubelet
from tests.netns.job import AT_ONE_PACE, REPOSITORY, Watched

EPOCHS = 200
"""Enough for a job that waits for a newcomer: slow steps for three minutes, however quick it is."""
START_SECONDS = 240
"""For ranks that start in pods, on a machine that is busy with other jobs."""
CLAIM = "shared"
MODELS = {"keras": "counting", "torch": "torch_counting"}
CONFIG = {
    "model_def": MODELS[QUICKEST],
    "launch": "kubernetes",
    "launch.np": 2,
    "elastic.max_np": 3,
    "image": "registry.example/edl:1",
    "kubernetes.name": "count",
    "model_zoo": "/data/zoo",
    "output": "/data/out",
    "kubernetes.volumes": f"{{data: {{claim: {CLAIM}, mount: /data}}}}",
}


class Job(Watched):
    """A job and the cluster that it runs in."""

    def __init__(self, lab, folder, **claims):
        """Take what further PersistentVolumeClaims hold, as folders of this machine."""
        self.volume = folder / "volume"
        self.volume.mkdir()
        super().__init__(self.volume, self.volume / "out.job")
        self.control = lab.host()
        tls = folder / "tls"
        tls.mkdir()
        certificates.make(tls, self.control.address)
        context = certificates.server_context(tls)
        self.server = ApiServer(host=self.control.address, tls=context)
        add_tokens(self.server)
        kubelet.run_on(self.control, lambda: self.server.start(kubelet.PORT))
        self.kubeconfig = write_kubeconfig(
            folder / "kubeconfig", self.server.url, {"token": ADMIN}, ca_file=tls / "ca.crt"
        )
        (folder / "ca.crt").write_bytes((tls / "ca.crt").read_bytes())
        self.nodes = kubelet.Nodes(
            self.server, lab, self.control, folder, claims={CLAIM: self.volume, **claims}
        )

    def submit(self, *, epochs=EPOCHS, **settings):
        """`edl train launch=kubernetes`, on a host that only reaches the API server."""
        self.epochs = epochs
        zoo = REPOSITORY / "tests" / "zoo"
        subprocess.run(["cp", "-r", str(zoo), str(self.volume / "zoo")], check=True)
        settings = {**CONFIG, **AT_ONE_PACE, **settings}
        words = counting_job.overrides(self.volume, epochs=epochs, **settings)
        # In the pods the volume is somewhere else.
        words = [word.replace(str(self.volume), "/data") for word in words]
        log = self.volume.parent / "submit.log"
        command = (sys.executable, "-m", "edl_horovod", "train", *words)
        variables = {"KUBECONFIG": str(self.kubeconfig), "PYTHONPATH": str(REPOSITORY)}
        child = self.control.start(*command, log=log, **variables)
        assert child.wait(60) == 0, log.read_text()
        return log.read_text()

    def ask(self, question):
        """What the API server answers to a call of our client."""

        def answer():
            with connect(self.kubeconfig) as cluster:
                return question(cluster)

        return kubelet.run_on(self.control, answer)

    def scale(self, num_pods):
        changes = {"spec": {"mpiReplicaSpecs": {"Worker": {"replicas": num_pods}}}}
        self.ask(lambda cluster: cluster.patch("MPIJob", "count", changes))

    def ring(self, size, *, since=None):
        """Wait for a step of a ring of that size from now on; returns when it ended."""
        return self.train_on(size=size, since=since, seconds=START_SECONDS)

    def describe(self):
        return kubelet.describe(self.nodes) + "\n" + super().describe()

    def finish(self, launcher="count-launcher-0"):
        self.hurry()
        kubelet.wait_until(
            lambda: self.nodes.pods[launcher]["status"].get("phase") in ("Succeeded", "Failed"),
            "the end of the launcher",
            self.nodes,
        )
        assert self.nodes.pods[launcher]["status"]["phase"] == "Succeeded", self.describe()
        counting_job.assert_each_record_once_an_epoch(self.volume / "out", epochs=self.epochs)
