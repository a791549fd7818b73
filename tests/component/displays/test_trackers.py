"""Jobs as runs of trackers, by the real clients and read by them: one run, and no step twice."""

import contextlib
import gzip
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest

from edl_horovod.config.schema import JobConfig, LaunchConfig
from edl_horovod.displays import following, load, open_displays
from edl_horovod.job.events import Recorded, line_of, parse
from tests.integration.conftest import REPOSITORY
from tests.job_events import recorded
from tests.web_server import Receiver, serving

# The clients use what other packages have deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

BLOCK = 1 << 15
STEPS = [1, 2, 3, 4, 5, 6]
"""Those of both launches, of which the second begins at a checkpoint of step 2."""
RANKS = [*((step, 1) for step in STEPS[:-1]), (6, 2)]
LOSSES = pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 2 / 5])
ACCURACIES = [(4, 0.5), (6, 0.75)]
FIRST = [
    recorded("job", 1.0, state="starting", task="train"),
    recorded("reset", 10.0, seconds=0.5),
    *(recorded("step", 10.0 + step, step=step, loss=1 / step) for step in (1, 2, 3, 4)),
    recorded("checkpoint", 12.5, step=2, seconds=0.25),
    recorded("evaluation", 14.5, step=4, metrics={"accuracy": 0.5, "recall@10": 0.25}),
    recorded("job", 15.0, state="suspended"),
]
SECOND = [
    recorded("job", 20.0, state="starting", task="train"),
    recorded("generation", 20.75, is_formed=True, seconds=1.25),
    recorded("reset", 21.0, new_size=2, seconds=2.0, reason="start", join_seconds=1.5),
    recorded("account", 22.0, seconds={"computing": 3.0, "input": 1.0}),
    *(recorded("step", 20.0 + step, step=step, loss=2 / step) for step in (3, 4, 5)),
    recorded(
        "step", 26.0, step=6, loss=None, metrics={"accuracy": 0.25, "f1(macro)//a": 0.5}, size=2
    ),
    recorded("evaluation", 26.5, step=6, metrics={"accuracy": 0.75}),
    recorded("job", 27.0, state="finished", steps=6, metrics={"accuracy": 0.75}),
]


@pytest.fixture
def show(tmp_path, monkeypatch):
    """Runs a display over launches of a job; gives the folder of what it keeps."""
    monkeypatch.setattr(following, "PAUSE_SECONDS", 0.01)

    def show_launches(name, *launches):
        job_dir = tmp_path / "model.job"
        job_dir.mkdir(exist_ok=True)
        config = JobConfig(
            task="train",
            data="d",
            output="o",
            model_def="m",
            launch=LaunchConfig(kind="queue", options={"rate@start": 0.5}),
            job_dir=str(job_dir),
            displays=[name],
        )
        for events in launches or (FIRST, SECOND):
            with open_displays(load([name]), config) as show_events:
                # As a log has them.
                show_events([parse(line_of(event)) for event in events])
        return job_dir / "displays" / name

    return show_launches


def test_tensorboard(show, caplog):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = show("tensorboard")
    run = EventAccumulator(str(folder)).Reload()
    ranks = run.Scalars("ring/ranks")
    assert [(point.step, point.value) for point in ranks] == RANKS
    assert [point.wall_time for point in ranks] == [11.0, 12.0, 13.0, 14.0, 25.0, 26.0]
    assert [point.value for point in run.Scalars("train/loss")] == LOSSES
    evaluations = run.Scalars("evaluation/accuracy")
    assert [(point.step, point.value) for point in evaluations] == ACCURACIES
    assert [point.value for point in run.Scalars("ring/goodput")] == [0.75] * 2
    assert not caplog.messages


@pytest.mark.further
def test_mlflow(show, monkeypatch, caplog):
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = show("mlflow")
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("edl_horovod").experiment_id
    (run,) = client.search_runs([experiment])
    assert (run.info.run_name, run.info.status) == ("model", "FINISHED")
    ranks = client.get_metric_history(run.info.run_id, "ring/ranks")
    assert [point.step for point in ranks] == STEPS
    assert [point.timestamp for point in ranks][-1] == 26_000
    losses = client.get_metric_history(run.info.run_id, "train/loss")
    assert [point.value for point in losses] == LOSSES
    accuracies = client.get_metric_history(run.info.run_id, "evaluation/accuracy")
    assert [(point.step, point.value) for point in accuracies] == ACCURACIES
    assert run.data.metrics["evaluation/recall_10"] == 0.25
    assert run.data.metrics["train/f1_macro_/a"] == 0.5
    assert run.data.params["train.batch_size"] == "128"
    assert run.data.params["launch.options.rate_start"] == "0.5"
    assert not caplog.messages


