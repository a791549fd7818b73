"""The forms of SQLFlow's statements, in words of our own, and what each means here."""

from dataclasses import dataclass, field

import pytest

from edl_horovod.config.conf_files import zoo_dir
from edl_horovod.sql.parser import parse
from edl_horovod.sql.planning import plan_training
from edl_horovod.sql.statements import StatementError
from tests.statement_errors import reason

COLUMNS = ("height", "width", "codes", "sizes", "kind")
NEW_MODEL = "INTO flowers.model"


def planned(clauses, into=NEW_MODEL):
    (statement,) = parse(f"SELECT * FROM flowers.seen TO TRAIN {clauses} {into}", "mysql")
    return plan_training(statement, COLUMNS, zoo_dir())


@dataclass(frozen=True)
class Form:
    """Clauses that are understood, and a part of what they say."""

    clauses: str
    model: str = "classifier.DNN"
    settings: dict = field(default_factory=dict)
    columns: list = field(default_factory=list)
    note: str = ""
    """A part of a sentence that the user is told."""


SEQUENCE = {"kind": "seq_category_id", "name": "codes", "num_buckets": 9}
WITH_COMMA = {**SEQUENCE, "separator": ","}
FORMS = [
    Form("DNNClassifier LABEL kind", note="DNNClassifier is classifier.DNN"),
    Form("sqlflow_models.DNNClassifier LABEL kind"),
    Form("DNNRegressor LABEL kind", "regressor.DNN"),
    Form(
        "DNNLinearCombinedClassifier WITH model.dnn_hidden_units=[4] LABEL kind",
        "classifier.wide_and_deep",
        {"params.hidden_units": [4]},
    ),
    Form("DNNLinearCombinedRegressor LABEL kind", "regressor.wide_and_deep"),
    Form("LinearClassifier LABEL kind", "classifier.Logistic"),
    Form("LinearRegressor LABEL kind", "regressor.Linear"),
    Form("DNNClassifier WITH model.n_classes=3 LABEL kind"),
    Form("DNNClassifier WITH n_classes=3, hidden_units=[8, 4] LABEL 'kind'"),
    Form("DNNClassifier WITH train.epoch=7 LABEL kind", settings={"train.epochs": 7}),
    Form("DNNClassifier WITH train.num_workers=2 LABEL kind", settings={"launch.np": 2}),
    Form(
        "DNNClassifier WITH train.save_checkpoints_steps=9 LABEL kind",
        settings={"checkpoint.every_steps": 9},
    ),
    Form("DNNClassifier WITH train.max_steps=9 LABEL kind", settings={"train.max_steps": 9}),
    Form("DNNClassifier WITH validation.steps=9", settings={"train.evaluate_steps": 9}),
    Form(
        "DNNClassifier WITH model.optimizer=RMSprop, optimizer.learning_rate=0.1 LABEL kind",
        settings={"optimizer": "RMSprop", "train.learning_rate": 0.1},
    ),
    Form(
        'DNNClassifier WITH train.optimizer="AdagradOptimizer" LABEL kind',
        settings={"optimizer": "Adagrad"},
    ),
    Form("DNNClassifier WITH train.verbose=1 LABEL kind", note="train.verbose has"),
    Form("DNNClassifier WITH train.num_ps=2 LABEL kind", note="servers"),
    Form("DNNClassifier WITH train.log_every_n_iter=5 LABEL kind", note="no effect"),
    Form("DNNClassifier WITH validation.throttle_secs=5 LABEL kind", note="no effect"),
    Form("DNNClassifier WITH validation.start_delay_secs=5 LABEL kind", note="no effect"),
    Form(
        'DNNClassifier WITH validation.metrics="Accuracy,AUC" LABEL kind', note="not Accuracy,AUC"
    ),
    Form(
        "DNNClassifier LABEL kind COLUMN height, width",
        columns=[{"kind": "inferred", "name": name} for name in ("height", "width")],
    ),
    Form(
        "DNNLinearCombinedClassifier COLUMN height FOR linear_feature_columns "
        "COLUMN width FOR dnn_feature_columns LABEL kind",
        "classifier.wide_and_deep",
        columns=[
            {"kind": "inferred", "name": "height", "for": "wide"},
            {"kind": "inferred", "name": "width", "for": "deep"},
        ],
    ),
    Form(
        "DNNRegressor COLUMN DENSE(height), NUMERIC(DENSE(width)) LABEL kind",
        "regressor.DNN",
        columns=[{"kind": "numeric", "name": name} for name in ("height", "width")],
    ),
    Form(
        "DNNClassifier COLUMN DENSE(sizes, 4, COMMA), DENSE(sizes, [4]), NUMERIC(DENSE(sizes, 4)),"
        " DENSE(sizes, 4, ';', float) LABEL kind",
        columns=[
            {"kind": "dense", "name": "sizes", "shape": 4, "separator": ","},
            {"kind": "dense", "name": "sizes", "shape": [4]},
            {"kind": "dense", "name": "sizes", "shape": 4},
            {"kind": "dense", "name": "sizes", "shape": 4, "separator": ";"},
        ],
    ),
    Form(
        "DNNClassifier COLUMN BUCKET(DENSE(height), [1, 2]) LABEL kind",
        columns=[{"kind": "bucket", "name": "height", "borders": [1, 2]}],
    ),
    Form(
        "DNNClassifier COLUMN SPARSE(codes, 9), NUMERIC(SPARSE(codes, 9, COMMA)), "
        "INDICATOR(SPARSE(codes, 9)) LABEL kind",
        columns=[
            {"kind": "indicator", "of": SEQUENCE},
            {"kind": "indicator", "of": WITH_COMMA},
            {"kind": "indicator", "of": SEQUENCE},
        ],
    ),
    Form(
        "DNNClassifier COLUMN EMBEDDING(SPARSE(codes, 9, COMMA, int), 4, sum), "
        "EMBEDDING(CATEGORY_ID(SPARSE(codes, 5, COMMA), 9), 4, 'sum'), "
        "EMBEDDING(CATEGORY_ID(codes, 9, COMMA), 4, sum), "
        "EMBEDDING(NUMERIC(SPARSE(codes, 9, COMMA)), 4, sum), "
        "EMBEDDING(SEQ_CATEGORY_ID(codes, 9, COMMA), 4, sum) LABEL kind",
        columns=[
            {"kind": "embedding", "of": WITH_COMMA, "dimension": 4, "combiner": "sum"}
            for _ in range(5)
        ],
    ),
    Form(
        "DNNClassifier COLUMN EMBEDDING(CROSS([height, width], 9), 4, 'sqrtn') LABEL kind",
        columns=[
            {
                "kind": "embedding",
                "of": {"kind": "cross", "of": ["height", "width"], "num_buckets": 9},
                "dimension": 4,
                "combiner": "sqrtn",
            }
        ],
    ),
]


