"""What a statement asks of a job: label, parameters, settings, columns, and what is refused."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from edl_horovod.config.conf_files import zoo_dir
from edl_horovod.config.fields import settings
from edl_horovod.config.schema import JobConfig, SamplerConfig, SearchConfig
from edl_horovod.config.sweep import Search
from edl_horovod.sql.attributes import sort_attributes
from edl_horovod.sql.models import StoredModel
from edl_horovod.sql.parser import parse
from edl_horovod.sql.planning import check_kinds, plan_evaluation, plan_prediction, plan_training
from edl_horovod.sql.statements import StatementError
from tests.statement_errors import reason
from tests.stored_models import ABOUT

COLUMNS = ("name", "role", "salary")


def read(text):
    (statement,) = parse(text)
    return statement


def planned(clauses, columns=COLUMNS):
    statement = read(f"SELECT {', '.join(columns)} FROM t TRAIN {clauses} INTO m")
    return plan_training(statement, columns, zoo_dir())


STORED = StoredModel(name="m", version=3, is_live=True, folder=Path("/models/m/3"), about=ABOUT)


def test_the_reference_learns_its_last_column_and_says_so():
    plan = planned("regressor.DNN WITH hidden_units=[10, 100], learning_rate=0.01")
    assert plan.label == "salary"
    assert "'salary'" in plan.notes[0]
    assert plan.settings == {
        "params.hidden_units": [10, 100],
        "params.learning_rate": 0.01,
        "params.label": "salary",
        "model_def": "regressor.DNN",
    }


@pytest.mark.parametrize(
    ("clauses", "label"),
    # Without a name it is the last column that no clause reads.
    [("regressor.DNN LABEL role", "role"), ("regressor.DNN COLUMN salary, name", "role")],
)
def test_the_label_is_named_or_the_last_column_that_no_clause_reads(clauses, label):
    plan = planned(clauses)
    assert plan.label == label
    assert bool(plan.notes) == ("LABEL" not in clauses)


def test_attributes_become_parameters_and_settings():
    plan = planned(
        "regressor.DNN WITH model.hidden_units=[1], optimizer='adam', train.epochs=3, "
        "engine.num_workers=2, engine.elastic.max_np=4, engine.framework='torch', "
        "validation.steps=5, train.nulls={'role': 'none'}, train.class_weights='auto'"
    )
    assert plan.settings == {
        "params.hidden_units": [1],
        "params.label": "salary",
        "params.class_weights": "auto",
        "optimizer": "adam",
        "train.epochs": 3,
        "launch.np": 2,
        "elastic.max_np": 4,
        "framework": "torch",
        "train.evaluate_steps": 5,
        "model_def": "regressor.DNN",
    }
    assert plan.nulls == {"role": "none"}


def test_columns_become_plain_dicts():
    plan = planned(
        "regressor.DNN COLUMN name, NUMERIC(age, 2), BUCKET(NUMERIC(age), [18, 65]), "
        "EMBEDDING(CATEGORY_HASH(role, 100), 8, sum), INDICATOR(role) FOR deep "
        "COLUMN CROSS([role, CATEGORY_ID(age, 9)], 50) FOR wide LABEL salary",
        ("name", "role", "age", "salary"),
    )
    assert plan.settings["params.columns"] == [
        {"kind": "inferred", "name": "name", "for": "deep"},
        {"kind": "dense", "name": "age", "shape": 2, "for": "deep"},
        {"kind": "bucket", "name": "age", "borders": [18, 65], "for": "deep"},
        {
            "kind": "embedding",
            "of": {"kind": "category_hash", "name": "role", "num_buckets": 100},
            "dimension": 8,
            "combiner": "sum",
            "for": "deep",
        },
        {"kind": "indicator", "of": "role", "for": "deep"},
        {
            "kind": "cross",
            "of": ["role", {"kind": "category_id", "name": "age", "num_buckets": 9}],
            "num_buckets": 50,
            "for": "wide",
        },
    ]


def test_a_column_that_says_which_rows_are_held_back_is_not_learned_from():
    plan = planned(
        "regressor.DNN WITH train.split='column', train.split_column='late' LABEL salary",
        ("name", "late", "salary"),
    )
    assert plan.settings["data_plan.columns"] == ["name", "salary"]
    assert plan.split_in_words == "column late"


def test_a_share_of_rows_is_held_back():
    plan = planned("regressor.DNN WITH train.split='random', train.split_fraction=0.25")
    assert plan.split_in_words == "random: 25% held back"


HELD_BACK = "train.split='random'"


def test_an_attribute_with_several_values_is_no_setting_of_all_trials():
    plan = planned(
        "regressor.DNN WITH hidden_units=HPARAM_CANDIDATES([[10], [20, 5]]), "
        f"train.learning_rate=HPARAM_RANGE(0.001, 1, 'log'), train.epochs=2, {HELD_BACK}"
    )
    assert plan.settings == {
        "params.label": "salary",
        "train.epochs": 2,
        "model_def": "regressor.DNN",
    }
    assert plan.trials.config == SearchConfig()
    assert plan.trials.by_attribute({"params.hidden_units": "[10]"}) == {"hidden_units": "[10]"}


def test_candidates_alone_are_combined():
    plan = planned(
        "regressor.DNN WITH hidden_units=HPARAM_CANDIDATES([[10], [20, 5]]), "
        f"optimizer=HPARAM_CANDIDATES(['adam', 'a,b']), engine.num_workers=2, {HELD_BACK}"
    )
    points = plan.trials.points(["train.epochs=2"], plan.settings)
    assert [point.chosen for point in points] == [
        {"params.hidden_units": units, "optimizer": optimizer}
        for units in ("[10]", "[20, 5]")
        for optimizer in ("adam", "a,b")
    ]
    assert points[-1].overrides == ("train.epochs=2",)
    assert points[-1].values == {
        **plan.settings,
        "params.hidden_units": [20, 5],
        "optimizer": "a,b",
    }


def test_a_number_of_trials_or_a_range_is_a_search():
    plan = planned(
        "regressor.DNN WITH hidden_units=HPARAM_CANDIDATES([[10], None]), lr=HPARAM_RANGE(1, 9), "
        "train.learning_rate=HPARAM_RANGE(1, 2), sweep.num_trials=7, sweep.metric='mae', "
        f"sweep.direction='minimize', sweep.sampler='random', sweep.seed=3, {HELD_BACK}"
    )
    search = plan.trials.points([], plan.settings)
    assert isinstance(search, Search)
    sampler = SamplerConfig(name="random", seed=3)
    assert search.config == SearchConfig(metric="mae", n_trials=7, sampler=sampler)
    assert search.space["params.hidden_units"].names == ("[10]", "null")
    assert search.space["params.lr"].is_whole
    assert not search.space["train.learning_rate"].is_whole
    varied = {"params.lr": 4, "train.learning_rate": 1.5}
    point = search.point({**varied, "params.hidden_units": "null"})
    assert point.values == {**plan.settings, **varied, "params.hidden_units": None}
    few = planned(
        f"regressor.DNN WITH lr=HPARAM_CANDIDATES([1, 2]), sweep.num_trials=1, {HELD_BACK}"
    )
    assert isinstance(few.trials.points([], {}), Search)


@dataclass(frozen=True)
class Wrong:
    """Clauses that are refused, and a part of what is said."""

    clauses: str
    said: str


WRONG = [
    Wrong("regressor.DNX", "'regressor.DNN'"),
    Wrong('"/etc/passwd"', "model /etc/passwd"),
    Wrong("DNN", "'classifier.DNN' or 'regressor.DNN'"),
    Wrong("regressor.DNN WITH learning_rate=0", "above 0"),
    Wrong("regressor.DNN WITH lr='fast'", "above 0"),
    Wrong("regressor.DNN LABEL salari", "'salary'"),
    Wrong("regressor.DNN COLUMN rolle", "'role'"),
    Wrong("regressor.DNN COLUMN name LABEL name", "is the label"),
    Wrong("regressor.DNN WITH columns={'name': 1} COLUMN name LABEL salary", "and COLUMN"),
    Wrong("regressor.DNN COLUMN name, role, salary", "left as label"),
    Wrong("regressor.DNN WITH label='x'", "label and LABEL"),
    Wrong("regressor.DNN WITH lr=0.1, hiden_units=[3]", "'hidden_units'"),
    Wrong("regressor.wide_and_deep WITH wide_units=[3]", "parameter wide_units"),
    Wrong("regressor.DNN WITH train.epohs=1", "'train.epochs'"),
    Wrong("regressor.DNN WITH trein.epochs=1", "Attributes begin with"),
    Wrong("regressor.DNN WITH engine.model_zoo='/x'", "attribute engine.model_zoo"),
    Wrong("regressor.DNN WITH engine.num_worker=1", "'engine.num_workers'"),
    Wrong("regressor.DNN WITH predict.overwrite=True", "attribute predict.overwrite"),
    Wrong("regressor.DNN WITH a.b.c=1", "attribute a.b.c"),
    Wrong("regressor.DNN WITH model.a.b=1", "no dots"),
    Wrong("regressor.DNN WITH a=1, model.a=2", "model.a and a are names"),
    Wrong("regressor.DNN WITH train.nulls=3", "{dict}"),
    Wrong("regressor.DNN WITH train.split='key'", "need it"),
    Wrong("regressor.DNN WITH train.split='key', train.split_column='nme'", "'name'"),
    Wrong("regressor.DNN WITH train.split='random', train.validation_select='x'", "both choose"),
    Wrong("regressor.DNN WITH lr=HPARAM_RANGE(1, 2), train.split='none'", "compare the trials"),
    Wrong("regressor.DNN WITH lr=HPARAM_RANGE(1, 2), model.lr=2", "names of"),
    Wrong("regressor.DNN WITH hiden_units=HPARAM_CANDIDATES([1])", "'hidden_units'"),
    Wrong("regressor.DNN WITH label=HPARAM_CANDIDATES(['x'])", "label and LABEL"),
    Wrong("regressor.DNN WITH train.split=HPARAM_CANDIDATES(['random'])", "all trials"),
    Wrong("regressor.DNN WITH train.epohs=HPARAM_RANGE(1, 2)", "'train.epochs'"),
    Wrong("regressor.DNN WITH sweep.num_trials=3", "several values"),
    *(
        Wrong(f"regressor.DNN WITH {HELD_BACK}, {attributes}", said)
        for attributes, said in (
            ("optimizer=HPARAM_RANGE(1, 2)", "no number"),
            ("train.epochs=HPARAM_RANGE(1, 2.5)", "whole numbers"),
            ("lr=HPARAM_CANDIDATES([1, 1])", "candidate 1"),
            ("lr=HPARAM_CANDIDATES([None, 'null'])", "candidate null"),
            ("lr=HPARAM_CANDIDATES([1]), sweep.seed=1", "each combination"),
            ("lr=HPARAM_RANGE(1, 2), sweep.seed=-1", "must be 0 or more"),
            ("lr=HPARAM_RANGE(1, 2), sweep.num_trials=0", "must be 1 or more"),
            ("lr=HPARAM_RANGE(1, 2), sweep.num_trials=2.5", "whole number"),
            ("lr=HPARAM_RANGE(1, 2), sweep.num_trial=2", "'sweep.num_trials'"),
            ("lr=HPARAM_RANGE(1, 2), sweep.metric='mae'", "high or low"),
            ("lr=HPARAM_RANGE(1, 2), sweep.direction='minimise'", "'minimize'"),
            ("lr=HPARAM_RANGE(1, 2), sweep.sampler='grid'", "'grid'. Allowed: tpe, random"),
        )
    ),
    Wrong("regressor.DNN COLUMN SPARSE(name) LABEL salary", "SPARSE(column, number)"),
    Wrong("regressor.DNN COLUMN WEIGHTED_CATEGORY(name, 10)", "weights of"),
    Wrong("regressor.DNN COLUMN NUMERICAL(name)", "'NUMERIC'"),
    Wrong("regressor.DNN COLUMN NUMERIC(name, 1, 2)", "1 to 2"),
    Wrong("regressor.DNN COLUMN NUMERIC('name', 1)", "'name' is"),
    Wrong("regressor.DNN COLUMN t.name", "t.name has"),
]


@pytest.mark.long(after=1)
@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.clauses)
def test_what_cannot_be_is_refused_with_its_position(case):
    with pytest.raises(StatementError, match=r"line 1, column \d+") as caught:
        planned(case.clauses)
    assert case.said in reason(caught.value)


def test_a_prediction_takes_what_nulls_count_as_from_its_model():
    statement = read("SELECT name, role FROM t PREDICT t.c WITH predict.batch_size=8 USING m")
    plan = plan_prediction(statement, ("name", "role"), STORED)
    assert plan.settings == {"train.batch_size": 8}
    assert plan.nulls == {"role": "none"}


def test_a_permission_to_overwrite_says_what():
    statement = read("SELECT name, role FROM t PREDICT t.c WITH predict.overwrite=True USING m")
    with pytest.raises(StatementError, match=r"predict\.replace_values") as caught:
        plan_prediction(statement, ("name", "role"), STORED)
    assert "predict.replace_table" in str(caught.value)


def test_a_prediction_needs_the_columns_of_the_training_but_the_label():
    statement = read("SELECT name, rolle FROM t PREDICT t.c USING m")
    with pytest.raises(StatementError, match=r"'role'.*'rolle'"):
        plan_prediction(statement, ("name", "rolle"), STORED)


def test_an_evaluation_needs_the_label():
    statement = read("SELECT name, role FROM t EVALUATE m")
    with pytest.raises(StatementError, match="'salary'"):
        plan_evaluation(statement, ("name", "role"), STORED)
    other = read("SELECT name, role, salary FROM t EVALUATE m LABEL role")
    with pytest.raises(StatementError, match="'salary', not 'role'"):
        plan_evaluation(other, COLUMNS, STORED)


METRICS = ("rmse", "r2")


def measured(clauses):
    statement = read(f"SELECT * FROM t {clauses}")
    return plan_evaluation(statement, COLUMNS, STORED, metrics=METRICS)


def test_an_evaluation_gives_the_metrics_that_it_names():
    assert measured("EVALUATE m WITH validation.metrics='R2, rmse'").metrics == ("r2", "rmse")
    assert measured("EVALUATE m").metrics == ()


def test_a_misspelt_metric_is_refused_beside_a_right_one():
    with pytest.raises(StatementError, match=r"'rmes'(.|\n)*'rmse'"):
        measured("EVALUATE m WITH validation.metrics='r2,rmes'")
    # An explanation has none to name.
    with pytest.raises(StatementError, match=r"attribute validation\."):
        measured("EXPLAIN m WITH validation.metrics='r2'")


def test_another_kind_of_values_is_refused_but_whole_numbers_are_numbers():
    position = read("SELECT 1").position
    check_kinds(ABOUT, {"name": "text", "role": "text", "salary": "integer"}, position)
    with pytest.raises(StatementError, match=r"'role' .*integer"):
        check_kinds(ABOUT, {"name": "text", "role": "integer"}, position)


@dataclass(frozen=True)
class PermittedRow:
    names: tuple[str, ...]
    least: int | None
    most: int | None


def permitted_rows():
    """The table of the page that says what the clients of a service may set."""
    page = (Path(__file__).parents[3] / "docs" / "reference" / "sql.md").read_text()
    table = page.partition("| setting | values |\n|---|---|\n")[2].partition("\n\n")[0]
    for line in table.splitlines():
        names, values = line.strip("| ").split(" | ")
        bounds = re.match(r"([\d,]+) to ([\d,]+)", values)
        least, most = (
            (int(text.replace(",", "")) for text in bounds.groups()) if bounds else (None, None)
        )
        yield PermittedRow(tuple(re.findall(r"`([^`]+)`", names)), least, most)


def is_permitted(name, value):
    """Whether a client of a service may write an attribute."""
    written = f"{name}={value!r}"
    if name.startswith("sweep."):
        written += ", train.split='random', hidden_units=HPARAM_CANDIDATES([[1], [2]])"
    try:
        if name.startswith("predict."):
            statement = read(f"SELECT * FROM t PREDICT t.p WITH {written} USING m")
            plan_prediction(statement, COLUMNS, STORED, is_confined=True)
        elif name.startswith("validation.batch"):
            statement = read(f"SELECT * FROM t EVALUATE m WITH {written}")
            plan_evaluation(statement, COLUMNS, STORED, is_confined=True)
        else:
            statement = read(f"SELECT * FROM t TRAIN regressor.DNN WITH {written} INTO m")
            plan_training(statement, COLUMNS, zoo_dir(), is_confined=True)
    except StatementError:
        return False
    return True


@pytest.mark.long(after=1)
@pytest.mark.parametrize("row", list(permitted_rows()), ids=lambda row: row.names[0])
def test_clients_of_a_service_may_set_what_the_page_says_within_its_bounds(row):
    for name in row.names:
        if row.least is None:
            assert is_permitted(name, "a"), name
            continue
        values = (row.least - 1, row.least, row.most, row.most + 1, "a")
        permitted = [value for value in values if is_permitted(name, value)]
        assert permitted == [row.least, row.most], name


@pytest.mark.further
def test_clients_of_a_service_may_set_nothing_else_of_a_job():
    page = {name for row in permitted_rows() for name in row.names}
    keys = [setting.key for setting in settings(JobConfig)]
    names = [key for key in keys if key.startswith("train.")] + [f"engine.{key}" for key in keys]
    assert {name for name in names if is_permitted(name, 1)} == page.intersection(names)
    assert not is_permitted("engine.kubernetes.env.PATH", "a")
    assert not is_permitted("loss", "file.function")


def test_clients_of_a_service_start_no_grid_of_many_trials():
    def grid(num_values):
        values = list(range(1, num_values + 1))
        text = (
            f"WITH train.split='random', a=HPARAM_CANDIDATES({values}), b=HPARAM_CANDIDATES([1, 2])"
        )
        statement = read(f"SELECT * FROM t TRAIN regressor.DNN {text} INTO m")
        return sort_attributes(
            statement.attributes,
            prefixes=("model", "train"),
            option_types={"train.split": str},
            is_confined=True,
        )

    assert len(grid(50).varied) == 2
    with pytest.raises(StatementError):
        grid(51)
