import os
import subprocess
import sys
from pathlib import Path

import pytest

from edl_horovod.cluster.pod import launcher
from edl_horovod.config import resolved
from edl_horovod.config.compose import compose
from edl_horovod.errors import ConfigError

ROOT = Path(__file__).parents[4]
CONFIG_FILE = Path("/edl/config.yaml")
ENVIRONMENT = {
    "EDL_POD_IP": "10.1.2.3",
    "EDL_NAMESPACE": "ml",
    "EDL_JOB": "mnist",
    "EDL_SECRET_FILE": "/edl-secret/secret",
}


def plan(style, *, min_np=1):
    overrides = [
        "data=/data/x",
        "model_def=m",
        "job_dir=/data/out.job",
        "output=/data/out",
        "launch=kubernetes",
        "launch.np=4",
        "elastic.max_np=6",
        "kubernetes.worker.cpu=3",
        f"kubernetes.style={style}",
        f"elastic.min_np={min_np}",
        "kubernetes.env={COLOUR: blue}",
    ]
    config = compose("train", overrides)
    return launcher.plan_in_pod(config, CONFIG_FILE, ENVIRONMENT)


def has(command, *options):
    """Whether a command has each of some options with its values."""
    text = " ".join(command.argv)
    return all(option in text for option in options)


def test_an_elastic_job_has_a_coordinator_at_the_address_that_its_service_leads_to():
    planned = plan("elastic")

    address = "--address 10.1.2.3 --port 7707"
    assert has(planned.coordinator, address, "--secret-file /edl-secret/secret")
    assert planned.secret_file == Path("/edl-secret/secret")
    assert planned.worker is planned.ring is None
    assert has(planned.discovery, "--namespace ml --job mnist --slots 1 --names uid")


def test_under_horovodrun_discovery_names_what_ssh_can_reach():
    planned = plan("horovodrun")

    assert planned.coordinator is planned.worker is None
    assert has(planned.discovery, "--names address")
    assert has(
        planned.ring,
        "horovodrun -np 4 --min-np 1 --max-np 6 --elastic-timeout 600",
        "--network-interfaces eth0",
        "host-discovery.sh /data/out.job/hosts",
    )
    assert planned.ring.environment["OMP_NUM_THREADS"] == "3"


def test_horovodrun_forgives_a_host_only_where_the_others_are_always_enough():
    assert has(plan("horovodrun").ring, "--blacklist-cooldown-range 5 600")
    assert not has(plan("horovodrun", min_np=2).ring, "--blacklist-cooldown-range")


@pytest.mark.parametrize("style", ["horovodrun", "mpirun"])
def test_over_ssh_a_job_is_known_by_the_key_that_the_operator_made_for_it(style):
    assert plan(style).secret_file == Path("/home/edl/.ssh/id_rsa")


def test_mpirun_hands_its_variables_to_the_other_pods():
    planned = plan("mpirun")

    assert planned.coordinator is planned.discovery is None
    assert planned.ring.argv[:5] == ("mpirun", "-np", "4", "--hostfile", "/etc/mpi/hostfile")
    assert has(planned.ring, *(f"-x {name}" for name in [*planned.ring.environment, "COLOUR"]))


def test_a_manifest_without_our_variables_is_told_so(tmp_path):
    settings = ["data=/data/x", "model_def=m", "output=/data/out", "launch=kubernetes"]
    file = tmp_path / "config.yaml"
    file.write_text(resolved.to_yaml(compose("train", settings)))
    run = subprocess.run(
        [sys.executable, "-m", "edl_horovod.cluster.pod.launcher", "--config", file],
        env={**os.environ, "EDL_NAMESPACE": "ml", "EDL_JOB": "mnist", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )

    assert run.returncode == ConfigError.exit_code
    assert "The pod's manifest must set 'EDL_POD_IP'." in run.stderr
