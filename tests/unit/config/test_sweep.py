import pytest

from edl_horovod.config.compose import compose
from edl_horovod.config.sweep import expand
from edl_horovod.errors import ConfigError

TRAIN = ["data=/d/a,/d/b", "output=/o", "model_def=mnist"]


def chosen(*overrides: str) -> list[dict[str, str]]:
    return [point.chosen for point in expand([*TRAIN, *overrides])]


def test_every_combination_is_one_point_and_the_last_setting_changes_fastest():
    points = expand([*TRAIN, "params.hidden=[10],[20]", "train.learning_rate=0.1,1e-2"])

    pairs = [("[10]", "0.1"), ("[10]", "0.01"), ("[20]", "0.1"), ("[20]", "0.01")]
    assert [tuple(point.chosen.values()) for point in points] == pairs
    config = compose("train", points[-1].overrides)
    assert (config.params, config.train.learning_rate) == ({"hidden": [20]}, 0.01)
    assert config.data == "/d/a,/d/b"


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("override", "key", "values"),
    [
        ("train.epochs=range(1,4)", "train.epochs", ["1", "2", "3"]),
        ("launch=glob(*)", "launch", ["kubernetes", "local", "mpi", "slurm"]),
        ("launch=glob(*,exclude=m*)", "launch", ["kubernetes", "local", "slurm"]),
        ("++train.epochs=3,1,3", "train.epochs", ["3", "1"]),
        ("validation_data=choice('/a b','/c,/d')", "validation_data", ["/a b", "/c,/d"]),
        ("params=choice('a=1, b=2','a=3')", "params", ["a=1, b=2", "a=3"]),
        ("params.act='relu',tanh", "params.act", ["'relu'", "tanh"]),
        ("model_zoo=/x y,'/z'", "model_zoo", ["/x y", "/z"]),
        (
            "train={epochs: 1},{epochs: 2, batch_size: 8}",
            "train",
            ["{epochs:1}", "{epochs:2,batch_size:8}"],
        ),
    ],
)
def test_hydras_grammar_says_the_values(override, key, values):
    assert chosen(override) == [{key: value} for value in values]


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("params.act='relu',tanh", {"act": "tanh"}),
        ("params.act=relu,'ta nh'", {"act": "ta nh"}),
        ("params=choice('a=1, b=2','a=3')", {"a": 3}),
        ("params.x=1,{a: [1, b]}", {"x": {"a": [1, "b"]}}),
        ("params.x=1,null", {"x": None}),
        ('params.x=1,"a\'b\\\\"', {"x": "a'b\\"}),
    ],
)
def test_a_parameter_arrives_as_it_was_typed(override, value):
    assert compose("train", expand([*TRAIN, override])[-1].overrides).params == value


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ([], "to sweep over. Received: data=/d/a,/d/b"),
        (["params=a=1, b=2"], "to sweep"),
        (["log_level=choice(info)"], "log_level is"),
        (["output=/a,/b"], "output is"),
        (["train.epochs=interval(1,3)"], "An interval"),
        (["train.epochs=range(3,3)"], "train.epochs has no value"),
        (["train.epochs=1,,2"], "of train.epochs"),
        (["train.epochs=1,2", "train.epochs=3"], "given twice"),
        (["train.epochs=1,2", "train.epochs=3,4"], "values twice"),
        (["~data"], "removed"),
    ],
)
def test_a_wrong_sweep_is_refused(overrides, named):
    typed = [text for text in TRAIN if not overrides or not overrides[0].startswith("output")]
    with pytest.raises(ConfigError) as error:
        expand([*typed, *overrides])

    assert named in str(error.value)