@pytest.mark.further
def test_wandb(show, monkeypatch, caplog):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    for events in (FIRST, SECOND):
        folder = show("wandb", events)
        wandb.teardown()  # As at the end of a launcher.
    records = [record for path in sorted(folder.rglob("*.wandb")) for record in records_of(path)]
    assert len({record.run.run_id for record in records if record.HasField("run")}) == 1
    rows = [
        {
            item.key or item.nested_key[0]: json.loads(item.value_json)
            for item in record.history.item
        }
        for record in records
        if record.HasField("history")
    ]
    ranks = [(row["step"], row["ring/ranks"]) for row in rows if "ring/ranks" in row]
    assert ranks == RANKS
    accuracies = [row for row in rows if "evaluation/accuracy" in row]
    assert [(row["step"], row["evaluation/accuracy"]) for row in accuracies] == ACCURACIES
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [0, 0]
    assert not caplog.messages


def records_of(path):
    """The records of a run that is kept offline, in a log of LevelDB's format."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, record = path.read_bytes(), 7, b""
    assert content.startswith(b":W&B")
    while place < len(content):
        if BLOCK - place % BLOCK < 7:  # No room for a head.
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # The whole of one, or the end of one.
            yield Record.FromString(record)
            record = b""


JOB = """
import logging, sys
from edl_horovod.config.schema import JobConfig
from edl_horovod.displays import following, load, open_displays
from tests.job_events import recorded
from tests.integration.conftest import REPOSITORY, ZOO, for_framework

following.PAUSE_SECONDS, following.CLOSE_SECONDS = 0.01, 6.0
logging.basicConfig(stream=sys.stdout)
needed = {"task": "train", "data": "d", "output": "o", "model_def": "m"}
config = JobConfig(**needed, job_dir=sys.argv[1], displays=["wandb"])
with open_displays(load(["wandb"]), config) as show:
    show([recorded("step", step=1, loss=0.5)])
"""


@pytest.fixture
def run_job(tmp_path):
    """Runs a launcher with the display wandb at a terminal, to its end; gives what it logs."""

    (tmp_path / "model.job").mkdir()

    def run(**variables):
        others = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
        variables = {**others, "HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY), **variables}
        terminal, end_of_job = pty.openpty()
        job = subprocess.Popen(
            [sys.executable, "-c", JOB, str(tmp_path / "model.job")],
            env=variables,
            stdin=end_of_job,
            stdout=subprocess.PIPE,
            stderr=end_of_job,
            text=True,
            start_new_session=True,
        )
        try:
            # The client takes some time of its own to end, most of it for a server that hangs.
            logged, _ = job.communicate(timeout=90)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            os.close(terminal)
            os.close(end_of_job)
        assert job.returncode == 0
        return logged.splitlines()

    return run


@pytest.mark.long
def test_wandb_without_a_key_fails_and_does_not_ask_for_one(run_job):
    (line,) = run_job()
    assert "wandb failed" in line
    assert "API key" in line


@pytest.mark.further
@pytest.mark.parametrize("begins", [True, False])
def test_a_launcher_ends_when_the_server_of_wandb_does_not_answer(run_job, begins):
    does_hang, is_over = threading.Event(), threading.Event()
    if not begins:
        does_hang.set()

    class Service(Receiver):
        def receive(self, posted):
            if does_hang.is_set():
                is_over.wait()
                return
            project = {"name": "p", "entity": {"name": "e"}}
            bucket = {"id": "i", "name": "n", "displayName": "n", "project": project}
            answer = {"upsertBucket": {"bucket": bucket, "inserted": True}, "model": None}
            self.answer(json.dumps({"data": answer}).encode())
            if b"UpsertBucket" in posted:
                does_hang.set()

    with serving(Service) as url:
        try:
            (line,) = run_job(WANDB_BASE_URL=url, WANDB_API_KEY="0" * 40)
        finally:
            is_over.set()
    assert does_hang.is_set()
    assert "wandb failed" in line


@pytest.mark.long
def test_a_server_that_is_away_is_said_once(show, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    show("mlflow")
    assert [message for message in caplog.messages if "mlflow" in message]
    assert len(caplog.messages) == 2  # Once for each launch.


@pytest.fixture
def spans_of(show, monkeypatch):
    """Runs the display over launches of a job; gives the spans that a collector receives."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    def spans(*launches):
        bodies = []

        class Collector(Receiver):
            def receive(self, posted):
                is_packed = self.headers["Content-Encoding"] == "gzip"
                bodies.append(gzip.decompress(posted) if is_packed else posted)
                self.answer()

        with serving(Collector) as url:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
            show("opentelemetry", *launches)
        requests = map(ExportTraceServiceRequest.FromString, bodies)
        resources = [resource for request in requests for resource in request.resource_spans]
        return [
            span for resource in resources for scope in resource.scope_spans for span in scope.spans
        ]

    return spans


