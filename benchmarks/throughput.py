"""Records per second of input, prediction, `prepare` and exports; seconds of a start."""

import os
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial

import psycopg

from benchmarks.report import Line, ratio
from benchmarks.run import OURS, ROOT, Run, interleave, values_of
from benchmarks.side import Numbers, Work
from benchmarks.training import num_repetitions, whole_work
from tests import databases

BY_ONE, BATCHES = "Input, one by one", "Input, in batches"
PLAIN_BATCHES, GZIP_BATCHES = f"{BATCHES}, codec=none", f"{BATCHES}, codec=gzip"
TFRECORD, CALLS = "TFRecordDataset", "one record a Python call"
PARSED = f"{TFRECORD}, parsed in batches"
WIDE = f"{PARSED}, shuffled as widely"
COMPARISONS = (
    (BY_ONE, "ours", TFRECORD, "tfrecord", 2.0),
    (BATCHES, "ours_batches", TFRECORD, "tfrecord", 1.2),
    (BY_ONE, "ours", CALLS, "generator", 8.0),
    (BATCHES, "ours_batches", CALLS, "generator", 8.0),
    (BY_ONE, "ours", f"{TFRECORD}, map with AUTOTUNE", "tfrecord_parallel", None),
    (BATCHES, "ours_batches", PARSED, "tfrecord_batches", None),
    (PLAIN_BATCHES, "ours_batches_plain", PARSED, "tfrecord_batches", 0.9),
    (PLAIN_BATCHES, "ours_batches_plain", WIDE, "tfrecord_batches_wide", None),
    (GZIP_BATCHES, "ours_batches_gzip", f"{PARSED}, GZIP", "tfrecord_batches_gzip", None),
)
"""The event, our side of `input_passes`, the other side and its name there, the least ratio."""
LIBRARIES = {
    "tfrecord": "TFRecordDataset, parsed in batches",
    "parquet": "PyArrow, iter_batches",
    "arrow": "PyArrow, mapped into memory",
    "jsonl": "PyArrow, read_json",
    "webdataset": "tarfile",
    "numpy": "numpy.load",
    "folders": "tf.data, read_file",
    "mds": "RecordIO",
}
"""Libraries that read in the order of the file, where ours shuffles, by the names of formats.

MDS has no library here; it is held against RecordIO, as that is what we write.
"""
SPECS = {"one by one": "cnn.CnnSpec", "in batches": "cnn.CnnBatchSpec"}
NUM_STARTS = 10
STARTS = {
    "Start, import edl_horovod": (("-c", "import edl_horovod"), 0.5),
    "Start, edl --help": (("-m", "edl_horovod", "--help"), 0.5),
    "Start, edl train --help": (("-m", "edl_horovod", "train", "--help"), None),
}
SELECT = "SELECT name, role, salary, age FROM employee"
TABLE = (
    "CREATE TABLE employee"
    " (id INTEGER PRIMARY KEY, name TEXT, role TEXT, salary DOUBLE PRECISION, age INTEGER)"
)


def measure_input(run: Run) -> list[Line]:
    """Compare passes over the same records, made in turn in one process."""
    num_records = run.amount(960, 64) * 128
    codecs = ("none", "gzip")
    plain, gzip = (run.data("numbers", num_records=num_records, codec=codec) for codec in codecs)
    options = {"plain": plain, "gzip": gzip, "generator_records": run.amount(80, 16) * 128}
    options["repetitions"] = num_repetitions(run)
    passes = run.side("ours.stream.input_passes", whole_work(run), **options)
    lines = []
    for event, ours, peer_name, peer, least in COMPARISONS:
        both = passes[ours], passes[peer]
        rates = [values_of(side, "rate") for side in both]
        times = [statistics.median(numbers["processor_us"] for numbers in side) for side in both]
        detail = f"processor time {times[0]:.1f} / {times[1]:.1f} us a record"
        lines.append(ratio(event, *rates, peer_name, least_median=least, detail=detail))
    return lines


def measure_formats(run: Run) -> list[Line]:
    """Compare passes over pictures of 32 x 32 pixels in every format, read and not decoded."""
    work = Work(data=run.folder / "formats")
    # There are ten sets of these, so there are fewer of them than of other records.
    size = run.side("data.formats", work, number=run.amount(960, 64) * 32)["picture_bytes"]
    rates = run.side("ours.stream.format_passes", work, repetitions=num_repetitions(run))
    detail, lines = f"pictures of {size:,.0f} bytes", []
    for name, title in LIBRARIES.items():
        peer = "recordio" if name == "mds" else f"{name} library"
        lines.append(ratio(f"Format, {name}", rates[name], rates[peer], title, detail=detail))
    return lines


