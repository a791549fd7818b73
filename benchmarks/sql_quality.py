"""`python -m benchmarks.sql_quality`: errors of TRAIN with defaults beside those of scikit-learn.

The data sets are those that packages ship: pip install scikit-learn statsmodels vega_datasets.
"""

import argparse
import importlib.util
import multiprocessing
import sqlite3
import statistics
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import edl_horovod
from benchmarks.report import look_around
from edl_horovod import trained_model
from edl_horovod.columns.summary import arrays_of
from edl_horovod.files.whole_file import write_text

TUNED = """hidden_units=HPARAM_CANDIDATES([[10], [64, 32]]),
    learning_rate=HPARAM_CANDIDATES([0.003, 0.01])"""
HELD_OUT = 0.25
WORST_RATIO, WORST_LOSS = 1.03, 0.01
"""How far the defaults may be above a linear model's error, and below its accuracy."""
SIDES = ("default", "tuned", "linear", "boosting")


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A table that a package ships."""

    name: str
    package: str
    load: Callable[[], Any]
    """Gives a pandas.DataFrame."""
    label: str
    has_classes: bool = False


def _of_sklearn(name: str, *, has_classes: bool = True) -> DataSet:
    def load() -> Any:
        from sklearn import datasets

        bunch = getattr(datasets, f"load_{name}")(as_frame=True)
        frame = bunch.frame.rename(columns=lambda column: column.replace(" ", "_"))
        return frame.rename(columns={"target": "label"})

    return DataSet(name=name, package="sklearn", load=load, label="label", has_classes=has_classes)


def _of_statsmodels(name: str, label: str) -> DataSet:
    def load() -> Any:
        from statsmodels import datasets

        return getattr(datasets, name).load_pandas().data

    return DataSet(name=name, package="statsmodels", load=load, label=label)


def _of_vega(name: str, load_name: str, label: str, *, has_classes: bool = False) -> DataSet:
    def load() -> Any:
        from vega_datasets import data

        frame = getattr(data, load_name)().dropna().reset_index(drop=True)
        return frame.drop(columns=["Name"], errors="ignore")

    return DataSet(
        name=name, package="vega_datasets", load=load, label=label, has_classes=has_classes
    )


DATA_SETS = (
    _of_sklearn("diabetes", has_classes=False),
    _of_sklearn("wine"),
    _of_sklearn("iris"),
    _of_sklearn("breast_cancer"),
    _of_sklearn("digits"),
    _of_vega("cars", "cars", "Miles_per_Gallon"),
    _of_statsmodels("star98", "NABOVE"),
    _of_statsmodels("randhie", "mdvis"),
    _of_statsmodels("fair", "affairs"),
    _of_vega("weather", "seattle_weather", "weather", has_classes=True),
)


def main() -> int:
    """Measure what was asked for; returns 1 where a default misses its target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sql_quality", description=__doc__)
    names = [each.name for each in DATA_SETS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--splits", type=int, default=10, help="seeded splits, whose mean counts")
    parser.add_argument("--tuned-splits", type=int, default=1, help="of these, how many are tuned")
    parser.add_argument("--processes", type=int, default=1, help="splits at the same time")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table as Markdown")
    args = parser.parse_args()
    surroundings = look_around()
    lines, is_reached = [], True
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.processes, mp_context=context) as pool:
        running = {}
        for data in DATA_SETS:
            needed = {"scikit-learn": "sklearn", "pandas": "pandas", data.package: data.package}
            missing = [name for name, it in needed.items() if not importlib.util.find_spec(it)]
            if data.name in args.only and missing:
                print(f"{data.name} is left out: pip install {' '.join(missing)}", file=sys.stderr)
            elif data.name in args.only:
                seeds = range(args.splits)
                running[data] = [
                    pool.submit(measure, data.name, seed, seed < args.tuned_splits)
                    for seed in seeds
                ]
        for data, splits in running.items():
            results = [split.result() for split in splits]
            found = {side: [it[side] for it in results if side in it] for side in SIDES}
            is_good = _is_reached(data, found)
            is_reached = is_reached and is_good
            lines.append(_line(data, found, is_good=is_good))
    table = "\n".join([*_header(), *lines])
    print(table)
    if args.write is not None:
        where = f"{surroundings.machine}; commit {surroundings.commit}, {surroundings.date}"
        write_text(args.write, _page(table, where, args.splits, args.tuned_splits))
    return int(not is_reached)


def measure(name: str, seed: int, is_tuned: bool) -> dict[str, float]:
    """RMSE or accuracy of each side on the quarter of the rows that a split holds out.

    Args:
        name: Of the data set.
        seed: Of the split.
        is_tuned: Whether a model is tuned, too.
    """
    (data,) = (each for each in DATA_SETS if each.name == name)
    frame = data.load()
    order = np.random.RandomState(seed).permutation(len(frame))
    num_test = int(HELD_OUT * len(frame))
    test, training = frame.iloc[order[:num_test]], frame.iloc[order[num_test:]]
    predicted = {"default": _of_statement(data, training, test)}
    if is_tuned:
        predicted["tuned"] = _of_statement(data, training, test, attributes=TUNED)
    for side, model in _models(data).items():
        model.fit(_numbers(frame, training, data), training[data.label])
        predicted[side] = model.predict(_numbers(frame, test, data))
    truth = test[data.label].to_numpy()
    found = {
        side: float(np.mean(values.astype(str) == truth.astype(str)))
        if data.has_classes
        else float(np.sqrt(np.mean(np.square(values - truth))))
        for side, values in predicted.items()
    }
    print(name, seed, found, file=sys.stderr)
    return found


