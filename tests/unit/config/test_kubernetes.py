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
    settings = {
        "env": {"TEXT": "it's \\ {1}, ok", "NUMBER": 2},
        "volumes": {"data": {"claim": "x", "mount": "/data", "read_only": True}},
    }
    overrides, values = from_keywords({"kubernetes": settings, "launch": "kubernetes"}, JobConfig)

    config = compose("train", [*TRAIN, *overrides], values=values)

    assert {key: getattr(config.kubernetes, key) for key in settings} == settings


def test_the_resolved_file_gives_the_same_config_back(tmp_path):
    config = composed("kubernetes.worker.tolerations=[{key: a}]", "kubernetes.env={A: x}")
    resolved.dump(config, tmp_path / "config.yaml")

    assert resolved.load(tmp_path / "config.yaml") == config


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("style=elastik", "'elastic'"),
        ("name=My_Job", "kubernetes.name must be lower-case"),
        (f"name={'a' * 41}", "most 40"),
        ("worker.memory=4GB", "kubernetes.worker.memory must be bytes"),
        ("worker.gpus=-1", "kubernetes.worker.gpus must be 0"),
        ("slots_per_worker=0", "kubernetes.slots_per_worker must"),
        ("volumes={d: {claim: x}}", "kubernetes.volumes.d.mount must"),
        ("volumes={d: {mount: /x}}", "one of claim, host_path, secret"),
        ("volumes={d: {claims: x, mount: /x}}", "a dict"),
        ("secret_env={KEY: geheim}", "a secret, a slash"),
        ("env={1A: x}", "environment variable"),
        ("worker.tolerations=[{kee: x}]", "dicts of key, operator"),
        ("launcher.tolerations=[x]", "kubernetes.launcher.tolerations must"),
        ("launcher.node_selector={a: [x]}", "node_selector.a must"),
        ("env={A: [x]}", "kubernetes.env.A must be text"),
        ("interfaces=x", "'kubernetes.interface'"),
    ],
    ids=lambda text: text[:30],
)
def test_a_wrong_value_is_named_and_no_secret_is_repeated(override, named):
    with pytest.raises(ConfigError) as error:
        composed(f"kubernetes.{override}")

    assert named in str(error.value)
    assert "geheim" not in str(error.value)


def test_a_ring_outlasts_the_repair_of_a_dead_node():
    # A cloud looks on for 10 minutes and waits an hour for the node to be drained, which it never
    # is; then a machine starts, and a launcher pulls its image.
    most = 600 + 3600 + 600
    assert composed().elastic.coordinator_away_seconds >= most
    assert composed("elastic=low_priority").elastic.coordinator_away_seconds >= most