@pytest.mark.long(after=1)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.clauses[:70])
def test_a_training_is_understood(form):
    plan = planned(form.clauses)
    expected = {"model_def": form.model, "params.label": "kind"} | form.settings
    if form.columns:
        expected["params.columns"] = form.columns
    assert {key: plan.settings.get(key) for key in expected} == expected
    assert form.note in " ".join(plan.notes)


def test_a_select_of_the_validation_is_the_one_of_the_training():
    plan = planned('DNNClassifier WITH validation.select="SELECT * FROM flowers.rest" LABEL kind')
    assert plan.validation_select == "SELECT * FROM flowers.rest"


def test_a_name_of_the_zoo_goes_before_a_name_of_sqlflow(tmp_path):
    (tmp_path / "own.py").write_text(
        "from edl_horovod import ElasticDLSpec\nclass DNNClassifier(ElasticDLSpec):\n"
        "    def create_model(self, n_classes): ...\n    def create_loss(self): ...\n"
        "    def create_dataset(self): ...\n    def create_optimizer(self): ...\n"
    )
    (statement,) = parse("SELECT 1 TO TRAIN own.DNNClassifier WITH n_classes=2 LABEL kind INTO m")
    plan = plan_training(statement, COLUMNS, tmp_path)
    assert plan.settings["model_def"] == "own.DNNClassifier"
    assert plan.settings["params.n_classes"] == 2


