import signal

import pytest

from edl_horovod.supervisor.processes import signals_interrupt


@pytest.fixture(autouse=True)
def restored():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_interrupts_where_nobody_else_handles_it():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with pytest.raises(KeyboardInterrupt), signals_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_the_program_stays_in_force():
    received = []
    signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    with signals_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGTERM]
