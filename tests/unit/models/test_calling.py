import functools

import pytest

from edl_horovod.errors import ConfigError, UserCodeError
from edl_horovod.models.calling import call_declared, user_code


@pytest.mark.parametrize(
    ("function", "values", "result"),
    [
        (lambda outputs: outputs, {"outputs": 1, "labels": 2}, 1),
        (lambda **values: values, {"a": 1, "b": 2}, {"a": 1, "b": 2}),
        (lambda lr=0.1: lr, {}, 0.1),
        (lambda outputs, /, labels: outputs - labels, {"labels": 1, "outputs": 3}, 2),
    ],
    ids=["declared alone", "all as keywords", "a default stays", "positional only"],
)
def test_what_is_available_is_passed_as_it_is_declared(function, values, result):
    assert call_declared(function, values) == result


def test_a_bound_value_gives_way_to_an_available_one():
    bound = functools.partial(lambda lr=0.1, decay=0: (lr, decay), lr=0.5)
    assert call_declared(bound, {"decay": 1}) == (0.5, 1)
    assert call_declared(bound, {"lr": 0.2, "decay": 1}) == (0.2, 1)


def test_a_required_parameter_that_is_not_available_is_named_with_the_nearest():
    with pytest.raises(UserCodeError, match=r"'output'.*'outputs'"):
        call_declared(lambda output, labels: None, {"outputs": 1, "labels": 2})


def test_a_type_error_inside_the_function_stays_what_it_is():
    with pytest.raises(TypeError, match="unsupported operand"):
        call_declared(lambda: 1 + None, {})


def test_an_error_of_user_code_names_the_line_in_the_users_file(tmp_path):
    file = tmp_path / "model.py"
    file.write_text("def make():\n    return 1 / 0\n")
    values = {}
    exec(compile(file.read_text(), str(file), "exec"), values)

    with (
        pytest.raises(UserCodeError, match=rf"Making it .*{file}:2: Zero") as caught,
        user_code("Making it", root=tmp_path),
    ):
        values["make"]()

    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("error", "named"),
    [
        # An optimizer of tf.train is answered with its replacement.
        (
            AttributeError(
                "module 'tensorflow._api.v2.train' has no attribute 'GradientDescentOptimizer'"
            ),
            r"such as keras\.optimizers\.SGD$",
        ),
        # What a layer said comes without what Keras says around it.
        (
            ValueError(
                "Exception encountered when calling M.call().\n\n\x1b[1mno x\x1b[0m\n\n"
                "Arguments received"
            ),
            r"^Running M \w+: ValueError: no x$",
        ),
        # Of a graph its error is told and no frames.
        (
            OSError(
                'Graph execution error:\n\n  File "a.py", line 3, in f\n\nShapes: [2] vs. [3]\n'
                "\t [[{{node gradient_tape/sub}}]] [Op:__inference_step_592]"
            ),
            r"^Running M \w+: OSError: Shapes: \[2\] vs\. \[3\]$",
        ),
    ],
    ids=["optimizer", "layer", "graph"],
)
def test_an_error_of_a_framework_is_told_without_what_is_around_it(tmp_path, error, named):
    with pytest.raises(UserCodeError, match=named), user_code("Running M", root=tmp_path):
        raise error


def test_our_own_errors_pass_user_code_unchanged(tmp_path):
    with pytest.raises(ConfigError, match=r"^ours$"), user_code("Making it", root=tmp_path):
        raise ConfigError("ours")
