"""A training that a client of the SQL service began, and ends by cancelling its call."""

import contextlib
import sqlite3

import pytest

from tests.frameworks import NEEDS_KERAS
from tests.sql_service import children_of, in_background, service
from tests.waiting import is_running, wait_until

TRAIN = """SELECT a, b, c FROM numbers TRAIN regressor.DNN
WITH hidden_units=[16, 8], train.epochs=1000, train.batch_size=20, train.split='none',
     engine.num_workers=2 INTO m"""


@pytest.mark.long
@pytest.mark.timeout(280)
@NEEDS_KERAS
def test_a_cancelled_call_leaves_no_process_and_no_file_of_its_job(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "hr.db")) as connection, connection:
        connection.execute("CREATE TABLE numbers (a REAL, b REAL, c REAL)")
        cells = [(n / 100, n % 7, n % 7 + n / 50) for n in range(200)]
        connection.executemany("INSERT INTO numbers VALUES (?, ?, ?)", cells)
    with service(tmp_path) as running:
        with running.channel() as channel:
            call = running.start(channel, TRAIN, seconds=250)
            responses = in_background(call)
            while "loss" not in (text := responses.get(timeout=200).message.message):
                assert text
            started = children_of(running.process.pid)
            assert len(started) >= 3, "a process of the call and two ranks"
            call.cancel()
            wait_until(lambda: not children_of(running.process.pid), "the end of the call")
        assert not [pid for pid in started if is_running(pid)]
        assert not list((tmp_path / "models" / ".jobs").glob("[0-9]*"))
        shown = running.run("SHOW MODELS; SHOW JOBS")
        assert [reply.WhichOneof("response") for reply in shown] == ["head", "eoe", "head", "eoe"]