@dataclass(frozen=True)
class Refused:
    """Clauses that mean nothing here, and a part of what is said."""

    clauses: str
    said: str
    into: str = NEW_MODEL


REFUSED = [
    Refused('xgboost.gbtree WITH objective="reg:squarederror" LABEL kind', "regressor.DNN for a"),
    Refused("XGBoostEstimator LABEL kind", "decision trees"),
    Refused("BoostedTreesClassifier WITH model.center_bias=True LABEL kind", "decision trees"),
    Refused("RandomForests WITH model.tree_num=3 LABEL kind", "decision trees"),
    Refused("KMeans WITH model.excluded_columns='kind'", "without a label"),
    Refused("sqlflow_models.DeepEmbeddingClusterModel", "without a label"),
    Refused("sqlflow_models.OneClassSVM", "without a label"),
    Refused("sqlflow_models.StackedRNNClassifier LABEL kind", "model_zoo=FOLDER"),
    Refused("group/zoo:v1/DNNClassifier LABEL kind", "server or"),
    Refused("MyClassifier LABEL kind", "no model MyClassifier"),
    Refused("DNNRegressor WITH model.n_classes=3 LABEL kind", "predicts a number"),
    Refused("DNNClassifier WITH model.batch_norm=True LABEL kind", "no such layers"),
    Refused("DNNRegressor WITH model.label_dimension=1 LABEL kind", "one number"),
    Refused("LinearClassifier WITH hidden_units=[3] LABEL kind", "parameter hidden_units"),
    Refused("DNNLinearCombinedClassifier WITH model.dnn_optimizer=Adam", "both parts"),
    Refused("DNNClassifier WITH train.epoch=1, train.epochs=2 LABEL kind", "set twice,"),
    Refused("DNNClassifier WITH hidden_layers=[3] LABEL kind", "Did you mean 'hidden_units'"),
    Refused("DNNClassifier WITH engine.ps_num=1 LABEL kind", "attribute engine.ps_num"),
    Refused("DNNClassifier WITH a=1 b=2 LABEL kind", "instead of b"),
    Refused("DNNClassifier WITH a=word LABEL kind", "'word'"),
    Refused("DNNClassifier COLUMN * LABEL kind", "A column,"),
    Refused("DNNClassifier COLUMN norm(height) LABEL kind", "function norm"),
    Refused("DNNClassifier COLUMN BUCKET(height, 100) LABEL kind", "borders must"),
    Refused("DNNClassifier COLUMN BUCKET(DENSE(sizes, 4), 100) LABEL kind", "DENSE is"),
    Refused("DNNClassifier COLUMN EMBEDDING(DENSE(sizes, 4), 8) LABEL kind", "no categories"),
    Refused("DNNClassifier COLUMN SPARSE(codes) LABEL kind", "SPARSE(column, number)"),
    Refused('DNNClassifier COLUMN INDICATOR(CATEGORY_ID("h|w", 9)) LABEL kind', "'h|w' is"),
    Refused(
        'DNNClassifier COLUMN WEIGHTED_CATEGORY(CATEGORY_HASH(SPARSE(codes, 9, ",", "int", ":"),'
        " 9)) LABEL kind",
        "weights of",
    ),
    Refused("DNNClassifier LABEL kind", "INTO is missing", into=""),
]


@pytest.mark.long(after=1)
@pytest.mark.parametrize("form", REFUSED, ids=lambda form: form.clauses[:70])
def test_what_means_nothing_here_is_refused_with_a_reason(form):
    with pytest.raises(StatementError) as caught:
        planned(form.clauses, form.into)
    assert form.said in reason(caught.value)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("EXPLAIN m USING OtherExplainer", "no explainer"),
        ("PREDICT t.c USING host:5000/m:v1", "a server"),
        ("EVALUATE m WITH label_col=a LABEL b", "both name"),
        ("RUN group/image:v1 CMD 'x'", "other programs"),
        ("MAXIMIZE SUM(a * b) WITH variables='a'", "linear programs"),
    ],
)
def test_other_statements_are_refused_with_a_reason(statement, said):
    with pytest.raises(StatementError) as caught:
        parse(f"SELECT * FROM t TO {statement}", "mysql")
    assert said in reason(caught.value)
