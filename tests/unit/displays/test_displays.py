"""A display is a module and a line in the table."""

import contextlib
import logging
import sys
import threading
import time
from types import ModuleType

import pytest

from edl_horovod.config.schema import JobConfig
from edl_horovod.displays import DISPLAYS, following, load, open_displays
from edl_horovod.displays.terminal import open_terminal
from edl_horovod.errors import ConfigError, MissingDependency
from edl_horovod.job.events import LogEvent, Recorded

EVENT = Recorded(1.0, "localhost:0", LogEvent(message="halfway"))


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    monkeypatch.setattr(following, "PAUSE_SECONDS", 0.01)


@pytest.fixture
def add(monkeypatch):
    """Adds displays to the table by a function that takes new events; gives what it adds."""

    def add_display(name, show):
        module = ModuleType(f"{name}_display")
        module.settings = []

        @contextlib.contextmanager
        def open_display(config):
            module.settings.append(config)
            yield show

        module.open_display = open_display
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(DISPLAYS, name, module.__name__)
        return module

    return add_display


def job(*names):
    return JobConfig(task="train", data="d", output="o", model_def="m", displays=list(names))


def follow(config, *events):
    with open_displays(load(config.displays), config) as show:
        for event in events:
            show([event])


def test_each_display_of_a_job_shows_its_events(add):
    seen, others = [], []
    module = add("recording", seen.extend)
    add("other", others.extend)
    add("unasked", None)
    config = job("recording", "other")
    follow(config, EVENT, EVENT)
    assert (seen, others) == ([EVENT, EVENT], [EVENT, EVENT])
    assert module.settings == [config]


def test_a_display_that_fails_says_so_once_and_the_others_go_on(add, caplog):
    seen = []

    def fail(events):
        raise ZeroDivisionError("no server")

    add("failing", fail)
    add("recording", seen.extend)
    with caplog.at_level(logging.WARNING):
        follow(job("failing", "recording"), EVENT, EVENT, EVENT)
    (message,) = caplog.messages
    assert "no server" in message
    assert seen == [EVENT] * 3


def test_a_job_waits_once_for_all_displays_that_hang(add, caplog, monkeypatch):
    monkeypatch.setattr(following, "CLOSE_SECONDS", 0.5)
    is_over, threads = threading.Event(), []

    def hang(events):
        threads.append(threading.current_thread())
        is_over.wait(60)
        raise ConnectionError("the server has gone")

    names = ["first", "second", "third", "fourth"]
    for name in names:
        add(name, hang)
    began = time.monotonic()
    try:
        follow(job(*names), EVENT)
        seconds = time.monotonic() - began
    finally:
        is_over.set()
    for thread in threads:
        thread.join(60)
    assert 0.5 <= seconds < 0.5 * len(names)
    assert len(caplog.messages) == len(names)
    assert all("0.5 s" in message for message in caplog.messages)


def test_a_name_that_is_in_no_table_is_refused():
    with pytest.raises(ConfigError) as caught:
        load(["tensorbord"])
    assert "tensorboard" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("mlflow", "mlflow.entities"),
        ("opentelemetry", "opentelemetry.sdk.trace"),
        ("tensorboard", "tensorboard.compat.proto.event_pb2"),
        ("wandb", "wandb"),
    ],
)
def test_a_missing_package_is_an_error_that_says_how_to_have_it(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"edl_horovod.displays.{name}", raising=False)
    with pytest.raises(MissingDependency) as caught:
        load([name])
    assert f"[{name}]" in str(caught.value)


def test_the_terminal_shows_events_unless_it_is_quiet(capsys):
    for is_quiet in (True, False):
        with open_terminal(is_quiet=is_quiet, unit="files") as show:
            show([EVENT])
        assert ("halfway" in capsys.readouterr().err) is not is_quiet
