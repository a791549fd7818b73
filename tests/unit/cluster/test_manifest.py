import functools
import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from edl_horovod import image
from edl_horovod.cluster import manifest
from edl_horovod.config import resolved
from edl_horovod.config.compose import compose
from edl_horovod.config.conf_files import ConfigFiles
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError
from tests.kube import mpijobs

SECRET = bytes(range(32))
DOCKER = Path(__file__).parents[3] / "docker" / "ssh"
VOLUME = ["kubernetes.volumes.data.claim=shared", "kubernetes.volumes.data.mount=/data"]
TRAIN = [
    "launch=kubernetes",
    "image=registry.example/edl:1",
    "model_def=mnist",
    "launch.np=4",
    "data=/data/train/*.recordio",
    "output=/data/models/mnist",
    *VOLUME,
]


@functools.cache
def composed(task, overrides):
    return image.ensure(compose(task, overrides))


def job_of(*overrides, task="train", base=TRAIN):
    config = composed(task, (*base, *overrides))
    return manifest.job_manifests(config, name="mnist", namespace="ml", secret=SECRET)


def part(job, kind):
    return next((document for document in job.all if document["kind"] == kind), None)


def settings_in(job):
    """What the pods of a job read as their configuration."""
    return yaml.safe_load(part(job, "ConfigMap")["data"]["config.yaml"])


def pod(job, role):
    template = job.mpijob["spec"]["mpiReplicaSpecs"][role]["template"]
    return template, template["spec"]["containers"][0]


def env(container):
    return {variable["name"]: variable.get("value") for variable in container["env"]}


STYLES = ("elastic", "horovodrun", "mpirun")
EVERYTHING = [
    "kubernetes.image_pull_secrets=[registry]",
    "kubernetes.slots_per_worker=2",
    "kubernetes.worker.gpus=2",
    "kubernetes.worker.node_selector={disktype: ssd}",
    "kubernetes.launcher.node_selector={pool: stable}",
    "kubernetes.worker.tolerations=[{key: gpu, operator: Exists, effect: NoSchedule}]",
    "kubernetes.priority_class=low",
    "kubernetes.launcher_priority_class=high",
    "kubernetes.env={LEVEL: 1, FLAG: true}",
    "kubernetes.labels={team: x}",
    "kubernetes.annotations={sidecar.istio.io/inject: false}",
    "kubernetes.suspend=true",
    "kubernetes.ttl_seconds_after_finished=60",
    "kubernetes.backoff_limit=1",
    "kubernetes.volumes.login={secret: s3, mount: /login, read_only: true}",
    "kubernetes.volumes.scratch={host_path: /mnt/scratch, mount: /scratch}",
]


@pytest.mark.long(after=1)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("settings", [[], EVERYTHING], ids=["plain", "everything"])
def test_the_operators_own_schema_takes_every_mpijob(style, settings):
    job = job_of(f"kubernetes.style={style}", *settings)

    admitted = mpijobs.schema().admit(job.mpijob, is_strict=True)

    assert admitted["spec"]["mpiReplicaSpecs"] == job.mpijob["spec"]["mpiReplicaSpecs"]


def test_what_the_ranks_read_is_the_jobs_configuration():
    config = resolved.build(JobConfig, settings_in(job_of("train.epochs=3")))

    assert (config.train.epochs, config.job_dir) == (3, "/data/models/mnist.job")
    assert config.model_zoo == "/model_zoo"


def test_a_zoo_on_a_volume_is_read_there():
    assert settings_in(job_of("model_zoo=/data/zoo"))["model_zoo"] == "/data/zoo"


def test_an_elastic_worker_is_its_pods_main_process():
    job = job_of()
    template, worker = pod(job, "Worker")

    command = "python -m edl_horovod.worker --config /edl/config.yaml"
    assert worker["command"] == command.split()
    variables = env(worker)
    assert variables["EDL_HOST"] == "$(EDL_POD_NAME).$(EDL_POD_UID)"
    assert variables["EDL_COORDINATOR"] == "mnist-coordinator:7707"
    names = list(variables)
    assert names.index("EDL_POD_UID") < names.index("EDL_HOST"), "a variable must come before"
    assert not template["spec"]["automountServiceAccountToken"]
    assert job.mpijob["spec"]["mpiReplicaSpecs"]["Worker"]["restartPolicy"] == "OnFailure"


def test_the_probe_sees_the_workers_ready_file(tmp_path):
    _, worker = pod(job_of(), "Worker")
    file = Path(env(worker)["EDL_READY_FILE"])
    command = worker["readinessProbe"]["exec"]["command"]

    here = [word.replace(str(file.parent), str(tmp_path / "ready")) for word in command]

    assert os.spawnvp(os.P_WAIT, here[0], here) != 0, "before there is a folder"
    (tmp_path / "ready").mkdir()
    assert os.spawnvp(os.P_WAIT, here[0], here) != 0, "before it is warm"
    (tmp_path / "ready" / file.name).touch()
    assert os.spawnvp(os.P_WAIT, here[0], here) == 0


