"""What a TRAIN does without being told: rows held back, how long, and what is refused at once."""

import contextlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edl_horovod.columns.summary import summarize
from edl_horovod.config.compose import compose
from edl_horovod.errors import DataError, JobFailed
from edl_horovod.sql.baselines import compare
from edl_horovod.sql.session import open_session
from tests.component.sql.sessions import run, settings_of
from tests.later import LATER

if LATER:
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.metrics import log_loss

ENGINES = ["sqlite", "postgresql"]


class Session:
    """A session whose jobs do not run, over a table `t` of some rows."""

    def __init__(self, database, folder, num_rows, *settings):
        rows = ", ".join(
            f"({n}, {n * 0.5}, 1, '{('yes', 'no')[n % 3 > 1]}')" for n in range(num_rows)
        )
        columns = "a INTEGER, b DOUBLE PRECISION, same INTEGER, class VARCHAR(9)"
        database.run(f"CREATE TABLE t ({columns})", f"INSERT INTO t VALUES {rows}")
        self.settings = settings_of(database.url, folder, *settings)
        self.messages = []
        self.config = None
        self.counts = []

    def run(self, text):
        with (
            open_session(self.settings, self._run_job, tell=self.messages.append) as session,
            contextlib.suppress(JobFailed),
        ):
            run(session, text)
        return self.config

    def _run_job(self, config):
        self.config = config
        folders = filter(None, (config.data, config.validation_data))
        self.counts = [
            sum(pq.read_metadata(file).num_rows for file in Path(folder).glob("*.parquet"))
            for folder in folders
        ]
        raise JobFailed("It is not run.")


@pytest.fixture
def session(request, tmp_path):
    def opened(num_rows, *settings, engine="sqlite"):
        database = request.getfixturevalue(engine)
        return Session(database, tmp_path, num_rows, *settings)

    return opened


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_a_tenth_is_held_back_and_the_training_stops_at_the_best(session, engine):
    opened = session(300, engine=engine)
    config = opened.run("SELECT a, b FROM t TRAIN regressor.DNN INTO m")
    learned, held_back = opened.counts
    assert learned + held_back == 300
    assert held_back == pytest.approx(30, abs=10)
    values = {"data": "d", "output": "o", "model_def": "m", "validation_data": "v"}
    assert config.train == compose("train", ["train=until_best"], values=values).train
    assert config.train.early_stopping.restore_best
    assert any("10,000 steps or 300 s" in sentence for sentence in opened.messages)


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_few_rows_are_all_learned_from_for_a_fixed_time(session, engine):
    opened = session(29, engine=engine)
    config = opened.run("SELECT a, b FROM t TRAIN regressor.DNN INTO m")
    assert (opened.counts, config.validation_data) == ([29], "")
    assert (config.train.max_steps, config.train.early_stopping.metric) == (300, "")
    assert any("too few" in sentence for sentence in opened.messages)
    opened.run("SELECT a, b FROM t TRAIN regressor.DNN WITH train.split='sequential' INTO m")
    assert opened.counts == [26, 3]


@pytest.mark.long
def test_what_the_user_says_counts(session):
    opened = session(300, "train.batch_size=10")
    text = "SELECT a, b FROM t TRAIN regressor.DNN WITH train.epochs=1{} INTO m"
    train = opened.run(text.format("")).train
    assert (train.epochs, train.max_steps, train.max_seconds, train.batch_size) == (1, 0, 0, 10)
    assert train.early_stopping.metric == "loss"
    train = opened.run(text.format(", train.split='none'")).train
    assert (train.epochs, train.max_steps, train.early_stopping.metric) == (1, 0, "")


@pytest.mark.long
def test_steps_are_larger_where_there_are_many_rows_or_ranks(session):
    numbers = "SELECT x.a + 300 * y.a AS a, x.b FROM t AS x, t AS y"
    opened = session(300)
    text = " TRAIN regressor.DNN {} LABEL a INTO m"
    assert opened.run(numbers + text.format("")).train.batch_size == 256
    ranks = "WITH engine.num_workers=50"
    assert opened.run("SELECT a, b FROM t" + text.format(ranks)).train.batch_size == 64


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_rows_that_teach_nothing_are_refused_before_the_job(session, engine):
    opened = session(40, engine=engine)
    for text in (
        "SELECT a, b FROM t LIMIT 1 TRAIN regressor.DNN LABEL b INTO m",
        "SELECT a, same FROM t TRAIN regressor.DNN LABEL same INTO m",
        "SELECT a, class FROM t WHERE class = 'yes' TRAIN classifier.DNN LABEL class INTO m",
    ):
        with pytest.raises(DataError, match=r"nothing|1 row"):
            opened.run(text)
        assert opened.config is None


