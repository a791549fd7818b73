"""Statements that must be understood, and those that must be refused with their position."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_horovod.sql.parser import parse
from edl_horovod.sql.statements import (
    ColumnCall,
    HparamCandidates,
    HparamRange,
    Literal,
    Name,
    Predict,
    Standard,
    StatementError,
    Train,
)
from tests.fuzz_statements import DIALECTS, STATEMENTS, fuzz
from tests.statement_errors import reason

TRAINED = """SELECT name, role, salary FROM employee
TRAIN regressor.DNN
WITH hidden_units=[10, 100, 20, 5], learning_rate=0.01
INTO my_trained_model;"""
PREDICTED = """SELECT name, role FROM testdata
PREDICT testdata.predicted_salary
USING my_trained_model;"""


def read(text, dialect="sqlite"):
    (statement,) = parse(text, dialect)
    return statement


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_statements_of_the_reference_are_understood(dialect):
    statement = read(TRAINED, dialect)
    assert isinstance(statement, Train)
    assert statement.select == "SELECT name, role, salary FROM employee"
    assert str(statement.model) == "regressor.DNN"
    assert statement.values() == {"hidden_units": [10, 100, 20, 5], "learning_rate": 0.01}
    assert str(statement.into) == "my_trained_model"
    assert statement.columns == ()
    assert statement.label is None
    statement = read(PREDICTED, dialect)
    assert isinstance(statement, Predict)
    assert statement.select == "SELECT name, role FROM testdata"
    assert statement.target.parts == ("testdata", "predicted_salary")
    assert str(statement.using) == "my_trained_model"


@pytest.mark.parametrize("verb", ["TRAIN", "TO TRAIN", "to train"])
def test_all_clauses_of_a_training_are_understood(verb):
    statement = read(
        f'SELECT * FROM t {verb} ElasticDLKerasClassifier WITH model.optimizer="optimizer", '
        "engine.num_workers=2 COLUMN c1, NUMERIC(c2, 10), BUCKET(c3,[0,10,100]) "
        "LABEL c5 USING old@3 INTO m;"
    )
    assert statement.values() == {"model.optimizer": "optimizer", "engine.num_workers": 2}
    first, number, bucket = statement.columns[0].terms
    assert isinstance(first, Name)
    assert (number.function, str(number.arguments[0])) == ("NUMERIC", "c2")
    assert bucket.arguments[1].value == [0, 10, 100]
    assert (str(statement.label), str(statement.using), str(statement.into)) == ("c5", "old@3", "m")


def test_columns_may_have_the_names_of_clauses():
    clauses = "WITH label=1, column.with=2 COLUMN label, column LABEL label"
    statement = read(f"SELECT * FROM t TRAIN w {clauses} INTO m")
    assert statement.values() == {"label": 1, "column.with": 2}
    assert [str(term) for term in statement.columns[0].terms] == ["label", "column"]
    assert str(statement.label) == "label"


def test_columns_go_to_parts_of_the_model():
    clauses = read(
        "SELECT * FROM t TO TRAIN w COLUMN a FOR deep COLUMN b, c FOR wide INTO m"
    ).columns
    assert [(clause.part, len(clause.terms)) for clause in clauses] == [("deep", 1), ("wide", 2)]


def test_columns_within_lists_and_functions_are_understood():
    statement = read(
        "SELECT 1 TO TRAIN w COLUMN EMBEDDING(CROSS([a, \"b c\"], 10), 8, 'sum') INTO m"
    )
    (embedding,) = statement.columns[0].terms
    cross, size, combiner = embedding.arguments
    assert (size.value, combiner.value) == (8, "sum")
    assert isinstance(cross, ColumnCall)
    assert [str(column) for column in cross.arguments[0].arguments] == ["a", "b c"]
    assert isinstance(size, Literal)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_literals_keep_value_and_type(dialect):
    for text, value in (
        ("[[1, 2], ['a', \"b\"]]", [[1, 2], ["a", "b"]]),
        ("'it''s, [not] a list'", "it's, [not] a list"),
        ("-1.5e-3", -0.0015),
        ("+.5", 0.5),
        ("10.", 10.0),
        ("1_000", 1000),
        ("[True, false, None, NULL]", [True, False, None, None]),
        ("{'a': {'b': [1]}, 2: -3,}", {"a": {"b": [1]}, 2: -3}),
        ("[]", []),
    ):
        values = read(f"SELECT 1 TO TRAIN x WITH a={text}, b=2 INTO m", dialect).values()
        assert values == {"a": value, "b": 2}
        assert repr(values["a"]) == repr(value)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_attribute_of_a_training_may_have_several_values(dialect):
    texts = {
        "a": "HPARAM_RANGE(1, 8)",
        "b": "hparam_range( -.5, 1e-1 )",
        "c": "HPARAM_RANGE(0.001, 0.1, 'log')",
        "d": "HPARAM_CANDIDATES([[10], 'f(1)', None])",
    }
    attributes = ", ".join(f"{name}={text}" for name, text in texts.items())
    statement = read(f"SELECT 1 TO TRAIN x WITH {attributes}, e=[1, 2] INTO m", dialect)
    assert statement.values() == {
        "a": HparamRange(low=1, high=8, is_log=False, written=texts["a"]),
        "b": HparamRange(low=-0.5, high=0.1, is_log=False, written=texts["b"]),
        "c": HparamRange(low=0.001, high=0.1, is_log=True, written=texts["c"]),
        "d": HparamCandidates(values=([10], "f(1)", None), written=texts["d"]),
        "e": [1, 2],
    }


@pytest.mark.parametrize(
    "select",
    [
        "SELECT a.x, b.y FROM a JOIN b USING (id)",
        "SELECT (SELECT max(x) FROM t) AS m FROM t AS u",
        "WITH c AS (SELECT 1 AS train) SELECT train FROM c",
        "SELECT 'TO TRAIN x INTO y' FROM t WHERE a = 'x TRAIN y' /* TRAIN z INTO q */ LIMIT 3",
        "SELECT train, label, predict FROM t WHERE train > 1 -- TO TRAIN x\nLIMIT 5",
        "SELECT t.train FROM t train LEFT JOIN label predict ON train.a = predict.b",
        "SELECT train x, y AS predict FROM train t, predict p",
        'SELECT "train" FROM "to" ORDER BY train DESC',
        "SELECT [1, 2] FROM t",
        "(SELECT a FROM t) UNION ALL SELECT b FROM u LIMIT 5",
    ],
)
def test_the_select_is_kept_letter_for_letter(select):
    assert read(select) == Standard(text=select, position=read(select).position)
    statement = read(f"{select}\nTRAIN regressor.DNN LABEL train INTO train;")
    assert (statement.select, str(statement.label)) == (select, "train")


def test_statements_follow_one_another():
    program = f"""create table t(a);;
    insert into t values (';');
    {TRAINED} {PREDICTED}
    select a from t to evaluate m with validation.metrics='Accuracy,AUC' label y into r;
    select a from t explain m; select a from t predict using m;
    show train m; show models; describe model m@3; desc model m; drop model if exists m;
    show jobs; kill 12; vacuum; alter model m@2 set live; alter table t add b;
    show log m; show trials m@1; select y, p from t evaluate label y using p into r;
    select y from t evaluate label into r; select y from t evaluate label label y"""
    assert [type(statement).__name__ for statement in parse(program)] == [
        *("Standard", "Standard", "Train", "Predict", "Evaluate", "Explain", "Predict"),
        *("ShowTrain", "ShowModels", "DescribeModel", "DescribeModel", "DropModel", "ShowJobs"),
        *("Kill", "Standard", "AlterModel", "Standard", "ShowLog", "ShowTrials"),
        *("EvaluateColumns", "Evaluate", "Evaluate"),
    ]


def test_an_engine_keeps_what_it_shows_itself():
    assert isinstance(read("SHOW TABLES", "mysql"), Standard)


TRIGGER = "CREATE TRIGGER g AFTER INSERT ON t BEGIN UPDATE t SET a=1; SELECT 2; END"
PROCEDURE = "CREATE OR REPLACE DEFINER = `a`@`b` PROCEDURE p(a INT) BEGIN"


@pytest.mark.parametrize(
    ("create", "dialect"),
    [
        (TRIGGER, "sqlite"),
        (f"{PROCEDURE} IF a THEN SELECT 1; ELSE SELECT 2; END IF; SELECT 3; END", "mysql"),
        (f"{PROCEDURE} CASE a WHEN 1 THEN SELECT 1; END CASE; SELECT 3; END", "mysql"),
        (
            f"{PROCEDURE} WHILE a DO SELECT 1; END WHILE; REPEAT SELECT 2; UNTIL a END REPEAT;"
            " SELECT 3; END",
            "mysql",
        ),
        (
            f"{PROCEDURE} LOOP BEGIN SELECT CASE a WHEN 1 THEN 2 END; END; END LOOP; SELECT 3; END",
            "mysql",
        ),
        # BEGIN opens a body only where there may be one.
        ("CREATE TABLE event (id INTEGER, begin INTEGER)", "sqlite"),
        ("CREATE TABLE IF NOT EXISTS function AS SELECT begin FROM t", "sqlite"),
        ("CREATE UNIQUE INDEX trigger ON t (begin)", "sqlite"),
        ("CREATE FUNCTION f(begin INTEGER) RETURNS INTEGER RETURN 1", "sqlite"),
    ],
)
def test_what_is_created_with_or_without_a_body_is_one_statement(create, dialect):
    texts = [statement.text for statement in parse(f"{create}; SELECT 4", dialect)]
    assert texts == [create, "SELECT 4"]


@pytest.mark.parametrize("text", ["", "  \n", ";;", "-- nothing\n"])
def test_a_program_may_be_empty(text):
    assert parse(text) == ()


def test_a_replacement_and_a_new_model_are_told_apart():
    assert read("SELECT 1 TO TRAIN x INTO OR REPLACE m").or_replace
    assert read("SELECT 1 TO TRAIN x INTO IF NOT EXISTS m").if_not_exists


@dataclass(frozen=True)
class Wrong:
    """A text that is refused, the position, and a part of the message."""

    text: str
    position: tuple[int, int]
    said: str


WRONG = [
    Wrong("SELECT a FROM t\nTRAIN regressor.DNN", (2, 20), "INTO is missing"),
    Wrong("SELECT a FROM t\nTRAIN x WIXTH a=1 INTO m", (2, 9), "'WITH'"),
    Wrong("SELECT a FROM t PREDICT t.c", (1, 28), "USING is missing"),
    Wrong("SELECT 1 TO TRAIN x WITH a=1,\n a=2 INTO m", (2, 2), "also set on line 1"),
    Wrong("SELECT 1 TO TRAIN x LABEL y WITH a=1 INTO m", (1, 29), "each clause"),
    Wrong("SELECT 1 TO TRAIN x INTO m INTO n", (1, 28), "not expected"),
    Wrong("SELECT 1 TO TRAIN x WITH a=f(1) INTO m", (1, 28), "such as f("),
    Wrong("SELECT 1 TO TRAIN x WITH a=HPARAM(1, 2) INTO m", (1, 28), "as HPARAM(...)"),
    Wrong("SELECT 1 TO TRAIN x WITH a=[HPARAM_RANGE(1, 2)] INTO m", (1, 29), "a call"),
    Wrong("SELECT 1 PREDICT USING m WITH a=HPARAM_RANGE(1, 2)", (1, 26), "not expected"),
    Wrong("SELECT 1 PREDICT t.c WITH a=HPARAM_RANGE(1, 2) USING m", (1, 29), "a call"),
    Wrong("SELECT 1 TO TRAIN x WITH a=HPARAM_RANGE INTO m", (1, 28), "not a value"),
    Wrong("SELECT 1 TO TRAIN x WITH a=HPARAM_RANGE(1) INTO m", (1, 42), "the upper bound"),
    Wrong("SELECT 1 TO TRAIN x WITH a=HPARAM_RANGE(True, 2) INTO m", (1, 41), "is a number"),
    Wrong("SELECT 1 TO TRAIN x WITH a=HPARAM_RANGE(1, '2') INTO m", (1, 44), "is a number"),
    Wrong("SELECT 1 TO TRAIN x WITH a=HPARAM_RANGE(2, 1) INTO m", (1, 28), "not below"),
    Wrong("SELECT 1 TO TRAIN x WITH a=HPARAM_RANGE(0, 1, 'log') INTO m", (1, 28), "above 0"),
    Wrong("SELECT 1 TO TRAIN x WITH a=HPARAM_RANGE(1, 2, 'lin') INTO m", (1, 47), "Only 'log'"),
    Wrong(
        "SELECT 1 TO TRAIN x WITH a=HPARAM_RANGE(1, 2, 'log', 3) INTO m", (1, 52), ") is missing"
    ),
    Wrong("SELECT 1 TO TRAIN x WITH a=HPARAM_CANDIDATES(1, 2) INTO m", (1, 46), "a list"),
    Wrong("SELECT 1 TO TRAIN x WITH a=HPARAM_CANDIDATES([]) INTO m", (1, 46), "a list"),
    Wrong("SELECT 1 TO TRAIN x WITH a=HPARAM_CANDIDATES([f(1)]) INTO m", (1, 47), "such as f("),
    Wrong("SELECT 1 TO TRAIN x WITH a=HPARAM_CANDIDATES([1], [2]) INTO m", (1, 49), ") is missing"),
    Wrong("SELECT 1 TO TRAIN x WITH a=adam INTO m", (1, 28), "'adam'"),
    Wrong("SELECT 1 TO TRAIN x WITH a=(1) INTO m", (1, 28), "in [ ]"),
    Wrong("SELECT 1 TO TRAIN x WITH a=[1 INTO m", (1, 28), "The [ is"),
    Wrong("SELECT 1 TO TRAIN x WITH a=[1 2] INTO m", (1, 31), "comma or ]"),
    Wrong("SELECT 1 TO TRAIN x WITH a={[1]: 2} INTO m", (1, 29), "A key"),
    Wrong("SELECT 1 TO TRAIN x WITH a={1: 2, 1: 3} INTO m", (1, 35), "key 1"),
    Wrong("SELECT 1 TO TRAIN x WITH a=1e999 INTO m", (1, 28), "too large"),
    Wrong("SELECT 1 TO TRAIN x WITH a=12abc INTO m", (1, 28), "not a number"),
    Wrong("SELECT 1 TO TRAIN x WITH a INTO m", (1, 28), "= is missing after a"),
    Wrong("SELECT 1 TO TRAIN x WITH a= INTO m", (1, 29), "word INTO"),
    Wrong("SELECT 1 TO TRAIN x LABEL INTO m", (1, 27), "A column"),
    Wrong("SELECT 1 TO TRAIN", (1, 18), "as regressor.DNN"),
    Wrong("SELECT 1 FROM t TRAIN WITH a=1 INTO m", (1, 23), "model of the zoo"),
    Wrong("SELECT 1 TO TRAIN x INTO m@3", (1, 26), "a version"),
    Wrong("SELECT 1 TO TRAIN x INTO 'a/b'", (1, 26), "cannot name"),
    Wrong("SELECT 1 TO TRAIN x INTO '..'", (1, 26), "cannot name"),
    Wrong("SELECT 1 TO TRAIN x INTO OR REPLACE IF NOT EXISTS m", (1, 21), "exclude"),
    Wrong("SELECT 1 TO PREDICT USING m@0", (1, 29), "0 is not"),
    Wrong("SELECT 1 TO RUN image CMD 'x'", (1, 13), "other programs"),
    Wrong("SELECT 1 TO MAXIMIZE x", (1, 13), "MAXIMIZE is"),
    Wrong("SELECT 1 TO MINIMIZE x", (1, 13), "MINIMIZE is"),
    Wrong("TRAIN x INTO m", (1, 1), "no SELECT"),
    Wrong("SHOW TRAIN", (1, 11), "trained model"),
    Wrong("ALTER MODEL m SET LIVE", (1, 13), "a version"),
    Wrong("ALTER MODEL m@1 SET", (1, 17), "SET LIVE"),
    Wrong("DROP MODEL m, n", (1, 13), ", is not"),
    Wrong("KILL x", (1, 6), "SHOW JOBS"),
    Wrong("SHOW MODELZ", (1, 1), "'SHOW MODELS'"),
    Wrong("SELECT 'a\nFROM t", (1, 8), "quote or"),
    Wrong("SELECT 1 /* a", (1, 10), "quote or"),
    Wrong("SELECT (1\nFROM t", (1, 8), "The ( is"),
    Wrong("SELECT 1)", (1, 9), "matching ("),
    Wrong(f"SELECT 1 TO TRAIN x WITH a={'[' * 90}{']' * 90} INTO m", (1, 79), "nested"),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.text[:50])
def test_what_is_wrong_is_shown_with_its_position(case):
    with pytest.raises(StatementError) as caught:
        parse(case.text)
    position = caught.value.position
    assert (position.line, position.column) == case.position
    assert case.said in reason(caught.value)
    line, caret = str(caught.value).splitlines()[-2:]
    assert caret.strip() == "^"
    assert line.strip() in case.text


def test_an_error_shows_no_password():
    with pytest.raises(StatementError) as caught:
        parse("SELECT 'postgresql://me:hidden@host/db' TO TRAIN x")
    assert "hidden" not in str(caught.value)


literals = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.integers() | st.text(st.sampled_from("ab'\",")), inner, max_size=3)
    ),
    max_leaves=8,
)


def written(value):
    """A literal as SQL writes it."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        pairs = (f"{written(key)}: {written(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    return repr(value)


@given(literals)
def test_any_literal_comes_back_as_it_was_written(value):
    values = read(f"SELECT 1 TO TRAIN x WITH a={written(value)} INTO m").values()
    assert repr(values["a"]) == repr(value)


def is_read(text, dialect):
    """Whether a text is understood; any error but ours is the test's."""
    try:
        parse(text, dialect)
    except StatementError as e:
        return 0 <= e.position.offset <= len(text)
    return True


@given(st.text(), st.sampled_from(DIALECTS))
def test_any_text_is_understood_or_refused(text, dialect):
    assert is_read(text, dialect)


@given(st.lists(st.sampled_from(STATEMENTS), max_size=4), st.integers(0, 600))
def test_any_beginning_of_a_program_is_understood_or_refused(statements, length):
    assert is_read("\n".join(statements)[:length], "sqlite")


def test_mutated_statements_are_understood_or_refused():
    num_read, num_understood = fuzz(2.0, seed=1)
    assert num_read > 100
    assert num_understood > 0


def test_a_target_is_folded_as_postgresql_does_but_in_quotes():
    (statement,) = parse('SELECT a FROM t PREDICT Sales."Emp".Score USING m', "postgres")
    assert statement.target.parts == ("Sales", "Emp", "Score")
    assert statement.target.folded == ("sales", "Emp", "score")