def times_of(spans):
    """Each span as its parent's name and its own, when it began and when it ended."""
    names = {span.span_id: span.name for span in spans}
    return [
        (
            f"{names.get(span.parent_span_id, 'job')}/{span.name}",
            span.start_time_unix_nano / 1e9,
            span.end_time_unix_nano / 1e9,
        )
        for span in spans
    ]


def test_opentelemetry(spans_of, caplog):
    spans = spans_of(FIRST, FIRST, SECOND)  # The second launcher has taken over.
    assert times_of(spans) == [
        ("job/reset", 9.5, 10.0),
        ("reset/first step", 10.0, 11.0),
        ("job/checkpoint", 12.25, 12.5),
        ("job/reset", 19.0, 21.0),
        ("reset/notice", 19.0, 19.5),
        ("reset/rendezvous", 19.5, 20.5),
        ("reset/sync", 20.5, 21.0),
        ("reset/first step", 21.0, 23.0),
    ]
    assert len({span.trace_id for span in spans}) == 1
    assert len({span.span_id for span in spans}) == len(spans)
    _, second = (span for span in spans if span.name == "reset")
    assert [span.name for span in spans if span.parent_span_id == second.span_id] == [
        "notice",
        "rendezvous",
        "sync",
        "first step",
    ]
    attributes = {span.key: span.value for span in second.attributes}
    assert attributes["edl.reason"].string_value == "start"
    assert attributes["edl.ranks"].int_value == 2
    assert not caplog.messages


PARTS_OF_ONE = [
    ("job/reset", 8.0, 10.0),
    ("reset/notice", 8.0, 8.5),
    ("reset/rendezvous", 8.5, 9.5),
    ("reset/sync", 9.5, 10.0),
]
NO_NOTICE = [
    ("job/reset", 8.0, 10.0),
    ("reset/rendezvous", 8.0, 9.5),
    ("reset/sync", 9.5, 10.0),
]


@dataclass(frozen=True)
class AfterReset:
    """What a log has after a reset that ended at 10.0, and the spans of that reset."""

    name: str
    events: list[Recorded]
    spans: list[tuple[str, float, float]]


def formed(time, **fields):
    return recorded("generation", time, is_formed=True, **fields)


@pytest.mark.parametrize(
    "after",
    [
        AfterReset("the coordinator's event", [formed(10.25, seconds=1.75)], PARTS_OF_ONE),
        AfterReset("nothing", [], NO_NOTICE),
        AfterReset("that of a static ring", [formed(10.25)], NO_NOTICE),
        AfterReset(
            "a step, then the coordinator's event",
            [recorded("step", 10.5), formed(10.75, seconds=2.25)],
            [*NO_NOTICE, ("reset/first step", 10.0, 10.5)],
        ),
        AfterReset(
            "another reset, then the coordinator's events",
            [
                recorded("reset", 11.0, generation=2, seconds=0.5, join_seconds=0.25),
                formed(11.25, seconds=2.75),
                formed(11.25, generation=2, seconds=0.625),
            ],
            [
                *NO_NOTICE,
                ("job/reset", 10.5, 11.0),
                ("reset/notice", 10.5, 10.625),
                ("reset/rendezvous", 10.625, 10.75),
                ("reset/sync", 10.75, 11.0),
            ],
        ),
    ],
    ids=lambda after: after.name,
)
def test_parts_of_a_reset_in_opentelemetry_add_up_to_it(after, spans_of, caplog):
    reset = recorded("reset", 10.0, seconds=2.0, join_seconds=1.5)
    spans = spans_of([recorded("job", 1.0, state="starting"), reset, *after.events])
    assert sorted(times_of(spans)) == sorted(after.spans)
    assert not caplog.messages