@pytest.mark.long
def test_trials_on_few_rows_need_to_be_told_which_to_compare_on(session):
    opened = session(20)
    with pytest.raises(DataError, match="too few"):
        opened.run(
            "SELECT a, b FROM t TRAIN regressor.DNN WITH lr=HPARAM_CANDIDATES([1, 2]) INTO m"
        )


class Learned:
    """A table of which a model was trained, with its columns as arrays."""

    def __init__(self, folder, has_classes):
        random = np.random.default_rng(1)
        x, place = random.normal(size=600), random.integers(3, size=600)
        y = 2 * x + np.array([0, 5, -5])[place] + random.normal(size=600)
        label = np.digitize(y, [-3, 3]) if has_classes else y
        places = np.array(["north", "south", "west"])[place]
        names = ["training", "held"]
        for name, rows in zip(names, (slice(0, 400), slice(400, 600)), strict=True):
            (folder / name).mkdir()
            columns = {"x": x[rows], "place": places[rows].tolist(), "label": label[rows]}
            pq.write_table(pa.table(columns), folder / name / "0.parquet")
        block = {"x": x[:400], "label": label[:400]}
        block["place"] = np.array([place.encode() for place in places[:400].tolist()], object)
        summary = summarize(
            (), [block], label="label", has_classes=has_classes, kinds={}, tell=lambda _: None
        )
        self.adapted = {**summary.to_json(), "read": ["place", "x"]}
        hot = np.eye(3)[place]
        self.features = np.column_stack([(x - x[:400].mean()) / x[:400].std(), hot])
        self.label = label
        self.deviation = summary.label.deviation

    def compared(self, folder, metrics, is_linear=False):
        values = {"data": "d", "output": "o", "model_def": "m"}
        return compare(
            self.adapted,
            compose("train", values=values),
            metrics,
            is_linear=is_linear,
            training=folder / "training",
            held_back=folder / "held",
        )


def test_a_regressor_is_held_against_the_mean_and_ridge_regression(tmp_path):
    learned = Learned(tmp_path, has_classes=False)
    comparison = learned.compared(tmp_path, {"loss": 0.04, "absolute_error": 1.0})
    truth = learned.label[400:]
    ridge = Ridge(alpha=1.0).fit(learned.features[:400], learned.label[:400])
    errors = truth - ridge.predict(learned.features[400:])
    assert comparison.metrics["linear"]["rmse"] == pytest.approx(
        np.sqrt(np.mean(errors**2)), rel=0.01
    )
    mean = learned.label[:400].mean()
    expected = {"rmse": np.sqrt(np.mean((truth - mean) ** 2)), "absolute_error": None}
    expected["absolute_error"] = np.abs(truth - mean).mean()
    assert comparison.metrics["constant"] == pytest.approx(expected)
    of_model = {"rmse": 0.2 * learned.deviation, "absolute_error": 1.0}
    assert comparison.metrics["model"] == pytest.approx(of_model)
    assert not comparison.warning
    worse = learned.compared(tmp_path, {"loss": 2.0, "absolute_error": 9.0})
    assert "constant and" in worse.warning


def test_a_linear_model_is_held_against_a_constant_alone(tmp_path):
    learned = Learned(tmp_path, has_classes=False)
    between = {"loss": 0.5, "absolute_error": 9.0}
    assert "a linear model" in learned.compared(tmp_path, between).warning
    assert not learned.compared(tmp_path, between, is_linear=True).warning


def test_a_classifier_is_held_against_the_shares_and_logistic_regression(tmp_path):
    learned = Learned(tmp_path, has_classes=True)
    comparison = learned.compared(tmp_path, {"loss": 0.9, "accuracy": 0.5})
    truth = learned.label[400:]
    logistic = LogisticRegression(max_iter=1000).fit(learned.features[:400], learned.label[:400])
    likely = logistic.predict_proba(learned.features[400:])
    assert comparison.metrics["linear"] == pytest.approx(
        {"loss": log_loss(truth, likely), "accuracy": np.mean(likely.argmax(1) == truth)}, rel=0.02
    )
    commonest = np.bincount(learned.label[:400]).argmax()
    assert comparison.metrics["constant"]["accuracy"] == pytest.approx(np.mean(truth == commonest))
    assert "linear model" in comparison.warning


def test_a_model_with_numbers_of_a_kind_of_its_own_is_not_compared(tmp_path):
    learned = Learned(tmp_path, has_classes=True)
    assert learned.compared(tmp_path, {"loss": 0.9}) is None
    learned.adapted = {}
    assert learned.compared(tmp_path, {"loss": 0.9, "accuracy": 0.5}) is None