def _of_statement(data: DataSet, training: Any, test: Any, *, attributes: str = "") -> Any:
    """Train on some rows by a statement, and predict others by what it trained."""
    dates = {name: "DATE" for name in training if training[name].dtype.kind == "M"}
    with tempfile.TemporaryDirectory(prefix="edl-quality-") as folder:
        file = Path(folder) / "data.db"
        texts = {name: training[name].dt.strftime("%Y-%m-%d") for name in dates}
        with closing(sqlite3.connect(file)) as connection, connection:
            training.assign(**texts).to_sql("training", connection, index=False, dtype=dates)
        kind = "classifier" if data.has_classes else "regressor"
        written = f"WITH {attributes}" if attributes else ""
        edl_horovod.sql(
            f"SELECT * FROM training TRAIN {kind}.DNN {written} LABEL {data.label} INTO m",
            db=f"sqlite:///{file}",
            models=Path(folder) / "models",
        )
        return _predict(Path(folder) / "models" / "m" / "1" / "model", test)


def _predict(trained: Path, test: Any) -> Any:
    """What PREDICT would give, without another job for it."""
    import keras

    files = trained_model.read(trained)
    spec = trained_model.load_spec(files).spec
    cells = {
        column.name: np.array([value.encode() for value in test[column.name]], object)
        if column.kind == "text"
        else test[column.name].to_numpy()
        for column in spec.features.columns
    }
    features = spec.features.encode(arrays_of(cells, spec.features.columns))
    outputs = keras.models.load_model(trained / "model.keras", compile=False)(features)
    if spec.summary.classes is None:
        return outputs["prediction"].numpy()
    return np.array([str(value) for value in spec.summary.classes.values])[outputs["class"]]


def _models(data: DataSet) -> dict[str, Any]:
    from sklearn import ensemble, linear_model, pipeline, preprocessing

    if data.has_classes:
        linear = linear_model.LogisticRegression(max_iter=2000)
        boosting = ensemble.HistGradientBoostingClassifier(random_state=0)
    else:
        linear = linear_model.LinearRegression()
        boosting = ensemble.HistGradientBoostingRegressor(random_state=0)
    scaled = pipeline.make_pipeline(preprocessing.StandardScaler(), linear)
    return {"linear": scaled, "boosting": boosting}


def _numbers(frame: Any, rows: Any, data: DataSet) -> Any:
    """The columns as scikit-learn takes them: a number for each category and part of a date."""
    import pandas as pd

    found = {}
    for name in frame.columns.drop(data.label):
        column = rows[name]
        if frame[name].dtype.kind == "M":
            found[f"{name}.year"] = column.dt.year
            for part in ("month", "weekday"):
                for value in sorted(getattr(frame[name].dt, part).unique()):
                    found[f"{name}.{part}.{value}"] = getattr(column.dt, part) == value
        elif pd.api.types.is_numeric_dtype(frame[name]):
            found[name] = column
        else:
            for value in sorted(frame[name].unique()):
                found[f"{name}.{value}"] = column == value
    return pd.DataFrame(found).astype(float).to_numpy()


def _is_reached(data: DataSet, found: dict[str, list[float]]) -> bool:
    default, linear = (statistics.fmean(found[side]) for side in ("default", "linear"))
    return default >= linear - WORST_LOSS if data.has_classes else default <= WORST_RATIO * linear


def _header() -> list[str]:
    names = ("data set", "metric", *SIDES, "target")
    return [f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]


def _line(data: DataSet, found: dict[str, list[float]], *, is_good: bool) -> str:
    shown = [f"{statistics.fmean(found[side]):.4g}" if found[side] else "" for side in SIDES]
    metric = "accuracy" if data.has_classes else "RMSE"
    return f"| {' | '.join([data.name, metric, *shown, 'reached' if is_good else 'MISSED'])} |"


def _page(table: str, where: str, num_splits: int, num_tuned: int) -> str:
    return f"""# How good statements are by default

Written by `python -m benchmarks.sql_quality --write docs/benchmarks-sql.md`; do not edit.
It requires `pip install scikit-learn statsmodels vega_datasets`.

{table}

- *default*: `SELECT * FROM training TRAIN regressor.DNN LABEL y INTO m`, or `classifier.DNN`,
  without any attribute.
- *tuned*: the best of four trials of `hidden_units` and `learning_rate`, on the first
  {_counted(num_tuned)}.
- *linear*: scikit-learn's `LinearRegression` or `LogisticRegression`.
- *boosting*: its `HistGradientBoostingRegressor` or `HistGradientBoostingClassifier`.
- The numbers are the means over {_counted(num_splits)}, by seeds from 0 on. A quarter of the rows,
  which no side has seen, is measured.
- The target of *default* is an RMSE at most 3 % above that of *linear*, or an accuracy at most 0.01
  below.
- Machine: {where}
"""


def _counted(num_splits: int) -> str:
    return "split" if num_splits == 1 else f"{num_splits} splits"


if __name__ == "__main__":
    sys.exit(main())
