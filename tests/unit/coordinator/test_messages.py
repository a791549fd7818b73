"""Messages are values here and JSON objects on the wire; these are their bytes."""

import json
from dataclasses import replace

import pytest

from edl_horovod.coordinator import messages
from edl_horovod.coordinator.wire import WireError
from edl_horovod.job.outcome import Failure, Success
from tests.parallel.places import place_of

WORKER = {"worker": "a:0:1:2", "host": "a"}
RANKS = {"local_rank": 0, "local_size": 1, "cross_rank": 1, "cross_size": 3}
PLACE = replace(
    place_of(1, 4000, "token", 4, 3), **WORKER, **RANKS, step=17, rendezvous_address="10.0.0.1"
)
BEGUN = {"generation": 0, "formed": 0, "is_ready": True, "is_leaving": False, "step": -1}
HELLO = messages.Hello(**WORKER, slot=0, pid=77, **BEGUN)
LINES = [
    (
        HELLO,
        '{"kind":"hello","worker":"a:0:1:2","host":"a","slot":0,"pid":77,"generation":0,'
        '"formed":0,"is_ready":true,"is_leaving":false,"step":-1}',
    ),
    (
        messages.Ready(generation=4, step=17, reason=""),
        '{"kind":"ready","generation":4,"step":17,"reason":""}',
    ),
    (
        messages.Ready(generation=4, step=17, reason="no route", unreached=("10.0.0.2",)),
        '{"kind":"ready","generation":4,"step":17,"reason":"no route","unreached":["10.0.0.2"]}',
    ),
    (messages.Formed(generation=4), '{"kind":"formed","generation":4}'),
    (messages.Leaving(), '{"kind":"leaving"}'),
    (messages.Progress(step=17), '{"kind":"progress","step":17}'),
    (
        messages.Pong(generation=4, doing="works", phase="step 17", seconds=0.5),
        '{"kind":"pong","generation":4,"doing":"works","phase":"step 17","seconds":0.5}',
    ),
    (
        messages.Finished(result=Success(steps=7, metrics={"auc": 0.5}, output="/out")),
        '{"kind":"finished","result":{"steps":7,"metrics":{"auc":0.5},"output":"/out"}}',
    ),
    (
        messages.Failed(error=Failure(error="DataError", message="no files")),
        '{"kind":"failed","error":{"error":"DataError","message":"no files"}}',
    ),
    (messages.Ping(), '{"kind":"ping"}'),
    (
        PLACE,
        '{"kind":"assign","worker":"a:0:1:2","rank":1,"size":3,"local_rank":0,"local_size":1,'
        '"cross_rank":1,"cross_size":3,"generation":4,"step":17,"host":"a",'
        '"rendezvous_address":"10.0.0.1","rendezvous_port":4000,"rendezvous_token":"token"}',
    ),
    (messages.Change(generation=5), '{"kind":"change","generation":5}'),
    (messages.Dump(reason="no progress"), '{"kind":"dump","reason":"no progress"}'),
    (messages.End(reason="no progress"), '{"kind":"end","reason":"no progress"}'),
    (
        messages.Stop(reason="the job is over", is_over=True),
        '{"kind":"stop","reason":"the job is over","is_over":true}',
    ),
    (
        messages.Stop(reason="its slot is no longer wanted", has_state=True),
        '{"kind":"stop","reason":"its slot is no longer wanted","has_state":true}',
    ),
]


@pytest.mark.parametrize(("message", "line"), LINES, ids=lambda message: type(message).__name__)
def test_a_message_and_its_line(message, line):
    assert json.dumps(messages.encode(message), separators=(",", ":")) == line
    assert messages.decode(json.loads(line)) == message


def test_kinds_and_fields_of_a_newer_version_are_passed_over():
    assert messages.decode({"kind": "migrate", "to": "b"}) is None
    newer = {**messages.encode(HELLO), "colour": {"of": "hair"}}
    assert messages.decode(newer) == HELLO


READY = messages.Ready(generation=1, step=0, reason="")


@pytest.mark.parametrize(
    ("message", "field", "values"),
    [
        (HELLO, "slot", ["0", True, 0.0]),
        (HELLO, "is_ready", [1]),
        (HELLO, "worker", [None]),
        (HELLO, "host", [[]]),
        (READY, "unreached", ["10.0.0.2", [1], {}]),
    ],
)
def test_a_field_of_the_wrong_type_is_refused(message, field, values):
    for value in values:
        with pytest.raises(WireError, match=f"'{field}' has the wrong"):
            messages.decode({**messages.encode(message), field: value})


def test_a_whole_number_of_seconds_is_a_number_of_seconds():
    pong = {"kind": "pong", "generation": 4, "doing": "works", "phase": "step 17", "seconds": 2}
    assert messages.decode(pong).seconds == 2.0


def test_a_field_that_is_missing_is_refused():
    with pytest.raises(WireError, match="'generation' is missing"):
        messages.decode({"kind": "change"})
