from typing import Any

import pytest
import yaml

from edl_horovod.config import resolved
from edl_horovod.config.schema import ElasticConfig, JobConfig, LaunchConfig, TrainConfig
from edl_horovod.errors import ConfigError, OutputError

MINIMAL = {"task": "train", "data": "/d/*.recordio", "output": "/o", "model_def": "mnist"}


def make_config(**changes: Any) -> JobConfig:
    return JobConfig(**{**MINIMAL, **changes})


def test_a_file_gives_back_the_config(tmp_path):
    config = make_config(
        output="/o/ü \udcff: # 'x'",
        params={"hidden_units": [10, -1.5, None, True, "on"], "nested": {"1": {2: "yes"}}},
        train=TrainConfig(learning_rate=1e-05),
        launch=LaunchConfig(np=2),
        elastic=ElasticConfig(max_np=4),
    )

    resolved.dump(config, tmp_path / "config.yaml")

    assert resolved.load(tmp_path / "config.yaml") == config
    assert resolved.from_dict(resolved.to_dict(config)) == config
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_the_file_is_plain_yaml_in_the_order_of_the_schema(tmp_path):
    resolved.dump(make_config(), tmp_path / "config.yaml")

    values = yaml.safe_load((tmp_path / "config.yaml").read_text())

    assert list(values)[:3] == ["task", "data", "output"]
    assert values["train"]["batch_size"] == 128


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    (tmp_path / "config.yaml").mkdir()

    with pytest.raises(OutputError, match=r"config\.yaml"):
        resolved.dump(make_config(), tmp_path / "config.yaml")

    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"epochs": 3}, "'train.epochs'"),
        ({"train": {"epoch": 3}}, "'train.epoch'. Did you mean 'train.epochs'?"),
        ({"train": {"epoch": 3}}, "Allowed under train: batch_size, epochs"),
        ({"train": {"epochs": "3"}}, "type int. Received: train.epochs='3'"),
        ({"train": {"epochs": True}}, "train.epochs must be of type int"),
        ({"train": {"learning_rate": "x"}}, "float or null"),
        ({"train": 3}, "train must be of type dict"),
        ({"params": [1]}, "params must be of type dict"),
        ({"overwrite": 1}, "overwrite must be of type bool"),
        ({"output": None}, "output must be of type str"),
        ({"train": {"epochs": 0}}, "train.epochs must be 1 or more"),
        ({"params": {"a-b": 1}}, "name a parameter"),
    ],
)
def test_a_wrong_file_is_refused_with_file_and_key(tmp_path, changes, named):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**MINIMAL, **changes}))

    with pytest.raises(ConfigError) as error:
        resolved.load(path)

    assert str(error.value).startswith(f"{path}: ")
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("- 1", "hold keys"),
        ("a: [", "YAML"),
        ("a: !!python/name:os.system x", "not"),
        (None, "read"),
    ],
)
def test_a_file_that_holds_no_keys_or_is_missing_is_refused(tmp_path, text, named):
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)

    with pytest.raises(ConfigError, match=named):
        resolved.load(path)


def test_a_missing_key_is_named_with_its_meaning():
    with pytest.raises(ConfigError, match=r"task is missing\. The"):
        resolved.from_dict({})


def test_an_int_for_a_float_becomes_a_float():
    config = resolved.from_dict({**MINIMAL, "train": {"learning_rate": 1}})

    assert type(config.train.learning_rate) is float
