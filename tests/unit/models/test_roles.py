import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.models.calling import call_declared, declared
from edl_horovod.models.parts import DATASET_ROLES, LOSS_ROLES, with_roles

LOSSES = {
    "released": lambda labels, predictions: (labels, predictions),
    "earlier": lambda output, labels: (labels, output),
    "keras_style": lambda y_true, y_pred: (y_true, y_pred),
    "nameless": lambda a, b: (a, b),
    "half_named": lambda _, labels: (labels, _),
    "with_param": lambda labels, outputs, scale=2: (labels, outputs),
    "keyword_only": lambda *, outputs, labels: (labels, outputs),
}


@pytest.mark.parametrize("function", LOSSES.values(), ids=LOSSES)
def test_a_loss_gets_its_values_whatever_it_calls_them(function):
    adapted = with_roles(function, LOSS_ROLES, label="loss")

    assert call_declared(adapted, {"outputs": "out", "labels": "lab"}) == ("lab", "out")


def test_one_of_the_values_is_enough():
    assert with_roles(lambda predictions: predictions, LOSS_ROLES, label="")("lab", "out") == "out"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda dataset, mode, metadata: (dataset, mode, metadata), ("d", "m", None)),
        (lambda dataset, mode, _: (dataset, mode, _), ("d", "m", None)),
        (lambda dataset, mode: (dataset, mode), ("d", "m")),
        (lambda dataset: dataset, "d"),
        (lambda mode, data: (mode, data), ("m", "d")),
    ],
)
def test_a_feed_gets_what_it_takes(function, expected):
    assert with_roles(function, DATASET_ROLES, label="feed")("d", "m", None) == expected


def test_what_has_a_default_stays_a_parameter_of_the_model():
    adapted = with_roles(lambda labels, x, scale=2: (labels, x, scale), LOSS_ROLES, label="loss")

    assert declared(adapted).names == ("labels", "outputs", "scale")
    assert adapted("lab", "out") == ("lab", "out", 2)
    assert adapted("lab", "out", scale=3) == ("lab", "out", 3)


def test_a_function_that_requires_more_is_refused():
    with pytest.raises(UserCodeError, match=r"my loss .*'c'"):
        with_roles(lambda a, b, c: None, LOSS_ROLES, label="my loss")