def measure_predict(run: Run) -> list[Line]:
    """Compare predictions of one model over the same records, in the same batches."""
    work = whole_work(run)
    models = {name: run.folder / spec for name, spec in SPECS.items()}
    for name, spec in SPECS.items():
        run.side("ours.job.train_once", work, model=models[name], spec=spec)

    ours = partial(run.side, "ours.job.predict", work)
    sides = {name: partial(ours, model=model) for name, model in models.items()}
    peer, model = "model.predict", models["one by one"]
    sides[peer] = partial(run.side, "peers.keras.predict", work, model=model)
    rates = _rates(run, sides)
    event = "Prediction, 1 rank, {}, written"
    pairs = {event.format(name): (rates[name], rates[peer]) for name in SPECS}
    return [ratio(e, *pair, peer, least_median=0.95) for e, pair in pairs.items()]


def measure_prepare(run: Run) -> list[Line]:
    """Prepare the same pictures with a model of the zoo, with one process and with two."""
    work = Work(data=run.data("photographs", number=run.amount(4000, 1000)))
    side = partial(run.side, "ours.job.prepare", work)
    sides = {"1": partial(side, processes=1), "2": partial(side, processes=2)}
    results = interleave(sides, num_repetitions(run))
    lines = []
    for event, name, least in (
        ("Prepare, once its processes are up", "pace", 1.7),
        ("Prepare, the whole command", "whole_pace", None),
    ):
        alone, together = (values_of(side, name) for side in results.values())
        lines.append(ratio(event, together, alone, "2 processes / 1", least_median=least))
    return lines


def measure_start(run: Run) -> list[Line]:
    """Start new interpreters, their own start included."""

    def start(arguments: tuple[str, ...]) -> float:
        began = time.perf_counter()
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        options = {"env": environment, "stdout": subprocess.DEVNULL, "timeout": 60, "check": True}
        subprocess.run([sys.executable, *arguments], **options)
        return time.perf_counter() - began

    sides = {name: partial(start, arguments) for name, (arguments, _) in STARTS.items()}
    interleave(sides, 1)  # Compiles what was never imported before.
    seconds = interleave(sides, NUM_STARTS)
    return [Line(name, OURS, seconds[name], most_median=most) for name, (_, most) in STARTS.items()]


def measure_sql(run: Run) -> list[Line]:
    """Read a table with texts, fractions and whole numbers, by an export and by its driver."""
    num_rows, path = 8 * run.amount(960, 64) * 128, run.folder / "employee.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(TABLE)
        connection.executemany("INSERT INTO employee VALUES (?, ?, ?, ?, ?)", _rows(num_rows))
    lines = [_compare_reading(run, "SQLite", f"sqlite:///{path}")]
    if databases.POSTGRESQL.exists():
        with databases.postgresql() as server:
            url = f"{server}postgres"
            with psycopg.connect(url) as postgresql:
                postgresql.execute(TABLE)
                with postgresql.cursor().copy("COPY employee FROM STDIN") as copy:
                    for row in _rows(num_rows):
                        copy.write_row(row)
            lines.append(_compare_reading(run, "PostgreSQL", url))
    return lines


def _compare_reading(run: Run, name: str, url: str) -> Line:
    side = partial(run.side, work=Work(data=run.folder), url=url, select=SELECT)
    functions = ("ours.job.export_rows", "peers.sql.read_rows")
    rates = _rates(run, {function: partial(side, function) for function in functions})
    event = f"SQL, rows of {name} into Parquet"
    return ratio(event, *rates.values(), "its driver alone", least_median=0.7)


def _rates(run: Run, sides: Mapping[str, Callable[[], Numbers]]) -> dict[str, list[float]]:
    """Records or rows per second of each repetition."""
    results = interleave(sides, num_repetitions(run))
    return {name: values_of(numbers, "rate") for name, numbers in results.items()}


def _rows(num_rows: int) -> Iterator[tuple[object, ...]]:
    for number in range(num_rows):
        yield number, f"name {number % 5000}", f"role {number % 7}", number * 1.5, number % 90
