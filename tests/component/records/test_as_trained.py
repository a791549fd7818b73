"""Dates, times and durations of files in other units than those of the training's."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edl_horovod.config.schema import DataConfig
from edl_horovod.errors import DataError
from edl_horovod.records.as_trained import as_trained, columns_from_json, columns_to_json
from edl_horovod.records.job_data import open_source
from tests.columns import plain

DAYS = [datetime.date(2020, 1, 3), datetime.date(1969, 12, 30), datetime.date(2024, 2, 29)]
TIMES = [datetime.datetime(day.year, day.month, day.day) for day in DAYS]
NOON = [time.replace(hour=12) for time in TIMES]


def write(path, values, kind):
    table = pa.table({"t": pa.array(values).cast(kind), "x": [1.0] * len(values)})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".npz":
        np.savez(path, t=table["t"].to_numpy(), x=table["x"].to_numpy())
    else:
        with pa.ipc.new_stream(str(path), table.schema) as to:
            to.write_table(table)
    return path


def opened(path):
    return open_source(str(path), DataConfig())


def read_times(source):
    return plain(source.read(range(3))[0]), source.layout.columns[0].dtype


def read_as_trained(path, trained):
    """The times of a file, and their type, as a model gets them that was trained with another."""
    with opened(trained) as source:
        columns = columns_from_json(columns_to_json(source.layout.columns))
    with as_trained(columns, opened(path), data=f"data={path}") as source:
        return read_times(source)


UNITS = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")]
KINDS = [*UNITS, pa.date32(), pa.date64()]


@pytest.mark.parametrize("trained", KINDS, ids=str)
def test_a_date_is_the_same_date_in_the_units_of_the_training(tmp_path, trained):
    trained = write(tmp_path / "trained.arrow", TIMES, trained)
    with opened(trained) as source:
        expected = read_times(source)
    for number, kind in enumerate(KINDS):
        data = write(tmp_path / f"{number}.arrow", TIMES, kind)
        assert read_as_trained(data, trained) == expected, kind


@pytest.mark.parametrize("ending", ["parquet", "npz"])
def test_files_of_different_formats_agree(tmp_path, ending):
    trained = write(tmp_path / "trained.arrow", NOON, pa.timestamp("us"))
    other = write(tmp_path / f"a.{ending}", NOON, pa.timestamp("ns"))
    with opened(trained) as source:
        assert read_as_trained(other, trained)[0] == plain(source.read(range(3))[0])


def test_the_time_of_a_day_is_left_out_where_the_training_had_dates(tmp_path):
    trained = write(tmp_path / "trained.arrow", DAYS, pa.date32())
    other = write(tmp_path / "a.arrow", NOON, pa.timestamp("ms"))
    assert read_as_trained(other, trained) == ([18264, -2, 19782], "int32")


@pytest.mark.parametrize(
    ("trained", "other"),
    [
        (pa.duration("ms"), pa.duration("ns")),
        (pa.time32("ms"), pa.time64("us")),
        (pa.duration("s"), pa.duration("us")),
    ],
    ids=str,
)
def test_times_of_a_day_and_durations_are_converted(tmp_path, trained, other):
    values = [datetime.timedelta(seconds=seconds) for seconds in (1, 60, 3600)]
    if pa.types.is_time(trained):
        values = [datetime.time(0, 0, 1), datetime.time(0, 1), datetime.time(1)]
    file = write(tmp_path / "trained.arrow", values, trained)
    with opened(file) as source:
        expected = read_times(source)
    assert read_as_trained(write(tmp_path / "a.arrow", values, other), file) == expected


def test_dates_in_lists_are_converted(tmp_path):
    for name, unit in (("trained", "s"), ("a", "ns")):
        lists = pa.array([TIMES[:2], [], TIMES[2:]], pa.list_(pa.timestamp(unit)))
        with pa.ipc.new_stream(str(tmp_path / f"{name}.arrow"), pa.schema({"t": lists.type})) as to:
            to.write_table(pa.table({"t": lists}))
    dates, _ = read_as_trained(tmp_path / "a.arrow", tmp_path / "trained.arrow")
    assert dates == [[1578009600, -172800], [], [1709164800]]


@pytest.mark.parametrize(
    ("trained", "other", "received"),
    [
        (pa.timestamp("us"), pa.int64(), r"int64.*datetime64\[us\]"),
        (pa.int64(), pa.timestamp("us"), r"datetime64\[us\].*int64"),
        (pa.duration("s"), pa.timestamp("s"), "timedelta64"),
    ],
    ids=str,
)
def test_what_is_no_date_in_one_of_both_is_refused(tmp_path, trained, other, received):
    numbers = [1, 2, 3]
    trained = write(tmp_path / "trained.arrow", numbers, trained)
    other = write(tmp_path / "a.arrow", numbers, other)
    with pytest.raises(DataError, match=received):
        read_as_trained(other, trained)


def test_a_date_that_the_unit_of_the_training_cannot_hold_is_refused(tmp_path):
    trained = write(tmp_path / "trained.arrow", TIMES, pa.timestamp("ns"))
    far = [datetime.datetime(3000, 1, 1), *TIMES[1:]]
    other = write(tmp_path / "a.arrow", far, pa.timestamp("s"))
    with pytest.raises(DataError, match=r"'t' of data=.*3000-01-01"):
        read_as_trained(other, trained)


def test_data_of_the_same_units_are_read_without_a_copy(tmp_path):
    source = opened(write(tmp_path / "a.arrow", TIMES, pa.timestamp("us")))
    with source:
        assert as_trained(source.layout.columns, source, data="data") is source