def test_a_pod_with_several_slots_has_a_worker_for_each():
    job = job_of("kubernetes.slots_per_worker=2", "kubernetes.worker.cpu=6")
    _, worker = pod(job, "Worker")

    assert job.mpijob["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 2
    assert worker["command"][-2:] == ["--slots", "2"]
    assert env(worker)["OMP_NUM_THREADS"] == "3"


def test_launcher_and_workers_have_nodes_of_their_own():
    job = job_of(
        "kubernetes.worker.node_selector={gpu: a100}",
        "kubernetes.worker.tolerations=[{key: gpu, operator: Exists, effect: NoSchedule}]",
        "kubernetes.launcher.node_selector={pool: stable}",
        "kubernetes.launcher.tolerations=[{key: stable}]",
    )
    launcher, worker = (pod(job, role)[0]["spec"] for role in ("Launcher", "Worker"))

    assert launcher["nodeSelector"] == {"pool": "stable"}
    assert launcher["tolerations"][0] == {"key": "stable"}
    assert "gpu" not in {toleration["key"] for toleration in launcher["tolerations"]}
    assert worker["nodeSelector"] == {"gpu": "a100"}
    assert [toleration["key"] for toleration in worker["tolerations"]] == ["gpu"]


def test_a_launcher_leaves_a_node_that_is_away_soon():
    away = pod(job_of(), "Launcher")[0]["spec"]["tolerations"]

    assert {toleration["key"]: toleration["tolerationSeconds"] for toleration in away} == {
        "node.kubernetes.io/not-ready": 10,
        "node.kubernetes.io/unreachable": 10,
    }
    assert {toleration["effect"] for toleration in away} == {"NoExecute"}
    assert "tolerations" not in pod(job_of(), "Worker")[0]["spec"]


def test_how_long_a_launcher_stays_on_a_node_that_is_away_can_be_said():
    patient = "{key: node.kubernetes.io/unreachable, operator: Exists, tolerationSeconds: 300}"
    spec = pod(job_of(f"kubernetes.launcher.tolerations=[{patient}]"), "Launcher")[0]["spec"]

    keys = [toleration["key"] for toleration in spec["tolerations"]]
    assert sorted(keys) == ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]
    assert spec["tolerations"][0]["tolerationSeconds"] == 300


def test_requests_are_limits_so_that_such_pods_are_evicted_last():
    for role in ("Launcher", "Worker"):
        _, container = pod(job_of("kubernetes.worker.gpus=1"), role)
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert "ephemeral-storage" not in container["resources"]["limits"]


def test_the_launcher_may_do_no_more_than_it_must():
    job = job_of("elastic.max_np=5")
    rules = part(job, "Role")["rules"]

    assert [rule["verbs"] for rule in rules] == [["get", "list", "watch"], ["delete"]]
    assert rules[1]["resourceNames"] == [f"mnist-worker-{index}" for index in range(5)]
    assert part(job, "RoleBinding")["subjects"][0]["namespace"] == "ml"


def test_an_account_that_is_given_is_not_made():
    job = job_of("kubernetes.service_account=trainer")

    assert part(job, "ServiceAccount") is part(job, "Role") is None
    assert pod(job, "Launcher")[0]["spec"]["serviceAccountName"] == "trainer"


@pytest.mark.parametrize("style", ["horovodrun", "mpirun"])
def test_under_ssh_the_workers_are_what_the_image_is_made_for(style):
    job = job_of(f"kubernetes.style={style}")
    _, worker = pod(job, "Worker")

    assert worker["command"] == ["/usr/sbin/sshd", "-De", "-f", "/etc/edl/sshd_config"]
    assert (DOCKER / "sshd_config").read_text().count(job.mpijob["spec"]["sshAuthMountPath"]) == 3
    assert (
        f"Port {worker['readinessProbe']['tcpSocket']['port']}"
        in (DOCKER / "ssh_config").read_text()
    )
    assert part(job, "Secret") is None


@pytest.mark.parametrize("style", STYLES)
def test_no_job_counts_on_the_operator_to_hold_its_launcher_back(style):
    job = job_of(f"kubernetes.style={style}")

    assert job.mpijob["spec"]["launcherCreationPolicy"] == "AtStartup"


