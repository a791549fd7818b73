import hypothesis.strategies as st
import pytest
from hypothesis import given

from edl_horovod.config import params
from edl_horovod.errors import ConfigError

literals = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda parts: (
        st.lists(parts, max_size=3) | st.dictionaries(st.text() | st.integers(), parts, max_size=3)
    ),
    max_leaves=8,
)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in params.keyword.kwlist
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "units=[10, 100, 20, 5], learning_rate=0.01",
            {"units": [10, 100, 20, 5], "learning_rate": 0.01},
        ),
        ("", {}),
        ("a=1,", {"a": 1}),
        ("a=-1, b=+2.5", {"a": -1, "b": 2.5}),
        ("a=None, b=True, c='x, y=1'", {"a": None, "b": True, "c": "x, y=1"}),
        ("a={'x': [1, {2: None}]}", {"a": {"x": [1, {2: None}]}}),
        ("a=1,\n  b=2  # as before", {"a": 1, "b": 2}),
    ],
)
def test_literals_are_read(text, expected):
    assert params.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("x=__import__('os').system('id')", "character 3"),
        ("x=abc", "quote it if it is text"),
        ("a=1, b=foo", "character 8 ('foo')"),
        ("ü='é', y=q", "character 10 ('q')"),
        ("a=1,\nb=foo", "line 2, character 3"),
        ("a=1, a=2", "a comes a second time"),
        ("a={'x': 1, 'x': 2}", "'x' comes a second time"),
        ("a=(1, 2)", "write a list"),
        ("1", "a value without a name"),
        ("**{'a': 1}", "**"),
        ("a=1)+(2", "not name=value"),
        ("a=1)(b=2", "not name=value"),
        ("a=[1, 2", "its end"),
        ("a=1; b=2", "character 4"),
        ("a=-True", "sign"),
        ("a=1e999", "too large"),
        ("a=b'x'", "not a literal"),
        ("a=f'{1}'", "not a literal"),
        ("a={1, 2}", "not a literal"),
        ("a=[x for x in [1]]", "not a literal"),
        ("a={None: 1}", "dict key"),
        ("a='\0'", "null bytes"),
        ("a=" + "-" * 100_000 + "1", "nested"),
        ("a='\ud800'", "surrogates"),
    ],
)
def test_anything_but_literals_is_refused_with_its_place(text, named):
    with pytest.raises(ConfigError) as error:
        params.parse(text)

    assert named in str(error.value)
    assert "name=value" in error.value.hint


@given(st.dictionaries(names, literals, max_size=4))
def test_parse_gives_back_what_format_wrote(given_params):
    assert params.parse(params.format(given_params)) == given_params


@given(st.text())
def test_any_text_is_read_or_refused(text):
    try:
        read = params.parse(text)
    except ConfigError:
        return
    assert params.parse(params.format(read)) == read


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), (1, 2), {1}, b"x", 1j, [object()], {None: 1}, {1.5: 1}]
)
def test_a_value_that_is_no_literal_cannot_be_written(value):
    with pytest.raises(ConfigError, match=r"params\.x holds a"):
        params.format({"x": value})


@pytest.mark.parametrize("name", ["", "1x", "a-b", "class", "a b", "ﬁ"])
def test_a_name_that_python_would_not_take_cannot_be_written(name):
    with pytest.raises(ConfigError, match="a parameter"):
        params.format({name: 1})


def test_literal_reads_one_value():
    assert params.literal("[10, -1]") == [10, -1]
    with pytest.raises(ConfigError, match=r"character 1 \('abc'\)"):
        params.literal("abc")
