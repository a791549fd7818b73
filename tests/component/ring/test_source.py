"""A job trains on a source of the tests' own, which no module but the table's line knows."""

from edl_horovod.records.sources.table import SCHEMES


def test_a_job_trains_on_records_in_memory(train, monkeypatch):
    monkeypatch.setitem(SCHEMES, "numbers", "tests.memory_source")

    trained = train("data=numbers:100", "train.epochs=2")

    assert trained.result.steps == 2 * 5
    assert trained.losses[10] < trained.losses[1]
