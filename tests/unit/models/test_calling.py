import functools

import pytest

from edl_horovod.errors import ConfigError, UserCodeError
from edl_horovod.models.calling import call_declared, user_code


def test_only_declared_values_are_passed():
    assert call_declared(lambda outputs: outputs, {"outputs": 1, "labels": 2}) == 1


def test_everything_is_passed_to_keyword_arguments():
    assert call_declared(lambda **values: values, {"a": 1, "b": 2}) == {"a": 1, "b": 2}


def test_a_default_stays_where_nothing_is_available():
    assert call_declared(lambda lr=0.1: lr, {}) == 0.1


def test_positional_only_parameters_are_passed():
    def function(outputs, /, labels):
        return outputs - labels

    assert call_declared(function, {"labels": 1, "outputs": 3}) == 2


def test_a_bound_value_gives_way_to_an_available_one():
    bound = functools.partial(lambda lr=0.1, decay=0: (lr, decay), lr=0.5)
    assert call_declared(bound, {"decay": 1}) == (0.5, 1)
    assert call_declared(bound, {"lr": 0.2, "decay": 1}) == (0.2, 1)


def test_a_required_parameter_that_is_not_available_is_named_with_the_nearest():
    def create_loss(output, labels):
        return None

    with pytest.raises(UserCodeError, match=r"'output'.*Did you mean 'outputs'"):
        call_declared(create_loss, {"outputs": 1, "labels": 2})


def test_a_type_error_inside_the_function_stays_what_it_is():
    def function():
        return 1 + None

    with pytest.raises(TypeError, match="unsupported operand"):
        call_declared(function, {})


def test_an_error_of_user_code_names_the_line_in_the_users_file(tmp_path):
    file = tmp_path / "model.py"
    file.write_text("def make():\n    return 1 / 0\n")
    values = {}
    exec(compile(file.read_text(), str(file), "exec"), values)

    with (
        pytest.raises(
            UserCodeError, match=rf"Making it failed at {file}:2: ZeroDivision"
        ) as caught,
        user_code("Making it", root=tmp_path),
    ):
        values["make"]()

    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_optimizer_of_tf_train_is_answered_with_its_replacement(tmp_path):
    missing = "module 'tensorflow._api.v2.train' has no attribute 'GradientDescentOptimizer'"
    with (
        pytest.raises(UserCodeError, match=r"use one of Keras 3, such as keras\.optimizers\.SGD$"),
        user_code("create_optimizer", root=tmp_path),
    ):
        raise AttributeError(missing)


def test_what_a_layer_said_is_told_without_what_keras_says_around_it(tmp_path):
    around = (
        "Exception encountered when calling M.call().\n\n\x1b[1m{}\x1b[0m\n\nArguments received"
    )
    with (
        pytest.raises(UserCodeError, match=r"^Running M failed: ValueError: no x$"),
        user_code("Running M", root=tmp_path),
    ):
        raise ValueError(around.format("no x"))


def test_of_a_graph_its_error_is_told_and_no_frames(tmp_path):
    told = (
        'Graph execution error:\n\n  File "a.py", line 3, in f\n\nShapes: [2] vs. [3]\n'
        "\t [[{{node gradient_tape/sub}}]] [Op:__inference_step_592]"
    )
    with (
        pytest.raises(UserCodeError, match=r"^It failed: OSError: Shapes: \[2\] vs\. \[3\]$"),
        user_code("It", root=tmp_path),
    ):
        raise OSError(told)


def test_our_own_errors_pass_user_code_unchanged(tmp_path):
    with pytest.raises(ConfigError, match=r"^ours$"), user_code("Making it", root=tmp_path):
        raise ConfigError("ours")