def test_only_a_worker_whose_end_would_end_its_ranks_has_a_hook():
    workers = {style: pod(job_of(f"kubernetes.style={style}"), "Worker")[1] for style in STYLES}

    assert "lifecycle" not in workers["elastic"], "it leaves on SIGTERM"
    assert "lifecycle" not in workers["mpirun"], "a ring that is static ends with each of its ranks"
    command = workers["horovodrun"]["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:3] == ["python", "-m", "edl_horovod.cluster.pod.pre_stop"]
    assert "EDL_POD_IP" in env(workers["horovodrun"])


def test_secrets_are_references_wherever_they_stand():
    job = job_of("kubernetes.secret_env={KEY: s3/key}")
    (variable,) = [entry for entry in pod(job, "Worker")[1]["env"] if entry["name"] == "KEY"]

    assert variable == {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s3", "key": "key"}}}


def test_only_the_jobs_own_pods_may_call_them():
    spec = part(job_of(), "NetworkPolicy")["spec"]

    assert spec["policyTypes"] == ["Ingress"]
    assert spec["ingress"] == [{"from": [{"podSelector": spec["podSelector"]}]}]
    labels = spec["podSelector"]["matchLabels"]
    assert labels["training.kubeflow.org/job-name"] == "mnist"


def test_evaluate_and_predict_are_jobs_too():
    base = [
        *TRAIN[:2],
        "trained_model=/data/models/mnist",
        "data=s3://bucket/new.recordio",
        *VOLUME,
    ]
    for task, settings in (("evaluate", []), ("predict", ["output=/data/predictions"])):
        job = job_of(*settings, task=task, base=base)
        mpijobs.schema().admit(job.mpijob, is_strict=True)
        assert settings_in(job)["task"] == task


def test_the_yaml_is_the_manifests():
    job = job_of(*EVERYTHING)

    assert tuple(yaml.safe_load_all(manifest.to_yaml(job.all))) == job.all


@pytest.mark.long
def test_the_settings_of_the_pods_name_the_files_of_the_user_without_their_folders(tmp_path):
    folder = tmp_path / "customers, x" / "conf"
    (folder / "experiment").mkdir(parents=True)
    text = "# @package _global_\nparams: {x: 1}\ntrain: {epochs: 2}\n"
    (folder / "experiment" / "mine.yaml").write_text(text)
    words = [*TRAIN, "+experiment=mine", "params.y=2"]

    config = compose("train", words, files=ConfigFiles(str(folder)))
    job = manifest.job_manifests(config, name="mnist", namespace="ml", secret=SECRET)

    assert config.origins["params"] == f"{folder}/experiment/mine.yaml, command line"
    assert job.config.origins == {
        **config.origins,
        "params": "mine.yaml, command line",
        "train.epochs": "mine.yaml",
    }
    assert job.config.origins["launch.kind"] == "conf/launch/kubernetes.yaml"
    assert settings_in(job)["origins"] == job.config.origins
    assert str(tmp_path) not in manifest.to_yaml(job.all)


@pytest.mark.parametrize(
    ("origin", "shown"),
    [
        ("/a/b.yaml", "b.yaml"),
        ("/b.yaml", "b.yaml"),
        ("/a/b.yaml, /c, d/e.yaml, environment", "b.yaml, e.yaml, environment"),
        ("conf/train/t.yaml, /a/b.yaml", "conf/train/t.yaml, b.yaml"),
        ("/a/b.yaml, conf/train/t.yaml", "b.yaml, conf/train/t.yaml"),
        ("command line, /a/spec.yml", "command line, spec.yml"),
        ("edl train", "edl train"),
    ],
)
def test_each_file_that_set_a_value_is_named_without_its_folder(origin, shown):
    config = replace(composed("train", tuple(TRAIN)), origins={"data": origin})

    job = manifest.job_manifests(config, name="mnist", namespace="ml", secret=SECRET)

    assert job.config.origins == {"data": shown}


WRONG = {
    "output=/elsewhere/m": "output must lie",
    "job_dir=/tmp/job": "job_dir must lie",
    "data=train.recordio": "data must lie",
    "kubernetes.volumes.data.read_only=true": "be written",
    "kubernetes.slots_per_worker=3": r"multiple of kubernetes\.slots_per_worker",
    "launch.np=2000": "lanes",
    "elastic.spares=1": r"elastic\.spares",
    f"params.note={'x' * (1 << 20)}": "ConfigMap",
    # Only our own rings scale themselves.
    "elastic.autoscale=true kubernetes.style=horovodrun": r"elastic\.autoscale",
    "elastic.autoscale=true kubernetes.style=mpirun": r"elastic\.autoscale",
    # Over SSH no secret is handed on.
    "kubernetes.style=horovodrun kubernetes.secret_env={KEY:s3/key}": "command line",
}


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("overrides", "pattern"), WRONG.items(), ids=[overrides[:60] for overrides in WRONG]
)
def test_what_cannot_work_is_refused_before_anything_is_sent(overrides, pattern):
    with pytest.raises(ConfigError, match=pattern):
        job_of(*overrides.split())


def test_a_job_without_volumes_is_told_that_it_has_none():
    with pytest.raises(ConfigError, match=r"output=.*, no kubernetes"):
        job_of(base=TRAIN[: -len(VOLUME)])
