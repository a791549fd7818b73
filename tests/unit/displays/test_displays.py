"""A display is a module and a line in the table."""

import contextlib
import sys
from types import ModuleType

from edl_horovod.displays import DISPLAYS, open_displays
from edl_horovod.job.events import LogEvent, Recorded

EVENT = Recorded(1.0, "localhost:0", LogEvent(message="halfway"))


def recording_display(monkeypatch):
    """A display that keeps what it is shown; `seen` of the module holds it."""
    module = ModuleType("recording_display")
    module.seen = []

    @contextlib.contextmanager
    def open_display(*, is_quiet, unit):
        module.seen.append(("opened", is_quiet, unit))
        yield module.seen.extend
        module.seen.append("closed")

    module.open_display = open_display
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(DISPLAYS, "recording", module.__name__)
    return module


def test_each_display_of_the_table_shows_the_events(monkeypatch, capsys):
    module = recording_display(monkeypatch)
    with open_displays(is_quiet=False, unit="files") as show:
        show([EVENT])
    assert module.seen == [("opened", False, "files"), EVENT, "closed"]
    assert "halfway" in capsys.readouterr().err


def test_a_quiet_terminal_says_nothing(monkeypatch, capsys):
    module = recording_display(monkeypatch)
    with open_displays(is_quiet=True) as show:
        show([EVENT])
    assert EVENT in module.seen
    assert capsys.readouterr().err == ""
