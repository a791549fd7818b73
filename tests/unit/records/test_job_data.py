"""The plan of a job fits the memory of its readers."""

import numpy as np
import pytest

from edl_horovod.config.tasks import num_lanes, training_batch
from edl_horovod.records import job_data
from edl_horovod.records.chunks import Codec
from tests.jobs import config_of
from tests.unit.records.record_files import flip_a_bit, write

RECORD_BYTES, NUM_RECORDS, CHUNK_BYTES = 4000, 3000, 1 << 14


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_each_chunk_is_read_about_once_for_records_of_any_size(tmp_path, monkeypatch, codec):
    # A third of the data, and a tenth of what windows of 1,024 records would take.
    monkeypatch.setattr(job_data, "CACHE_BYTES", 4 << 20)
    random = np.random.default_rng(0)
    records = random.integers(0, 4, (NUM_RECORDS, RECORD_BYTES), dtype=np.uint8)
    contents = [record.tobytes() for record in records]
    write(tmp_path / "a.recordio", contents, codec=codec, chunk_bytes=CHUNK_BYTES)
    config = config_of("train", [f"data={tmp_path}/a.recordio", "model_def=m", "output=/o"])
    batch = config.train.batch_size
    loaded: list[int] = []

    with job_data.open_source(config.data, config.data_plan) as reader:
        plan = job_data.plan_of(
            reader, config.data_plan, global_batch=batch, num_lanes=32, is_training=True
        )
        load = reader.load_chunk
        reader.load_chunk = lambda n: loaded.append(n) or load(n)
        order = plan.order(0)
        for step in range(plan.steps_per_epoch):
            reader.read(order.records(step, range(plan.num_lanes)))

    assert plan.window == pytest.approx((2 << 20) / 32 / (RECORD_BYTES + 41), rel=0.05)
    assert len(loaded) < 1.5 * reader.index.num_chunks


def test_nothing_is_read_for_an_order_that_is_not_shuffled(tmp_path):
    path = write(tmp_path / "a.recordio", [b"a record"])
    flip_a_bit(path, -1)
    config = config_of("train", [f"data={path}", "model_def=m", "output=/o"])
    with job_data.open_source(config.data, config.data_plan) as source:
        plan = job_data.plan_of(
            source, config.data_plan, global_batch=64, num_lanes=32, is_training=False
        )

    assert plan.num_records == 1


@pytest.mark.parametrize("batching", ["global", "per_rank"])
def test_the_preset_of_ordered_records_takes_them_in_the_order_of_their_files(tmp_path, batching):
    for name in ("a", "b"):
        records = [b"%s %d" % (name.encode(), number) for number in range(40)]
        write(tmp_path / f"{name}.recordio", records, chunk_bytes=100)
    settings = [f"data={tmp_path}/*.recordio", "model_def=m", "output=/o", "train.batch_size=12"]
    config = config_of("train", [*settings, "data_plan=ordered", f"elastic.batching={batching}"])

    with job_data.open_source(config.data, config.data_plan) as source:
        plan = job_data.plan_of(
            source,
            config.data_plan,
            num_lanes=num_lanes(config),
            is_training=True,
            **training_batch(config),
        )
        order, spans = plan.order(0), plan.spans(1)
        steps = [
            order.between(spans[step].first, spans[step].last, range(1))
            for step in range(spans.first_step_of(1))
        ]

    assert [len(records) for records in steps] == [12] * 6 + [8]
    assert np.concatenate(steps).tolist() == list(range(80))
