from dataclasses import dataclass

import pytest

from edl_horovod.config import resolved
from edl_horovod.config.compose import compose
from edl_horovod.config.keywords import from_keywords
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError

TRAIN = ["data=/d/x", "output=/d/o", "model_def=m", "launch=kubernetes"]


def composed(*overrides):
    return compose("train", [*TRAIN, *overrides])


def test_dicts_are_given_as_a_whole_and_key_by_key():
    config = composed(
        "kubernetes.volumes={data: {claim: a, mount: /data}}",
        "kubernetes.volumes.zoo.claim=b",
        "kubernetes.volumes.zoo.mount=/zoo",
        "kubernetes.env.LEVEL=1",
    )

    assert config.kubernetes.volumes == {
        "data": {"claim": "a", "mount": "/data"},
        "zoo": {"claim": "b", "mount": "/zoo"},
    }
    assert config.kubernetes.env == {"LEVEL": 1}


def test_python_values_mean_what_they_say():
    given = {
        "env": {"TEXT": "it's \\ {1}, ok", "NUMBER": 2},
        "volumes": {"data": {"claim": "x", "mount": "/data", "read_only": True}},
    }
    overrides, values = from_keywords({"kubernetes": given, "launch": "kubernetes"}, JobConfig)

    config = compose("train", [*TRAIN, *overrides], values=values)

    assert {key: getattr(config.kubernetes, key) for key in given} == given


def test_the_resolved_file_gives_the_same_config_back(tmp_path):
    config = composed("kubernetes.worker.tolerations=[{key: a}]", "kubernetes.env={A: x}")
    resolved.dump(config, tmp_path / "config.yaml")

    assert resolved.load(tmp_path / "config.yaml") == config


@dataclass(frozen=True)
class Wrong:
    override: str
    says: str


@pytest.mark.parametrize(
    "wrong",
    [
        Wrong("kubernetes.style=elastik", "Did you mean 'elastic'?"),
        Wrong("kubernetes.name=My_Job", "kubernetes.name must be lower-case"),
        Wrong(f"kubernetes.name={'a' * 41}", "at most 40"),
        Wrong("kubernetes.worker.memory=4GB", "kubernetes.worker.memory must be bytes"),
        Wrong("kubernetes.worker.gpus=-1", "kubernetes.worker.gpus must be 0 or more"),
        Wrong("kubernetes.slots_per_worker=0", "kubernetes.slots_per_worker must be"),
        Wrong("kubernetes.volumes={d: {claim: x}}", "kubernetes.volumes.d.mount must be a path"),
        Wrong("kubernetes.volumes={d: {mount: /x}}", "must have one of claim, host_path, secret"),
        Wrong("kubernetes.volumes={d: {claims: x, mount: /x}}", "must be a dict of"),
        Wrong("kubernetes.secret_env={KEY: geheim}", "must be the name of a secret, a slash"),
        Wrong("kubernetes.env={1A: x}", "must be the name of an environment variable"),
        Wrong("kubernetes.worker.tolerations=[{kee: x}]", "must be dicts of key, operator"),
        Wrong("kubernetes.launcher.tolerations=[x]", "kubernetes.launcher.tolerations must be"),
        Wrong("kubernetes.launcher.node_selector={a: [x]}", "node_selector.a must be text"),
        Wrong("kubernetes.env={A: [x]}", "kubernetes.env.A must be text or a number"),
        Wrong("kubernetes.interfaces=x", "Did you mean 'kubernetes.interface'?"),
    ],
    ids=lambda wrong: wrong.override[:40],
)
def test_a_wrong_value_is_named(wrong):
    with pytest.raises(ConfigError) as error:
        composed(wrong.override)

    assert wrong.says in str(error.value)


def test_a_ring_outlasts_the_repair_of_a_dead_node():
    # A cloud looks on for 10 minutes and waits an hour for the node to be drained, which it never
    # is; then a machine starts, and a launcher pulls its image.
    most = 600 + 3600 + 600
    assert composed().elastic.coordinator_away_seconds >= most
    assert composed("elastic=low_priority").elastic.coordinator_away_seconds >= most


def test_what_may_be_a_secret_is_not_repeated():
    with pytest.raises(ConfigError) as error:
        composed("kubernetes.secret_env={KEY: geheim}")

    assert "geheim" not in str(error.value)
