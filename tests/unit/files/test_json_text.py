"""What we write is JSON for any reader, and comes back as far as JSON goes."""

import json
import math

import pytest

from edl_horovod.files.json_text import dumps, numbers


def strict(text):
    """Parse as other languages do: no NaN, no Infinity."""

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_has_not_is_null_wherever_it_stands(bad):
    value = {"a": bad, "b": [1, (bad, {"c": bad})], "d": "NaN", "e": 1.5}
    assert strict(dumps(value)) == {"a": None, "b": [1, [None, {"c": None}]], "d": "NaN", "e": 1.5}


def test_all_else_and_the_options_are_those_of_json():
    value = {"name": [1, 2.5, None, True, "ü"]}
    assert dumps(value, indent=2) == json.dumps(value, indent=2)


def test_what_cannot_be_written_is_still_an_error():
    with pytest.raises(TypeError):
        dumps({"a": object()})


def test_null_comes_back_as_nan():
    back = numbers(strict(dumps({"auc": math.nan, "loss": 0.5})))
    assert math.isnan(back["auc"])
    assert back["loss"] == 0.5
