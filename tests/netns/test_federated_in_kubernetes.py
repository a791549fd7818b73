"""k8s/federated as it is, in a cluster: the coordinator and three parties, each a Job of its own.

What is real and what a double is as in test_kubernetes.py; the Jobs are those of the cluster.
"""

import base64
import subprocess

import pytest
import yaml

from edl_horovod.job import events
from tests.component.cluster.test_golden import K8S, rendered
from tests.frameworks import QUICKEST
from tests.later import LATER
from tests.netns import kubelet
from tests.netns.cluster_job import Job
from tests.netns.job import REPOSITORY

if LATER:
    from tests.integration.test_federated import write_data

pytestmark = [pytest.mark.root, pytest.mark.timeout(500)]

PARTIES = ("north", "south", "west")
MODELS = {"keras": "curve", "torch": "torch_curve"}
ROUNDS = 160
"""More than pass until the test says that they may hurry."""


class Federation:
    """The Jobs, and the volumes that they claim."""

    def __init__(self, lab, folder):
        self.volumes = {name: folder / name for name in ("federation", *PARTIES)}
        for volume in self.volumes.values():
            volume.mkdir()
        claims = {f"{party}-data": self.volumes[party] for party in PARTIES}
        self.cluster = Job(lab, folder, federation=self.volumes["federation"], **claims)
        self.nodes = self.cluster.nodes

    def apply(self, manifests):
        for manifest in manifests:
            self.cluster.ask(lambda cluster, manifest=manifest: cluster.create(manifest))

    def add(self, party):
        """What the page tells an operator: the token as a Secret, then the files of a party."""
        token = self.volumes["federation"] / "job" / "tokens" / f"{party}.token"
        self.wait_for(token.exists, "a token")
        secret = {"token": base64.b64encode(token.read_bytes()).decode()}
        meta = {"name": f"{party}-token"}
        kind = {"apiVersion": "v1", "kind": "Secret"}
        self.apply([{**kind, "metadata": meta, "data": secret}])
        manifests = yaml.safe_load(
            yaml.safe_dump(rendered(K8S / "federated" / "party")).replace("north", party)
        )
        (config,) = [manifest["data"] for manifest in manifests if manifest["kind"] == "ConfigMap"]
        config["party.yaml"] = self._settings(party, yaml.safe_load(config["party.yaml"]))
        self.apply(manifests)

    def _settings(self, party, settings):
        """Those of the file, with a model and data of the tests, which can be told to hurry."""
        volume = self.volumes[party]
        subprocess.run(["cp", "-r", REPOSITORY / "tests" / "zoo", volume / "zoo"], check=True)
        write_data(volume, party, 48)
        (volume / f"folder-of-{party}").rename(volume / "records")
        settings |= {"model_zoo": "/data/zoo", "model_def": MODELS[QUICKEST]}
        settings["params"] = {"slow_until": "/data/hurry"}
        settings["launch"] = {"threads_per_rank": 1}
        settings["train"]["batch_size"] = 12
        settings["federated"]["rounds"] = ROUNDS
        return yaml.safe_dump(settings)

    def events(self, kind):
        recorded_events = events.read(self.volumes["federation"] / "job" / "events.jsonl")
        return [recorded.event for recorded in recorded_events if recorded.event.kind == kind]

    def wait_for(self, is_there, name):
        kubelet.wait_until(is_there, name, self.nodes, seconds=200)

    def wait_for_ring(self, size, after=-1):
        """Wait for a ring of that size of a later generation; returns its generation."""

        def rings():
            return [
                ring.generation
                for ring in self.events("generation")
                if ring.is_formed and ring.size == size and ring.generation > after
            ]

        self.wait_for(rings, f"a ring of {size}")
        return rings()[-1]


@pytest.fixture
def federation(lab, tmp_path):
    """A cluster with the coordinator of a federated training."""
    federation = Federation(lab, tmp_path)
    with federation.nodes:
        federation.apply(rendered(K8S / "federated" / "coordinator"))
        yield federation
    federation.cluster.server.stop()


def test_parties_train_and_one_whose_pod_is_replaced_goes_on(federation):
    for party in PARTIES:
        federation.add(party)
    generation = federation.wait_for_ring(3)
    federation.nodes.container_of("west-party-0").assert_is_restricted()
    left = federation.nodes.container_of("south-party-0").host.address

    federation.cluster.ask(lambda cluster: cluster.delete("Pod", "south-party-0"))
    federation.wait_for_ring(2, generation)
    federation.wait_for_ring(3, generation)
    assert federation.nodes.container_of("south-party-1").host.address != left

    for party in PARTIES:
        (federation.volumes[party] / "hurry").touch()
    last = ("federation-0", "north-party-0", "south-party-1", "west-party-0")

    def phases():
        return [federation.nodes.pods[pod]["status"].get("phase") for pod in last]

    federation.wait_for(lambda: set(phases()) == {"Succeeded"}, "the end of all")
    for party in PARTIES:
        assert (federation.volumes[party] / "models" / "mnist" / "trained_model.pb").is_file()
