"""What a Python call gives reaches the dataclasses as it is."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_horovod.config.compose import compose
from edl_horovod.config.keywords import from_keywords
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError

JOB = {"data": "/d", "output": "/o", "model_def": "m"}


def composed(**keywords: Any) -> JobConfig:
    overrides, values = from_keywords(JOB | keywords, JobConfig)
    return compose("train", overrides, values=values)


def test_values_are_no_text_in_between():
    overrides, values = from_keywords(
        {"elastic": {"max_np": 4}, "params": {"a": [1, "b"]}, "data": [Path("/a"), "/b"]}, JobConfig
    )

    assert overrides == []
    assert values == {"elastic.max_np": 4, "params": {"a": [1, "b"]}, "data": "/a,/b"}


def test_sections_and_keys_with_dots_mean_the_same():
    config = composed(train={"epochs": 3, "early_stopping": {"patience": 2}}, elastic={"max_np": 4})

    dotted = {"train.epochs": 3, "train.early_stopping.patience": 2, "elastic.max_np": 4}
    assert config == composed(**dotted)
    assert (config.train.epochs, config.elastic.max_np) == (3, 4)


def test_text_is_read_as_in_a_command():
    config = composed(train={"epochs": "3"}, elastic={"max_np": "null"}, overwrite="true")
    assert (config.train.epochs, config.elastic.max_np, config.overwrite) == (3, None, True)


def test_a_group_is_chosen_by_its_name():
    assert composed(launch="mpi", elastic="small", **{"launch.np": 2}).elastic.max_np == 4


@pytest.mark.long(after=1)
@pytest.mark.parametrize("text", ["${oc.env:HOME}", "'a'", '"a, b"', "a=1", "???", "it's \\ {1}"])
def test_text_of_a_call_is_used_verbatim(text):
    config = composed(model_def=f"x{text}", params={"p": text, "q": [text]})
    assert (config.model_def, config.params) == (f"x{text}", {"p": text, "q": [text]})


@pytest.mark.long(after=1)
@pytest.mark.parametrize("value", [0.1, 1, None, True, [1, [2.5]], {"a": {1: "b"}}, -0.0, 1e300])
def test_a_parameter_keeps_its_type(value):
    (parameter,) = composed(params={"x": value}).params.values()
    assert (parameter, type(parameter)) == (value, type(value))
    assert composed(**{"params.x": value}).params == {"x": value}


def test_a_number_of_numpy_is_one():
    assert composed(train={"learning_rate": np.float64(0.5)}).train.learning_rate == 0.5


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"epochs": 3}, "'train.epochs'? Allowed: data"),
        ({"train": {"epoch": 3}}, "'train.epochs'? Allowed under train"),
        ({"train": 3}, "train must"),
        ({"launch": "mpy"}, "'mpi'"),
        ({"train": {"epochs": 1.5}}, "type int. Received: train.epochs=1.5"),
        ({"train": {"epochs": True}}, "train.epochs must be of type int"),
        ({"train": {"epochs": 0}}, "1 or more. Received: train.epochs=0."),
        ({"train": {"epochs": {1}}}, "train.epochs must be text,"),
        ({"output": b"/o"}, "Received: output=b'/o' (bytes)"),
        ({"params": 3}, "Received: params=3."),
        ({"params": {"1x": 1}}, "name a parameter"),
        ({"kubernetes": {"env": {"A": {1}}}}, "kubernetes.env.A must be text,"),
        ({"task": "predict"}, "'task'"),
        ({"epochs": 3, "nothing": 4}, "2 settings"),
        ({"epochs": 3, "nothing": 4}, "'train.epochs'"),
        ({"epochs": 3, "nothing": 4}, "'nothing'"),
    ],
)
def test_what_is_wrong_is_told_by_its_key(keywords, named):
    with pytest.raises(ConfigError, match=re.escape(named)):
        composed(**keywords)
